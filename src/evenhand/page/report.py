"""From runs to a page: read, analysed, drawn and written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from evenhand.data.plots import graph_objects, save_figures
from evenhand.errors import require_choice
from evenhand.files import write_atomic
from evenhand.page import panels
from evenhand.page.document import page
from evenhand.page.panels.panel import Panel
from evenhand.studies.directories import load_spec
from evenhand.studies.findings import NUMBERS, Findings, analyse, conclude
from evenhand.studies.study import Study


class Report(NamedTuple):
    """What was written, and what it says."""

    page: Path
    figures: list[Path]
    findings: Findings


def report(
    runs: str | Path | Study | Findings | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    title: str | None = None,
    figures: str | Path | None = None,
    figure_format: str = "png",
    **numbers: Any,
) -> Report:
    """Write a page about runs: who gains, who pays, with intervals. It is one HTML file that needs
    no network.

    Args:
        runs: the directory of a run, comparison or sweep, or several with the same data, whose
            methods and seeds are put together; or what :func:`evenhand.load`,
            :func:`evenhand.compare` or :func:`evenhand.sweep` gave.
        figures: a directory; every figure is then written there, too, as a file of its own.
        figure_format: "png" or "svg".

    The other keywords are those of :func:`evenhand.analyse`: over, level, least, positive.
    """
    require_choice("figure_format", figure_format, ("png", "svg"))
    graph_objects()  # whatever is missing shows before the work is done
    command = ""
    if isinstance(runs, Findings):
        if numbers:
            raise TypeError(f"the findings have their own {', '.join(numbers)}; leave it out here")
        findings = runs
    elif isinstance(runs, Study):
        findings = analyse(runs, **numbers)
    else:
        paths = [Path(path) for path in ([runs] if isinstance(runs, str | Path) else runs)]
        study = Study.load(paths)
        alone = len(paths) == 1
        findings = (
            conclude(study, load_spec(paths[0]), **numbers) if alone else analyse(study, **numbers)
        )
        command = _command(paths, numbers)
    whole = _with_all_points(findings)
    drawn = list(panels.all_panels(whole))
    written = Path(out)
    write_atomic(written, page(whole, drawn, title, command).encode())
    pictures = [] if figures is None else save_pictures(drawn, Path(figures), figure_format)
    return Report(written, pictures, whole)


def _with_all_points(findings: Findings) -> Findings:
    """Of a sweep, findings about all points, in words about the chosen one alone: the others are
    not to be chosen by test data."""
    if findings.sweep is None:
        return findings
    warning = (
        "Below, all points are shown on test data; to choose one of them by these numbers would"
        " make it look better than it is."
    )
    reason = f"Chosen on validation data: {findings.sweep.reason}"
    everything = findings.of(findings.sweep.study)
    return replace(everything, sentences=[reason, *findings.sentences, warning])


def save_pictures(drawn: Sequence[Panel], directory: Path, figure_format: str) -> list[Path]:
    """Every figure as a file."""
    pictures: dict[Path, Any] = {}
    for panel in drawn:
        for variant in panel.variants:
            several = f"-{variant.name}" if len(panel.variants) > 1 else ""
            name = re.sub(r"[^\w.=+-]+", "-", f"{panel.key}{several}").strip("-")
            path, number = directory / f"{name}.{figure_format}", 1
            while path in pictures:  # names that differ only in what cannot be in a file's name
                number += 1
                path = directory / f"{name}-{number}.{figure_format}"
            pictures[path] = variant.figure
    return save_figures(pictures)


def _command(paths: Sequence[Path], numbers: Mapping[str, Any]) -> str:
    """The command that makes the same page."""
    given = [
        part
        for name, usual in NUMBERS.items()
        if (value := numbers.get(name, usual)) != usual
        for part in (f"--{name}", f"{value:g}" if isinstance(value, float) else str(value))
    ]
    return shlex.join(["evenhand", "report", *map(str, paths), *given])
