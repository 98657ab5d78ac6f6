"""Figures, drawn with plotly (the extra ``plots``)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.errors import first_line, require, require_whole
from evenhand.files import write_atomic

# Okabe and Ito's colours, which people with any kind of colour vision can distinguish; then the
# same colours hatched
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
HATCHES = ("", "/", ".", "x")
OTHERS = "#DDDDDD"
SCALE = {".png": 2, ".svg": 1}  # pixels in the file per pixel of the figure
# for lines: yellow is too pale on white, and blue and black are too dark on black
LINES = {
    "light": (
        "#0072B2",
        "#E69F00",
        "#009E73",
        "#CC79A7",
        "#56B4E9",
        "#D55E00",
        "#7A5C00",
        "#999999",
    ),
    "dark": (
        "#1A83C6",
        "#E69F00",
        "#009E73",
        "#CC79A7",
        "#56B4E9",
        "#D55E00",
        "#F0E442",
        "#999999",
    ),
}
REFERENCE = {"light": "#3D3D3D", "dark": "#E0E0E0"}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")


class Look(NamedTuple):
    """How a method is drawn in every figure; two methods never differ only by colour."""

    colour: str  # on white
    dark: str  # on black
    dash: str
    symbol: str


def looks(labels: Sequence[str], reference: str | None = None) -> dict[str, Look]:
    """Return the style of each method; the reference is a plain line in the colour of the text.

    >>> looks(["fedavg", "qffl"], "fedavg")["qffl"]
    Look(colour='#0072B2', dark='#1A83C6', dash='dash', symbol='square')
    """
    chosen, number = {}, 0
    for label in labels:
        if label == reference:
            chosen[label] = Look(REFERENCE["light"], REFERENCE["dark"], DASHES[0], SYMBOLS[0])
            continue
        place = number % len(LINES["light"])
        # a colour repeats with another dash and symbol
        turn = number + 1 + number // len(LINES["light"])
        dash, symbol = DASHES[turn % len(DASHES)], SYMBOLS[turn % len(SYMBOLS)]
        chosen[label] = Look(LINES["light"][place], LINES["dark"][place], dash, symbol)
        number += 1
    return chosen


def graph_objects() -> Any:
    """Return ``plotly.graph_objects``, or raise an error that says how to install it."""
    try:
        return import_module("plotly.graph_objects")
    except ImportError:
        raise ImportError(
            "figures need plotly: pip install plotly (extra: evenhand[plots])"
        ) from None


def plot_partition(
    federation: Federation,
    by: str = "label",
    most: int = 100,
    sort: bool = False,
    training_only: bool = False,
) -> Any:
    """Draw a bar per client with its samples of each class or group; returns a plotly Figure.

    Args:
        federation: the data to show.
        by: "label" or "group".
        most: show at most this many clients, evenly picked.
        sort: show the largest clients first instead of the federation's order.
        training_only: count only training samples.
    """
    go = graph_objects()
    require_whole("most", most, 1)
    known, counts = federation.balance(by, "train" if training_only else None)  # (n, K)
    order = (
        counts.sum(1).argsort(descending=True, stable=True)
        if sort
        else torch.arange(federation.clients)
    )
    shown = min(most, federation.clients)
    order = order[
        torch.linspace(0, federation.clients - 1, shown, dtype=torch.float64).round().long()
    ]
    counts, names, colours, hatches = _legible(counts[order], known)
    share = counts / counts.sum(1, keepdim=True).clamp(min=1)
    clients = [federation.name(int(client)) for client in order]

    figure = go.Figure()
    for code, name in enumerate(names):
        figure.add_bar(
            name=shortened(name),
            x=counts[:, code].tolist(),
            y=list(range(shown)),
            orientation="h",
            marker={
                "color": colours[code],
                "pattern": {"shape": hatches[code], "fgcolor": "white", "solidity": 0.35},
                "line": {"width": 0},
            },
            customdata=[
                [client, name, f"{part:.1%}"]
                for client, part in zip(clients, share[:, code].tolist(), strict=True)
            ],
            hovertemplate=(
                f"client %{{customdata[0]}}<br>{by} %{{customdata[1]}}: %{{x}} samples,"
                " %{customdata[2]}<extra></extra>"
            ),
        )
    what = "training samples" if training_only else "samples"
    some = (
        f"{shown} of {federation.clients} clients"
        if shown < federation.clients
        else f"{shown} client{'s' * (shown > 1)}"
    )
    pitch = 28 if shown <= 20 else max(13, 28 - (shown - 20) // 2)  # pixels from bar to bar
    figure.update_layout(
        barmode="stack",
        bargap=0.25 if shown <= 20 else 0.15,
        title={
            "text": f"{what.capitalize()} per client, by {by}<br>"
            f"<sup>{some}{', largest first' * sort}</sup>"
        },
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
        ticktext=[shortened(client) for client in clients],
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
    """Write a figure to a file: a self-contained .html page, or a .png or .svg image (needs
    kaleido)."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind == ".html":
        write_atomic(path, figure.to_html(include_plotlyjs=True, full_html=True).encode())
        return path
    require(
        kind in (".png", ".svg"),
        "a figure's file name must end in .html, .png or .svg, got {!r}",
        path.name,
    )
    with _drawing(path.name):
        content = figure.to_image(format=kind[1:], scale=SCALE[kind])
    write_atomic(path, content)
    return path


def save_figures(figures: Mapping[Path, Any]) -> list[Path]:
    """Write figures to files that all end in .png or all in .svg; one browser draws them all."""
    if not figures:
        return []
    kind = next(iter(figures)).suffix.lower()
    known = kind in SCALE and all(path.suffix.lower() == kind for path in figures)
    require(
        known,
        "figures' file names must all end in .png or all in .svg, got {}",
        ", ".join(path.name for path in figures),
    )
    with tempfile.TemporaryDirectory() as drawn:
        files = [Path(drawn) / f"{place}{kind}" for place in range(len(figures))]
        with _drawing(next(iter(figures)).name):
            import_module("plotly.io").write_images(
                fig=list(figures.values()), file=files, scale=SCALE[kind]
            )
        for path, file in zip(figures, files, strict=True):
            write_atomic(path, file.read_bytes())
    return list(figures)


@contextmanager
def _drawing(name: str) -> Iterator[None]:
    """Turn kaleido's errors into one line that says what to do."""
    try:
        import_module("kaleido")
        yield
    except ImportError:
        raise ImportError(
            f"{name} needs kaleido: pip install kaleido (extra: evenhand[plots]), or save as .html"
        ) from None
    except Exception as error:  # kaleido drives a browser, which fails in ways of its own
        raise RuntimeError(
            f"{name} cannot be drawn ({first_line(error)}); install Chrome or Chromium for kaleido,"
            " or save as .html"
        ) from error


def _legible(
    counts: Tensor, names: Sequence[str]
) -> tuple[Tensor, list[str], list[str], list[str]]:
    """Return the classes that occur, with colours and hatches; if there are too many, merge the
    rarest."""
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
        return (
            torch.cat([counts[:, kept], rest[:, None]], 1),
            [*shown, f"{others} others"],
            [*colours, OTHERS],
            [*hatches, ""],
        )
    return counts[:, kept], shown, colours, hatches


def shortened(name: str, length: int = 24) -> str:
    """Shorten a name so that it fits beside an axis."""
    return name if len(name) <= length else name[: length - 1] + "…"
