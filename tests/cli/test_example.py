"""The example that ``evenhand run`` trains without arguments, and the short form of its results."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evenhand.studies.findings import analyse
from evenhand.studies.specs.spec import Spec
from tests.support.commands import invoke
from tests.support.studies import NASTY, make_study

Found = dict[str, Any]
FAIR = ("qffl", "afl", "fedminmax")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What ``evenhand run`` finds."""
    out = tmp_path_factory.mktemp("example") / "digits"
    code, text, err = invoke("run", "--json", "--out", str(out))
    assert (code, err) == (0, "")
    found: Found = json.loads(text)
    return found


def test_the_example_has_converged_and_names_a_significant_gain(example: Found) -> None:
    answer = " ".join(example["answer"])
    assert "still improving" not in answer
    assert "diverged" not in answer
    assert not answer.startswith("So far")
    gain = re.search(r"raises the accuracy of .*? by ([\d.]+) points \[([\d.]+), [\d.]+\]", answer)
    assert gain is not None, answer
    assert float(gain[1]) > 5
    assert float(gain[2]) > 0  # the interval excludes zero
    assert example["next"].endswith("--seeds 5")  # and not: train longer, or tune


def test_the_answer_of_the_example_names_who_pays(example: Found) -> None:
    rows = [row for row in example["ledger"] if (row["by"], row["against"]) == ("group", "fedavg")]
    verdicts = {(row["method"], row["name"]): row["verdict"] for row in rows}
    assert verdicts["afl", "rotated"] == "gains"
    assert verdicts["afl", "upright"] == "harmed"
    assert re.search(r"afl lowers the accuracy of the upright group", " ".join(example["answer"]))


def test_every_method_of_the_example_has_the_same_solver(example: Found) -> None:
    spec = Spec.load(Path(example["directory"]) / "spec.toml")
    assert [method.name for method in spec.methods] == ["fedavg", *FAIR]
    assert not any(method.local for method in spec.methods)


@pytest.mark.parametrize("clients", [4, 30])
@pytest.mark.parametrize("regression", [False, True])
def test_no_number_of_the_short_form_is_folded_or_cut_at_80_columns(
    clients: int, regression: bool
) -> None:
    labels = {"qffl": NASTY[-1], "afl": "a label of [bold]several[/] words"}
    study = make_study(clients=clients, regression=regression, labels=labels)
    findings = analyse(study)
    text = io.StringIO()
    findings.show(console=Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text.getvalue()
    assert text.getvalue().replace("\n", "").count("n") >= 200  # a long label is folded
    number, count = r" +\d[\d.]*[ ↑↓]?", 5 if clients == 30 else 4
    table = lines[next(i for i, line in enumerate(lines) if line.startswith(" method")) :]
    rows = [line for line in table if re.search(rf"({number}){{{count}}} *$", line)]
    assert len(rows) == len(study.labels)
    # digits stand below each other, with and without marks
    ends = {tuple(match.end() for match in re.finditer(r"\.\d+", row)) for row in rows}
    assert len(ends) == 1
    assert str(findings).startswith(text.getvalue().rstrip())
