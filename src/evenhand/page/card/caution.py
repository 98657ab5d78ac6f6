"""The sections of a card about privacy and limits."""

from __future__ import annotations

from evenhand.page import server
from evenhand.page.card.blocks import Block, Bullets, Paragraph, Section, Table
from evenhand.page.card.subject import Subject
from evenhand.studies.analysis.convergence import trend
from evenhand.studies.analysis.privacy_in_words import about_privacy, privacy_of
from evenhand.studies.analysis.writing import count_of

MODEL = " The model may reveal something about samples that it was trained on."
NO_NOISE = "evenhand added no differential privacy"


def privacy(subject: Subject) -> Section:
    """What the server learned of single clients, and what protected them."""
    study = subject.study
    row = server.row_of(study, subject.label)
    found = privacy_of(study, subject.label)
    hidden = study.trial(subject.label, study.seeds[0]).sample_privacy
    masked = server.masking(study)
    none = f"{masked} {NO_NOISE}." if masked else f"{NO_NOISE} and did not mask replies."
    blocks: list[Block] = [Paragraph(none + MODEL)]
    if found is not None or hidden is not None:
        said = [masked] if masked else []
        if found is not None:
            said += [about_privacy(study, subject.label), *found.lines[1:]]
        blocks = [Bullets([*said, *(() if hidden is None else hidden.lines)])]
    if not row:
        blocks.append(Paragraph("The run does not record what the server saw."))
        return Section("privacy", server.heading(study), blocks)
    if not subject.real:
        text = (
            "This was a simulation in one process, which held all samples. The table says what a"
            " server would see in a real federation."
        )
        blocks.append(Paragraph(text))
    headings = (
        "seen of one client in training",
        "seen in evaluation",
        "stored only by the client",
        "works with masked sums",
    )
    rows = [list(pair) for pair in zip(headings, row[1:], strict=True)]
    caption = f"What the server sees of a single client with {subject.label}."
    blocks.append(Table(["what", "answer"], rows, caption, words=True))
    return Section("privacy", server.heading(study), blocks)


def limits(subject: Subject) -> Section:
    """What the results do not show."""
    study, findings = subject.study, subject.findings
    part = study.measure.part
    lines = [
        f"The model was judged on {count_of(study.samples, f'{part} sample')} of"
        f" {findings.clients}. Other clients may be served worse."
    ]
    if part == "training":
        lines.append(
            "There are no test data: results are computed on the training samples and look better"
            " than they are."
        )
    found = trend(study, subject.label)
    if found is None:
        lines.append("Too few rounds were evaluated to say whether training had converged.")
    elif found.improving:
        lines.append(f"The model was still improving when training stopped after {subject.rounds}.")
    else:
        lines.append(
            f"Training had levelled off after {subject.rounds}: the loss no longer fell much"
            " in the last third of them."
        )
    if len(study.seeds) == 1 and not study.folds:
        lines.append("There is one training run, so the numbers do not show how runs vary.")
    lines += _few(subject)
    if study.tuned:
        lines.append("Settings were chosen on validation data of the same clients.")
    lines.append(
        "Not tested: clients that joined later, data that change over time, attacks, and groups of"
        " people that the data do not name."
    )
    return Section("limits", "Limits", [Bullets(lines)])


def _few(subject: Subject) -> list[str]:
    """Clients and groups with too few samples to judge."""
    study, least, lines = subject.study, subject.findings.least, []
    for by in ("client", "group"):
        names = study.names(by)
        few = (
            [
                name
                for name, size in zip(names, study.sizes(by).tolist(), strict=True)
                if size < least
            ]
            if len(names) > 1
            else []
        )
        if few:
            shown = ", ".join(few[:8]) + (f" and {len(few) - 8} more" if len(few) > 8 else "")
            verb = "has" if len(few) == 1 else "have"
            lines.append(
                f"{count_of(len(few), by).capitalize()} {verb} fewer than {least}"
                f" {study.measure.part} samples, too few to judge: {shown}."
            )
    return lines
