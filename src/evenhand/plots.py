"""Pictures. They need plotly, which comes with ``pip install 'evenhand[plots]'``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenhand.data import Federation
from evenhand.describe import balance
from evenhand.errors import first_line, require, require_whole
from evenhand.files import write_atomic

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; then the same ones hatched
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
HATCHES = ("", "/", ".", "x")
OTHERS = "#DDDDDD"


def plot_partition(federation: Federation, by: str = "label", most: int = 100, sort: bool = False, training_only: bool = False) -> Any:
    """A bar for every client: how many samples it has of each class or group, as a plotly Figure.

    Args:
        by: "label" or "group".
        most: show at most so many clients, evenly picked.
        sort: largest clients first, in place of the federation's order.
        training_only: leave validation and test samples out.
    """
    try:
        go = import_module("plotly.graph_objects")
    except ImportError:
        raise ImportError("pictures need plotly; pip install 'evenhand[plots]'") from None
    require_whole("most", most, 1)
    known, counts = balance(federation, by, "train" if training_only else None)  # (n, K)
    order = counts.sum(1).argsort(descending=True, stable=True) if sort else torch.arange(federation.clients)
    shown = min(most, federation.clients)
    order = order[torch.linspace(0, federation.clients - 1, shown, dtype=torch.float64).round().long()]
    counts, names, colours, hatches = _legible(counts[order], known)
    share = counts / counts.sum(1, keepdim=True).clamp(min=1)
    clients = [federation.name(int(client)) for client in order]

    figure = go.Figure()
    for code, name in enumerate(names):
        figure.add_bar(
            name=_shortened(name),
            x=counts[:, code].tolist(),
            y=list(range(shown)),
            orientation="h",
            marker={
                "color": colours[code],
                "pattern": {"shape": hatches[code], "fgcolor": "white", "solidity": 0.35},
                "line": {"width": 0},
            },
            customdata=[[client, name, f"{part:.1%}"] for client, part in zip(clients, share[:, code].tolist(), strict=True)],
            hovertemplate=f"client %{{customdata[0]}}<br>{by} %{{customdata[1]}}: %{{x}} samples, %{{customdata[2]}}<extra></extra>",
        )
    what = "training samples" if training_only else "samples"
    some = f"{shown} of {federation.clients} clients" if shown < federation.clients else f"{shown} client{'s' * (shown > 1)}"
    pitch = 28 if shown <= 20 else max(13, 28 - (shown - 20) // 2)  # pixels from bar to bar
    figure.update_layout(
        barmode="stack",
        bargap=0.25 if shown <= 20 else 0.15,
        title={"text": f"Who has what: {what} by {by}<br><sup>{some}{', largest first' * sort}</sup>"},
        legend={"title": {"text": by}, "traceorder": "normal"},
        template="plotly_white",
        width=900,
        height=max(170 + pitch * shown, 200 + 20 * (len(names) + 1)),
        font={"size": 13},
        margin={"l": 20, "r": 20, "t": 80, "b": 60},
    )
    figure.update_xaxes(title=what, rangemode="tozero", tickformat=",d")
    figure.update_yaxes(
        title="client",
        tickvals=list(range(shown)),
        ticktext=[_shortened(client) for client in clients],
        tickfont={"size": min(13, pitch - 3)},
        range=[shown - 0.5, -0.5],  # the first client at the top
        automargin=True,
        ticks="outside",
        tickcolor="rgba(0, 0, 0, 0)",  # only a distance between names and bars
        showgrid=False,
        zeroline=False,
    )
    return figure


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write a figure to a file: .html is a page that needs nothing else, .png and .svg are drawn by kaleido."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind == ".html":
        write_atomic(path, figure.to_html(include_plotlyjs=True, full_html=True).encode())
        return path
    require(kind in (".png", ".svg"), "a picture's name must end in .html, .png or .svg, got {!r}", path.name)
    try:
        import_module("kaleido")
        content = figure.to_image(format=kind[1:], scale=2 if kind == ".png" else 1)
    except ImportError:
        raise ImportError(f"{path.name} needs kaleido; pip install 'evenhand[plots]', or save as .html") from None
    except Exception as error:  # kaleido drives a browser, which fails in ways of its own
        raise RuntimeError(
            f"{path.name} cannot be drawn ({first_line(error)}); kaleido needs Chrome or Chromium; or save as .html"
        ) from error
    write_atomic(path, content)
    return path


def _legible(counts: Tensor, names: Sequence[str]) -> tuple[Tensor, list[str], list[str], list[str]]:
    """Kinds that can be told apart, with colours and hatches: those that occur, the rarest together where there are too many."""
    total = counts.sum(0)
    kept = total.nonzero().flatten()
    places = len(COLOURS) * len(HATCHES)
    if len(kept) > places:
        kept = kept[total[kept].argsort(descending=True, stable=True)[: places - 1]].sort().values
    rest = counts.sum(1) - counts[:, kept].sum(1)
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(kept))]
    hatches = [HATCHES[i // len(COLOURS)] for i in range(len(kept))]
    shown = [names[int(k)] for k in kept]
    if rest.any():
        others = int((total > 0).sum()) - len(kept)
        return torch.cat([counts[:, kept], rest[:, None]], 1), [*shown, f"{others} others"], [*colours, OTHERS], [*hatches, ""]
    return counts[:, kept], shown, colours, hatches


def _shortened(name: str, length: int = 24) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
