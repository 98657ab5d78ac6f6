"""Write the model card of a method: Markdown and HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from evenhand.errors import RunError, require
from evenhand.files import write_atomic
from evenhand.page.card import blocks
from evenhand.page.card.caution import limits, privacy
from evenhand.page.card.metadata import front_matter
from evenhand.page.card.metrics import other_metrics
from evenhand.page.card.results import by_client, by_group, compared, overall, thresholds
from evenhand.page.card.subject import Subject
from evenhand.page.card.training import data, method, purpose, settings, summary
from evenhand.page.card.usage import again, load
from evenhand.page.plain import plain_page
from evenhand.studies.analysis.writing import count_of
from evenhand.studies.exporting import study_of
from evenhand.studies.findings import Findings, analyse, conclude
from evenhand.studies.runs.directories import load_spec
from evenhand.studies.runs.study import Study

SECTIONS = (
    *(purpose, overall, by_client, by_group, other_metrics, compared, thresholds),
    *(data, method, settings, privacy, limits, load, again),
)
MARKDOWN, HTML = "README.md", "card.html"
SUFFIXES = {".md": MARKDOWN, ".html": HTML, ".htm": HTML}


class Card(NamedTuple):
    """The written files and the findings behind them."""

    files: list[Path]
    method: str
    findings: Findings


def card(
    run: str | Path | Study | Findings,
    out: str | Path = "card",
    *,
    method: str | None = None,
    purpose: str = "",
    license: str = "",
    **numbers: Any,
) -> Card:
    """Write the model card of a trained model: what it is for, data, method, results with
    intervals, privacy, limits, and how to use it.

    Args:
        run: the directory of a run, comparison or sweep; or the result of :func:`evenhand.load`,
            :func:`evenhand.compare` or :func:`evenhand.sweep`.
        out: a directory for README.md (Markdown with the front matter of a model hub) and
            card.html; or a file, .md or .html, for one of them.
        method: the label of the method; not needed if there is one.
        purpose: what the model is for, in a sentence or two.
        license: of the model, such as "apache-2.0".

    The other keywords are those of :func:`evenhand.analyse`: over, level, least, positive, measure.
    """
    path = Path(out)
    require(
        path.suffix in SUFFIXES or path.is_dir() or not (path.suffix or path.exists()),
        "the file of a card must end in .md or .html, got {}; or give a directory",
        repr(path.name),
    )
    subject = subject_of(run, method, purpose, license, **numbers)
    one = SUFFIXES.get(path.suffix) if not path.is_dir() else None
    places = {one: path} if one else {name: path / name for name in (MARKDOWN, HTML)}
    for name, file in places.items():
        write_atomic(file, (markdown if name == MARKDOWN else html)(subject).encode())
    return Card(list(places.values()), subject.label, subject.findings)


def subject_of(
    run: str | Path | Study | Findings,
    method: str | None = None,
    purpose: str = "",
    license: str = "",
    **numbers: Any,
) -> Subject:
    """Read and analyse a run, and choose a method that has results."""
    study = study_of(run)
    label = study.chosen(method).method.label
    if isinstance(run, Findings):
        findings = run
    elif isinstance(run, Study):
        findings = analyse(study, **numbers)
    else:
        findings = conclude(study, load_spec(Path(run)), **numbers)
        if label not in findings.study.trained:  # a point of a sweep that was not chosen
            findings = analyse(study, **numbers)
    if label not in findings.study.labels:
        raise RunError(f"{label} diverged, so there is no model to describe; train it again")
    return Subject(findings, label, " ".join(purpose.split()), license.strip())


def markdown(subject: Subject) -> str:
    """The card as Markdown, front matter first."""
    parts = [f"# {blocks.escaped(f'Model card: {subject.title}')}"]
    parts.append(" ".join(map(blocks.escaped, summary(subject))))
    for make in SECTIONS:
        section = make(subject)
        if section.blocks:
            parts.append(f"## {section.heading}\n\n{blocks.markdown(section.blocks)}")
    return f"{front_matter(subject)}\n" + "\n\n".join(parts) + "\n"


def html(subject: Subject) -> str:
    """The card as one HTML file."""
    study = subject.study
    facts = [
        count_of(study.clients, "client"),
        count_of(len(study.names("group")), "group") if len(study.names("group")) > 1 else "",
        count_of(study.samples, f"{study.measure.part} sample"),
        subject.rounds,
        count_of(len(study.seeds), "training run") if not study.folds else f"{study.folds} folds",
    ]
    made = [make(subject) for make in SECTIONS]
    return plain_page(
        "evenhand card",
        f"Model card: {subject.title}",
        facts,
        [blocks.unbroken(line) for line in summary(subject)],
        [(key, heading, blocks.html(parts)) for key, heading, parts in made],
        "card.css",
    )
