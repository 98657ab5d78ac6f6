"""Auditing predictions that are there already."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from evenhand.data.storage.file import File, data_root, find
from evenhand.data.storage.file import read as read_file
from evenhand.data.tables.files import parse
from evenhand.errors import DataError
from evenhand.metrics import parity
from evenhand.metrics.counts import Counts
from evenhand.studies.audits.audit import Audit
from evenhand.studies.audits.counting import count_predictions, read_counts

COMPAS = find(File("compas_two_years.csv.gz"), [data_root() / "compas"])
Call = Callable[..., tuple[int, str, str]]


def predictions() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    bank = np.repeat(["north", "south", "tiny"], [120, 80, 5])
    sex = rng.choice(["f", "m"], 205)
    paid = rng.choice(["no", "yes"], 205)
    guess = np.where(
        rng.random(205) < np.where(sex == "m", 0.9, 0.7), paid, np.where(paid == "yes", "no", "yes")
    ).astype(object)
    guess[:3] = None
    return pd.DataFrame({"bank": bank, "sex": sex, "paid": paid, "guess": guess})


# of an audit without scores
TABLES = (
    *("clients", "groups", "rates", "summary", "gaps", "local_gaps", "pairs", "ratios", "counts"),
)
ARGUMENTS = ("--client", "bank", "--label", "paid", "--prediction", "guess", "--group", "sex")


def test_accuracies_of_clients_and_groups_are_those_of_pandas() -> None:
    table = predictions()
    judged = Audit(count_predictions(table, "paid", "guess", "bank", "sex"))
    right = table["paid"] == table["guess"]
    for column, rows in (("bank", judged.clients()), ("sex", judged.groups())):
        expected = right.groupby(table[column]).agg(["mean", "size"])
        assert [row["name"] for row in rows] == expected.index.tolist()
        assert [row["accuracy"] for row in rows] == pytest.approx(expected["mean"].tolist())
        assert [row["samples"] for row in rows] == expected["size"].tolist()
        assert all(
            row["low"] < row["accuracy"] < row["high"] or row["accuracy"] in (0, 1) for row in rows
        )
    assert [row["small"] for row in judged.clients()] == [False, False, True]
    positive = table["guess"] == "yes"
    assert [row["selection rate"] for row in judged.groups()] == pytest.approx(
        positive.groupby(table["sex"]).mean().tolist()
    )
    truth = table["paid"] == "yes"
    found = [row["true-positive rate"] for row in judged.groups()]
    assert found == pytest.approx([positive[truth & (table["sex"] == sex)].mean() for sex in "fm"])


def test_gaps_and_spreads_come_with_intervals_that_hold_them() -> None:
    judged = Audit(count_predictions(predictions(), "paid", "guess", "bank", "sex"), draws=300)
    for name, found in (judged.across_clients() | judged.across_groups()).items():
        assert found.low <= found.high, name
    gap = judged.across_groups()["accuracy parity"]
    values = [row["accuracy"] for row in judged.groups()]
    assert gap.value == pytest.approx(max(values) - min(values))
    assert judged.across_clients()["pooled"].value == pytest.approx(
        (predictions()["paid"] == predictions()["guess"]).mean()
    )


def test_gaps_are_those_of_the_parities() -> None:
    counts = count_predictions(predictions(), "paid", "guess", "bank", "sex")
    found = Audit(counts, draws=10).across_groups()
    for name in (
        "demographic parity",
        "equal opportunity",
        "false-positive parity",
        "equalised odds",
        "predictive parity",
    ):
        function = getattr(parity, name.replace(" ", "_").replace("-", "_"))
        assert found[name].value == pytest.approx(float(function(counts.by_group, 1))), name
    assert found["accuracy parity"].value == pytest.approx(
        float(parity.accuracy_parity(counts.by_group))
    )


def test_counts_give_the_same_numbers_as_predictions(call: Call, tmp_path: Path) -> None:
    predictions().to_csv("predictions.csv", index=False)
    code, out, _ = call(
        "audit", "predictions.csv", *ARGUMENTS, "--out", "audit", "--json", "--draws", "200"
    )
    assert code == 0
    assert {path.name for path in (tmp_path / "audit").iterdir()} == {
        *(f"{name}.csv" for name in TABLES),
        "provenance.json",
    }
    code, again, _ = call("audit", "audit/counts.csv", "--counts", "--json", "--draws", "200")
    assert code == 0
    assert json.loads(again) == json.loads(out)


def test_an_audit_in_python_is_that_of_the_command(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # which some test runners set
    table = predictions()
    table.to_csv("predictions.csv", index=False)
    code, out, _ = call("audit", "predictions.csv", *ARGUMENTS, "--draws", "100", "--least", "6")
    assert code == 0
    columns = {"label": "paid", "prediction": "guess", "client": "bank", "group": "sex"}
    judged = eh.audit(table, **columns, draws=100, least=6)
    shown = [[line.rstrip() for line in text.rstrip().splitlines()] for text in (str(judged), out)]
    assert shown[0] == shown[1]
    assert repr(judged) == str(judged)
    for other in (
        eh.audit("predictions.csv", **columns, draws=100, least=6),
        eh.audit(judged.counts, draws=100, least=6),
        eh.audit(judged.table("counts"), counts=True, draws=100, least=6),
    ):
        assert isinstance(other, eh.audit.Audit)
        assert other.tables() == judged.tables()
    code, _, _ = call("audit", "predictions.csv", *ARGUMENTS, "--draws", "100", "--out", "there")
    assert code == 0
    clients = pd.read_csv("there/clients.csv")
    assert judged.table("clients")["accuracy"].tolist() == clients["accuracy"].tolist()
    with pytest.raises(ValueError, match=r"give label and prediction \(or score\), or counts=True"):
        eh.audit(table, label="paid")
    with pytest.raises(ValueError, match="unknown table 'client'; did you mean 'clients'"):
        judged.table("client")


def test_what_the_module_had_is_still_reached_from_the_function() -> None:
    assert eh.audit.Audit is Audit
    assert eh.audit.count_predictions is count_predictions
    assert eh.audit.read_counts is read_counts


def test_groups_with_few_samples_are_left_out_of_gaps() -> None:
    table = pd.DataFrame(
        {
            "y": [1] * 20 + [0] * 20 + [1],
            "p": [1] * 20 + [0] * 10 + [1] * 10 + [0],
            "g": ["a"] * 20 + ["b"] * 20 + ["c"],
        }
    )
    counts = count_predictions(table, "y", "p", group="g")
    assert Audit(counts, least=2, draws=50).across_groups()[
        "accuracy parity"
    ].value == pytest.approx(0.5)
    assert Audit(counts, least=0, draws=50).across_groups()[
        "accuracy parity"
    ].value == pytest.approx(1.0)
    assert Audit(counts, least=21, draws=50).across_groups() == {}


def test_the_tables_are_printed_without_colour_codes(call: Call) -> None:
    predictions().to_csv("predictions.csv", index=False)
    code, out, err = call("audit", "predictions.csv", *ARGUMENTS, "--draws", "100")
    assert (code, err) == (0, "")
    assert (
        "205 samples, 3 without a prediction; 3 clients; labels no, yes; 95 % intervals over"
        " samples" in " ".join(out.split())
    )
    assert "\x1b" not in out
    assert all(
        word in out
        for word in (
            "worst client",
            "5 (few)",
            "demographic parity",
            "By sex, %; rates of label yes",
        )
    )


def test_quiet_prints_nothing_and_tables_come_in_the_formats_that_were_asked_for(
    call: Call, tmp_path: Path
) -> None:
    predictions().to_csv("predictions.csv", index=False)
    formats = ("--format", "csv", "--format", "parquet", "--format", "json")
    assert call(
        "audit",
        "predictions.csv",
        *ARGUMENTS,
        "--draws",
        "50",
        "--out",
        "audit",
        "--quiet",
        *formats,
    ) == (0, "", "")
    names = {
        "provenance.json",
        *(f"{name}.{kind}" for name in TABLES for kind in ("csv", "parquet", "json")),
    }
    assert {path.name for path in (tmp_path / "audit").iterdir()} == names
    clients = [
        pd.read_csv("audit/clients.csv").to_dict("records"),
        pd.read_parquet("audit/clients.parquet").to_dict("records"),
        json.loads(Path("audit/clients.json").read_text()),
    ]
    assert clients[0] == clients[1] == clients[2]
    code, out, err = call(
        "audit", "predictions.csv", *ARGUMENTS, "--draws", "50", "--quiet", "--json"
    )
    assert (code, err, json.loads(out)["samples"]) == (0, "", 205)
    code, out, err = call("audit", "nothing.csv", *ARGUMENTS, "--quiet")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_suppressed_clients_and_groups_have_no_numbers_anywhere(call: Call) -> None:
    table = predictions()
    table.loc[:2, "sex"] = "x"
    table.to_csv("predictions.csv", index=False)
    arguments = (
        "audit",
        "predictions.csv",
        *ARGUMENTS,
        "--draws",
        "50",
        "--suppress",
        "--out",
        "audit",
    )
    code, out, _ = call(*arguments)
    assert code == 0
    assert "tiny < 10 -" in " ".join(out.split())
    assert "1 client with fewer than 10 samples suppressed and excluded" in out
    _, text, _ = call(*arguments, "--json")
    numbers = json.loads(text)
    for rows, name in ((numbers["clients"], "tiny"), (numbers["groups"], "x")):
        (row,) = (row for row in rows if row["small"])
        assert row["name"] == name
        assert all(value is None for key, value in row.items() if key not in ("name", "small"))
    assert pd.read_csv("audit/clients.csv").set_index("name").loc["tiny"].drop("small").isna().all()
    counts = pd.read_csv("audit/counts.csv")
    assert set(counts["client"]) == {"north", "south"}
    assert set(counts["group"]) == {"f", "m"}
    large = table[table["bank"] != "tiny"]
    accuracies = (large["paid"] == large["guess"]).groupby(large["bank"]).mean()
    assert numbers["across_clients"]["mean"]["value"] == pytest.approx(accuracies.mean())
    assert numbers["across_clients"]["min"]["value"] == pytest.approx(accuracies.min())


def test_a_number_outside_of_its_interval_is_marked(call: Call) -> None:
    right = np.random.default_rng(1).random(3000) < 0.8
    table = pd.DataFrame({"c": np.repeat(np.arange(300), 10), "y": 1, "p": right.astype(int)})
    table.loc[0, "y"] = 0
    table.to_csv("many.csv", index=False)
    code, out, _ = call(
        "audit", "many.csv", "--client", "c", "--label", "y", "--prediction", "p", "--draws", "100"
    )
    assert code == 0
    for number in ("worst 10 %", "std"):  # below its interval, and above it
        (line,) = (line for line in out.splitlines() if number in line)
        assert line.rstrip().endswith("*")
    assert "* Clients with few samples look more different than they are" in out


def test_gaps_between_teams_are_those_of_groups_made_of_them() -> None:
    table = predictions()
    counts = count_predictions(table, "paid", "guess", "bank", "sex")
    teams = Audit(counts.with_groups(("big", "small"), np.array([0, 0, 1])), draws=50, least=0)
    table["team"] = np.where(table["bank"] == "tiny", "small", "big")
    same = Audit(count_predictions(table, "paid", "guess", "bank", "team"), draws=50, least=0)
    assert teams.across_groups() == same.across_groups()


def test_many_clients_groups_and_classes_are_audited_in_seconds() -> None:
    rng = np.random.default_rng(0)
    table = rng.multinomial(100, np.full(220, 1 / 220), 1000).reshape(1000, 2, 10, 11)
    counts = Counts(table, tuple(map(str, range(1000))), ("f", "m"), tuple("0123456789"))
    before = time.process_time()
    judged = Audit(counts, draws=100)
    judged.across_groups()
    judged.across_clients()
    assert time.process_time() - before < 10


def test_a_missing_prediction_is_never_right_and_a_row_without_a_label_is_left_out() -> None:
    table = pd.DataFrame({"y": [1, 0, 1, None], "p": [1.0, math.nan, 0.0, 1.0]})
    counts = count_predictions(table, "y", "p")
    assert (counts.clients, counts.groups, counts.labels) == (("everyone",), ("",), ("0", "1"))
    assert counts.table[0, 0].tolist() == [[0, 0, 1], [1, 1, 0]]
    assert Audit(counts).clients()[0]["accuracy"] == pytest.approx(1 / 3)
    assert Audit(counts).across_groups() == {}


def test_a_prediction_of_a_label_that_never_occurs_is_a_class_of_its_own() -> None:
    counts = count_predictions(pd.DataFrame({"y": ["a", "b"], "p": ["c", "b"]}), "y", "p")
    assert counts.labels == ("a", "b", "c")
    assert Audit(counts).code is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predictions.csv",), "give --label COLUMN and --prediction COLUMN (or"),
        (("predictions.csv", "--label", "payed", "--prediction", "guess"), "paid"),
        (("nothing.csv", *ARGUMENTS), "nothing.csv does not exist"),
        (
            ("predictions.csv", *ARGUMENTS, "--positive", "maybe"),
            "unknown label 'maybe'; choose from no, yes",
        ),
        (
            ("predictions.csv", "--counts"),
            "a table of counts needs columns label, prediction and count",
        ),
    ],
)
def test_a_slip_gives_one_line(call: Call, arguments: tuple[str, ...], words: str) -> None:
    predictions().to_csv("predictions.csv", index=False)
    code, out, err = call("audit", *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert words in err


def test_counts_that_are_no_counts_are_refused() -> None:
    table = pd.DataFrame({"label": [0, 1], "prediction": [0, 1], "count": [3, -1]})
    with pytest.raises(DataError, match="row 2: count is -1, not a whole number"):
        read_counts(table)
    with pytest.raises(
        ValueError, match="unknown column of a table of counts: 'cleint'; did you mean 'client'"
    ):
        read_counts(table.assign(count=1, cleint="a"))
    with pytest.raises(DataError, match="row 1 has no label"):
        read_counts(pd.DataFrame({"label": [None, 1], "prediction": [0, 1], "count": [3, 1]}))


@pytest.mark.skipif(COMPAS is None, reason="COMPAS is not in EVENHAND_DATA")
def test_compas_has_the_gap_in_false_positive_rates_that_propublica_found() -> None:
    """Of those who were not charged again, 44.9 % of African-Americans but 23.5 % of Caucasians had
    been rated medium or high."""
    assert COMPAS is not None
    table = parse(read_file(COMPAS, File(COMPAS.name)), "compas")
    two = table[table["race"].isin(["African-American", "Caucasian"])]
    counts = count_predictions(two, "two_year_recid", "decile_score >= 5", group="race")
    for found in (counts, read_counts(pd.DataFrame(counts.rows()))):
        judged = Audit(found, draws=500)
        rows = {row["name"]: row for row in judged.groups()}
        assert rows["African-American"]["false-positive rate"] == pytest.approx(0.4485, abs=5e-5)
        assert rows["Caucasian"]["false-positive rate"] == pytest.approx(0.2345, abs=5e-5)
        assert 1 - rows["African-American"]["true-positive rate"] == pytest.approx(0.2799, abs=1e-4)
        assert 1 - rows["Caucasian"]["true-positive rate"] == pytest.approx(0.4772, abs=1e-4)
        gap = judged.across_groups()["false-positive parity"]
        assert gap.value == pytest.approx(0.4485 - 0.2345, abs=1e-4)
        assert 0.15 < gap.low < gap.value < gap.high < 0.28


@pytest.mark.parametrize("over", ["samples", "clients", "both"])
def test_every_kind_of_interval_is_printed(over: str, call: Call) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"c": rng.integers(0, 25, 500), "y": rng.integers(0, 2, 500)})
    table["p"] = np.where(rng.random(500) < 0.8, table["y"], 1 - table["y"])
    table.to_csv("p.csv", index=False)
    code, out, err = call(
        "audit", "p.csv", "--client", "c", "--label", "y", "--prediction", "p", "--over", over
    )
    assert (code, err) == (0, "")
    assert "worst 10 % of clients" in out
    assert ("over all samples" in out) == (over != "samples")
