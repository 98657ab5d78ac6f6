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
    spec, name = subject.spec, subject.label
    directory = str(subject.directory)
    named = spec.data.get("name") not in (PYTHON, NODES) and spec.model.get("name") in MODELS
    client = ""
    names = subject.study.names("client")
    if subject.personal and names:
        client = names[0]
    lines = ["import evenhand as eh", "", f"study = eh.load({_quoted(directory)})"]
    seed = "" if len(subject.study.seeds) == 1 else f", seed={subject.trial.seed}"
    lines.append(f"trial = study.trial({_quoted(name)}{seed})")
    own = f"{_quoted(client)}, " if client else ""
    if named:
        lines += [
            f"spec = study.specs[{subject.place}]",
            "federation = spec.build_data()",
            f"network = trial.module({own}module=spec.build_model(federation))",
        ]
    else:
        lines.append(f"network = trial.module({own}module=...)  # the network that was trained")
    table = subject.encoding is not None
    if table:
        lines += [
            'x = federation.encoding.transform(eh.read_table("new.csv"))'
            if named
            else "x = ...  # new rows, encoded by encoding.json",
        ]
    else:
        lines.append("x = ...  # new samples, in the form of those that it was trained on")
    lines.append("outputs = network(x)")
    blocks: list[Block] = [Code("\n".join(lines), "python")]
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
    if named and not subject.study.folds:
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
