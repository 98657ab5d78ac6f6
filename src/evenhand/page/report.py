"""Write the report on runs: read, analyse, draw and write."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from evenhand.data.plots import graph_objects, save_figures
from evenhand.errors import RunError, require_choice
from evenhand.files import write_atomic
from evenhand.page import panels
from evenhand.page.document import chapters, page
from evenhand.page.exports import save_tables
from evenhand.page.panels.panel import Panel
from evenhand.page.panels.sweeps import ALL_POINTS
from evenhand.studies.analysis.answer import MOST
from evenhand.studies.findings import NUMBERS, Findings, analyse, conclude
from evenhand.studies.runs.directories import load_spec
from evenhand.studies.runs.study import Study


class Report(NamedTuple):
    """The written files and the findings behind them."""

    page: Path
    figures: list[Path]
    findings: Findings  # of the first study
    tables: list[Path]
    studies: list[Findings]


def report(
    runs: str | Path | Study | Findings | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    title: str | None = None,
    figures: str | Path | None = None,
    figure_format: str = "png",
    tables: str | Path | None = None,
    **numbers: Any,
) -> Report:
    """Write a report on runs, one HTML file that opens offline: who gains and who loses, with
    intervals.

    Args:
        runs: the directory of a run, comparison or sweep, or several: runs on the same data are
            combined, runs on other data get their own section. Or the result of
            :func:`evenhand.load`, :func:`evenhand.compare` or :func:`evenhand.sweep`.
        figures: a directory to which every figure is also written as a file.
        figure_format: "png" or "svg".
        tables: a directory to which tables are also written as CSV and LaTeX.

    The other keywords are those of :func:`evenhand.analyse`: over, level, least, positive.
    """
    require_choice("figure_format", figure_format, ("png", "svg"))
    graph_objects()  # so that a missing package shows before the work is done
    if isinstance(runs, Findings):
        if numbers:
            raise TypeError(f"findings are already analysed; leave out {', '.join(numbers)}")
        studies = [(runs, "")]
    elif isinstance(runs, Study):
        studies = [(analyse(runs, **numbers), "")]
    else:
        paths = [Path(path) for path in ([runs] if isinstance(runs, str | Path) else runs)]
        studies = [
            (
                conclude(study, load_spec(of[0]), **numbers)
                if len(of) == 1
                else analyse(study, **numbers),
                _command(of, numbers),
            )
            for study, of in _studies(paths)
        ]
    whole = [(_with_all_points(findings), command) for findings, command in studies]
    drawn = [list(panels.all_panels(findings)) for findings, _ in whole]
    written = Path(out)
    write_atomic(written, page(chapters(whole, drawn), title).encode())
    pictures = [] if figures is None else save_pictures(drawn, Path(figures), figure_format)
    listed = [] if tables is None else save_tables([findings for findings, _ in whole], tables)
    return Report(written, pictures, whole[0][0], listed, [findings for findings, _ in whole])


def _studies(paths: Sequence[Path]) -> list[tuple[Study, list[Path]]]:
    """Combine runs on the same data into one study."""
    found: list[tuple[Study, list[Path]]] = []
    for path in paths:
        alone = Study.load([path])
        for place, (_, of) in enumerate(found):
            try:
                found[place] = (Study.load([*of, path]), [*of, path])
                break
            except RunError:  # other data, or another measure
                continue
        else:
            found.append((alone, [path]))
    return found


def _with_all_points(findings: Findings) -> Findings:
    """For a sweep, findings about all points with sentences about the chosen one only, as points
    must not be chosen on test data."""
    if findings.sweep is None:
        return findings
    reason = f"Chosen on validation data: {findings.sweep.reason}"
    everything = findings.of(findings.sweep.study)
    first = replace(findings.answer, sentences=(reason, *findings.answer.sentences)[:MOST])
    told = [*findings.answer.sentences[MOST - 1 :], *findings.sentences, ALL_POINTS]
    return replace(everything, answer=first, sentences=told, sweep=findings.sweep)


def save_pictures(
    drawn: Sequence[Sequence[Panel]], directory: Path, figure_format: str
) -> list[Path]:
    """Every figure as a file."""
    pictures: dict[Path, Any] = {}
    for number, panels_of_one in enumerate(drawn, start=1):
        study = f"study-{number}-" if len(drawn) > 1 else ""
        for panel in panels_of_one:
            for variant in panel.variants:
                several = f"-{variant.name}" if len(panel.variants) > 1 else ""
                name = re.sub(r"[^\w.=+-]+", "-", f"{study}{panel.key}{several}").strip("-")
                path, count = directory / f"{name}.{figure_format}", 1
                while (
                    path in pictures
                ):  # names that differ only in characters a file name cannot have
                    count += 1
                    path = directory / f"{name}-{count}.{figure_format}"
                pictures[path] = variant.figure
    return save_figures(pictures)


def _command(paths: Sequence[Path], numbers: Mapping[str, Any]) -> str:
    """The command that makes the same report."""
    given = [
        part
        for name, usual in NUMBERS.items()
        if (value := numbers.get(name, usual)) != usual
        for part in (f"--{name}", f"{value:g}" if isinstance(value, float) else str(value))
    ]
    return shlex.join(["evenhand", "report", *map(str, paths), *given])
