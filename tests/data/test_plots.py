"""The picture of a partition: bars are the counts, kinds can be told apart, files are whole."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand.data.deal import deal
from evenhand.data.plots import COLOURS, plot_partition, save_figure
from evenhand.data.pool import Pool

pytest.importorskip("plotly", reason="figures need plotly")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def pool_of(samples: int = 60, classes: int = 3, **more: Any) -> Pool:
    number = torch.arange(samples)
    return Pool(
        torch.zeros(samples, 1),
        number % classes,
        group=number // 3 % 2,
        group_names=("women", "men"),
        **more,
    )


def table(figure: Any) -> dict[str, list[int]]:
    return {bar.name: list(bar.x) for bar in figure.data}


def test_bars_are_the_counts_of_labels_and_groups() -> None:
    owner = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)
    pool = pool_of(label_names=("red", "green", "blue"), client=owner, client_names=("a", "b", "c"))
    federation = deal(pool, None, {"val": 0.1, "test": 0.2})
    assert table(plot_partition(federation)) == {
        "red": [10, 7, 3],
        "green": [10, 7, 3],
        "blue": [10, 6, 4],
    }
    assert table(plot_partition(federation, by="group")) == {
        "women": [15, 11, 4],
        "men": [15, 9, 6],
    }
    training = table(plot_partition(federation, by="group", training_only=True))
    assert [
        sum(column) for column in zip(*training.values(), strict=True)
    ] == federation.train.sizes.tolist()
    figure = plot_partition(federation)
    assert list(figure.layout.yaxis.ticktext) == ["a", "b", "c"]
    # the first client at the top
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]
    assert "Samples per client, by label" in figure.layout.title.text
    assert list(figure.data[0].customdata[1]) == ["b", "red", "35.0%"]


def test_clients_can_be_sorted_by_size_and_are_picked_evenly_where_there_are_many() -> None:
    owner = torch.arange(300) % 30
    owner[:30] = torch.arange(30) // 3  # the first ten have more
    federation = deal(pool_of(300, client=owner), None, {"test": 0.2})
    few = plot_partition(federation, most=4)
    assert list(few.layout.yaxis.ticktext) == ["0", "10", "19", "29"]
    assert "4 of 30 clients" in few.layout.title.text
    ordered = plot_partition(federation, sort=True)
    sizes = [sum(column) for column in zip(*table(ordered).values(), strict=True)]
    assert sizes == sorted(sizes, reverse=True)
    assert sorted(ordered.layout.yaxis.ticktext) == sorted(str(k) for k in range(30))
    assert "largest first" in ordered.layout.title.text


def test_looks_differ_for_up_to_32_kinds_and_the_rarest_of_more_are_one() -> None:
    federation = deal(pool_of(320, classes=32), "iid", {"test": 0.2}, clients=2)
    looks = {
        (bar.marker.color, bar.marker.pattern.shape) for bar in plot_partition(federation).data
    }
    assert len(looks) == 32
    rare = torch.cat([torch.arange(38).repeat_interleave(4), torch.tensor([38, 39])])
    many = deal(Pool(torch.zeros(154, 1), rare), "iid", {"test": 0.2}, clients=2)
    bars = table(plot_partition(many))
    assert len(bars) == 32
    assert sum(bars["9 others"]) == 7 * 4 + 2
    assert sum(map(sum, bars.values())) == 154


def test_ten_classes_start_with_the_colours_of_okabe_and_ito() -> None:
    federation = deal(pool_of(100, classes=10), "iid", {"test": 0.2}, clients=2)
    bars = plot_partition(federation).data
    assert [bar.marker.color for bar in bars[:8]] == list(COLOURS)
    assert [bar.marker.pattern.shape for bar in bars] == [""] * 8 + ["/"] * 2


def test_classes_that_nobody_has_are_left_out_and_long_names_are_cut() -> None:
    pool = pool_of(label_names=("red", "green", "a name that would not fit beside a bar"))
    federation = deal(pool, {"name": "by_class", "classes": [0, 2]}, {"test": 0.2})
    figure = plot_partition(federation)
    assert list(table(figure)) == ["red", "a name that would not f…"]
    assert list(figure.layout.yaxis.ticktext)[1] == "a name that would not f…"
    assert figure.data[1].customdata[1][0] == "a name that would not fit beside a bar"


def test_data_without_classes_or_groups_say_what_to_plot_instead() -> None:
    targets = deal(
        Pool(torch.zeros(10, 1), torch.linspace(0, 1, 10)), "iid", {"test": 0.2}, clients=2
    )
    with pytest.raises(
        ValueError, match='labels of a regression cannot be counted; use by="group"'
    ):
        plot_partition(targets)
    with pytest.raises(ValueError, match='these data have no groups; use by="label"'):
        plot_partition(targets, by="group")
    with pytest.raises(ValueError, match='by must be "label" or "group"'):
        plot_partition(targets, by="team")
    with pytest.raises(ValueError, match="most must be a whole number >= 1, got 0"):
        plot_partition(targets, most=0)


def test_without_plotly_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = deal(pool_of(), "iid", {"test": 0.2}, clients=2)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(
        ImportError, match=r"figures need plotly: pip install plotly \(extra: evenhand\[plots\]\)"
    ):
        plot_partition(federation)


def test_a_page_is_self_contained_and_unknown_kinds_are_refused(tmp_path: Path) -> None:
    figure = plot_partition(deal(pool_of(), "iid", {"test": 0.2}, clients=2))
    page = save_figure(figure, tmp_path / "deep" / "picture.html").read_text()
    assert "Samples per client" in page
    assert "<script src=" not in page  # nothing is fetched
    with pytest.raises(
        ValueError, match=r"a figure's file name must end in .html, .png or .svg, got 'picture.pdf'"
    ):
        save_figure(figure, tmp_path / "picture.pdf")


def test_pictures_without_kaleido_or_browser_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = plot_partition(deal(pool_of(), "iid", {"test": 0.2}, clients=2))

    def broken(**settings: Any) -> bytes:
        raise OSError("no browser here\nand a long story")

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "kaleido", None)
        with pytest.raises(
            ImportError,
            match=r"picture.png needs kaleido: pip install kaleido \(extra: evenhand\[plots\]\), or save as .html",
        ):
            save_figure(figure, tmp_path / "picture.png")
    pytest.importorskip("kaleido", reason="drawing needs kaleido")
    monkeypatch.setattr(type(figure), "to_image", lambda self, **settings: broken(**settings))
    with pytest.raises(
        RuntimeError,
        match=r"picture.png cannot be drawn \(no browser here\); install Chrome or Chromium for kaleido",
    ):
        save_figure(figure, tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())


def test_png_and_svg_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("kaleido", reason="drawing needs kaleido")
    if not os.environ.get("BROWSER_PATH") and not any(map(shutil.which, BROWSERS)):
        pytest.skip("drawing needs Chrome or Chromium")
    figure = plot_partition(deal(pool_of(), "iid", {"test": 0.2}, clients=3))
    assert save_figure(figure, tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in save_figure(figure, tmp_path / "picture.svg").read_text()
