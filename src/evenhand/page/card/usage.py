"""The sections of a card with code: how to load the model, and how to train it again."""

from __future__ import annotations

import json
import shlex

from evenhand.models import MODELS
from evenhand.page.card.blocks import Block, Code, Paragraph, Section
from evenhand.page.card.subject import Subject
from evenhand.page.reproduce import recipes
from evenhand.studies.specs.spec import NODES
from evenhand.training.about import PYTHON
from evenhand.training.adapters import ADAPTER


def load(subject: Subject) -> Section:
    """Code that loads the model and predicts."""
    spec, name, study = subject.spec, subject.label, subject.study
    named = spec.data.get("name") not in (PYTHON, NODES) and spec.model.get("name") in MODELS
    names = study.names("client")
    client = names[0] if subject.personal and names else ""
    directory = str(subject.trial.folder.parent if study.folds else subject.directory)
    chosen = [_quoted(name)]
    chosen += [f"seed={subject.trial.seed}"] if len(study.seeds) > 1 and not study.folds else []
    chosen += [] if named else ["module=..."]
    rows = 'eh.read_table("new.csv")'
    if subject.encoding is None:
        rows = "...  # new samples, in the form of those that it was trained on"
    lines = [
        "import evenhand as eh",
        "",
        f"run = eh.load({_quoted(directory)})",
        f"model = run.model({', '.join(chosen)})"
        + "  # the network that was trained" * (not named),
        f"rows = {rows}",
        f"predictions = model.predict(rows{f', client={_quoted(client)}' if client else ''})",
        f"network = model.module({_quoted(client) if client else ''})  # a torch.nn.Module",
    ]
    blocks: list[Block] = [Code("\n".join(lines), "python")]
    if study.folds:
        blocks.append(
            Paragraph(
                "A cross-validation has a model for each fold. This one is of the first fold."
            )
        )
    if client:
        blocks.append(Paragraph("Replace the client's name by the one whose model you want."))
    adapter = subject.trial.folder / ADAPTER
    if adapter.is_dir():
        shared = "the shared adapter" if subject.personal else "the adapter"
        code = (
            "from peft import PeftModel\n\n"
            "base = ...  # the model that was adapted\n"
            f"network = PeftModel.from_pretrained(base, {_quoted(str(adapter))})"
        )
        blocks += [Paragraph(f"Or load {shared} with PEFT:"), Code(code, "python")]
    if named and not study.folds:
        export = ["evenhand", "export", directory, "--method", name]
        export += ["--client", client] if client else []
        blocks += [
            Paragraph("Or write a file that runs without evenhand:"),
            Code(shlex.join([*export, "--out", "model.onnx"]), "sh"),
        ]
    return Section("load", "How to load and use it", blocks)


def again(subject: Subject) -> Section:
    """How to train it again."""
    blocks: list[Block] = []
    for how, command, file, spec in recipes(subject.study):
        blocks.append(Paragraph(how))
        if command:
            blocks.append(Code(command, "sh"))
        blocks.append(Code(spec, "toml", file))
    return Section("reproduce", "How to reproduce", blocks)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
