"""Gaps over all clients and within clients in an audit of predictions or counts."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import evenhand as eh
from evenhand.page.audit import page
from tests.support.commands import invoke

# clinic, sex: ill people, and how many of them are predicted to be ill
SIMPSON = {
    ("good", "f"): (100, 90),
    ("good", "m"): (20, 18),
    ("poor", "f"): (20, 6),
    ("poor", "m"): (100, 30),
}
CANCELLING = {
    ("east", "f"): (100, 90),
    ("east", "m"): (100, 30),
    ("west", "f"): (100, 30),
    ("west", "m"): (100, 90),
}
Cells = dict[tuple[str, str], tuple[int, int]]


def table(cells: Cells, well: int = 15) -> pd.DataFrame:
    """One row per person; ``well``: healthy people in each cell, all predicted so."""
    rows = []
    for (clinic, sex), (ill, found) in cells.items():
        rows += [(clinic, sex, "ill", "ill")] * found
        rows += [(clinic, sex, "ill", "well")] * (ill - found)
        rows += [(clinic, sex, "well", "well")] * well
    return pd.DataFrame(rows, columns=["clinic", "sex", "state", "guess"])


def audited(given: pd.DataFrame, **options: object) -> eh.audit.Audit:  # type: ignore[name-defined]
    settings = {"client": "clinic", "group": "sex", "positive": "ill", **options}
    return eh.audit(given, "state", "guess", **settings)  # type: ignore[arg-type]


def test_fair_within_every_clinic_and_unfair_over_all() -> None:
    found = audited(table(SIMPSON))
    assert found.gaps["equal opportunity"].interval.value == pytest.approx(0.4)
    local = found.local["equal opportunity"]
    assert local.mean.value == local.largest.value == pytest.approx(0.0)
    assert found.sentences[-1] == next(one for one in found.sentences if "over all clients" in one)
    assert found.sentences[-1].startswith("The model has a gap between groups in the true-positive")
    assert found.sentences[-1].endswith("over clients that the model serves differently.")
    assert len(found.sentences) == 4
    assert str(found).count("The model has a gap") == 1  # not again under its table


def test_unfair_within_every_clinic_and_fair_over_all() -> None:
    found = audited(table(CANCELLING))
    assert found.gaps["equal opportunity"].interval.value == pytest.approx(0.0)
    assert found.local["equal opportunity"].mean.value == pytest.approx(0.6)
    assert "both clients have significant gaps (most of all client" in found.sentences[-1]
    assert found.sentences[-1].endswith("because they point in different directions.")


def test_where_both_sides_agree_the_sentence_is_under_the_table() -> None:
    same = {(c, s): (100, 80 if s == "f" else 50) for c in ("east", "west") for s in ("f", "m")}
    found = audited(table(same))
    assert not any("within clients" in one for one in found.sentences)
    words = " ".join(str(found).split())
    assert "over all clients and of 30.0 points" in words
    assert "an interval that begins at 0 includes no gap at all." in words


def test_a_clinic_without_a_group_is_left_out_and_named() -> None:
    found = audited(table(SIMPSON | {("third", "f"): (40, 20)}))
    assert found.local["equal opportunity"].left_out == ("third",)
    words = " ".join(str(found).split())
    assert '1 client (client "third") is left out: fewer than two groups have 10 samples' in words
    assert "2 of 3" in words
    out = [row for row in found.tables()["local_gaps"] if row["scope"] == "left out"]
    assert ("equal opportunity", "third") in {(row["kind"], row["client"]) for row in out}
    # six f at the poor clinic are predicted to be ill
    assert ("predictive parity", "poor") in {(row["kind"], row["client"]) for row in out}


def test_counts_and_weights_of_one_give_the_same() -> None:
    given = table(CANCELLING)
    plain = audited(given)
    counts = given.groupby(["clinic", "sex", "state", "guess"]).size().reset_index(name="count")
    counts = counts.rename(
        columns={"clinic": "client", "sex": "group", "state": "label", "guess": "prediction"}
    )
    again = eh.audit(counts, counts=True, positive="ill")
    weighted = audited(given.assign(w=1.0), weight="w")
    for other in (again, weighted):
        assert set(other.local) == set(plain.local)
        for kind, found in plain.local.items():
            assert other.local[kind].mean == pytest.approx(found.mean, nan_ok=True)
            assert other.local[kind].largest == pytest.approx(found.largest, nan_ok=True)


def test_unequal_weights_widen_the_interval() -> None:
    given = table(CANCELLING)
    plain = audited(given)
    weights = given.assign(w=[1.0 if i % 2 else 3.0 for i in range(len(given))])
    weighted = audited(weights, weight="w")
    one, other = (found.local["equal opportunity"].largest for found in (plain, weighted))
    assert other.high - other.low > one.high - one.low


def test_suppressed_clients_are_in_no_row() -> None:
    given = table(SIMPSON | {("tiny", "f"): (3, 1), ("tiny", "m"): (2, 1)}, well=0)
    found = audited(given, suppress=True)
    assert "tiny" not in {row["client"] for row in found.tables()["local_gaps"]}
    assert "tiny" in {row["client"] for row in audited(given).tables()["local_gaps"]}


def test_several_group_columns_are_compared_one_by_one() -> None:
    given = table(SIMPSON)
    given["age"] = ["old" if i % 2 else "young" for i in range(len(given))]
    found = audited(given, group=["sex", "age"])
    assert {row["groups"] for row in found.tables()["local_gaps"]} == {"sex", "age", "sex & age"}


def test_without_clients_or_groups_there_is_nothing() -> None:
    given = table(SIMPSON)
    for options in ({"client": None}, {"group": None}):
        found = audited(given, **options)
        assert found.local == {}
        assert found.tables()["local_gaps"] == []
        assert "within clients" not in page(found)


def test_the_page_and_the_command_have_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = table(CANCELLING)
    given.to_csv("people.csv", index=False)
    text = page(audited(given))
    assert "Gaps by sex within clients" in text
    assert "mean within clients" in text
    assert "m lowest, f highest" in text
    options = ["--client", "clinic", "--group", "sex", "--label", "state", "--prediction", "guess"]
    code, out, _ = invoke("audit", "people.csv", *options, "--positive", "ill", "--json")
    assert code == 0
    rows = json.loads(out)["local_gaps"]
    whole = [
        r for r in rows if (r["kind"], r["scope"]) == ("equal opportunity", "over all clients")
    ]
    assert whole[0]["value"] == pytest.approx(0.0)
