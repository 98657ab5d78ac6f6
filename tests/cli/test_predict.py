"""evenhand predict and --keep-predictions: what they write, what they say, what they refuse."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pandas as pd
import pytest

import evenhand as eh
from tests.support.commands import invoke
from tests.support.visits import train, visits, write

TABLE = visits()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("visits")
    write(TABLE, directory / "visits.csv")
    given = ("-a", "fedavg", "-a", "ditto", "-a", "localonly", "--keep-predictions")
    train(directory / "visits.csv", "ill", directory / "run", *given)
    return directory


@pytest.fixture(scope="module")
def run(place: Path) -> str:
    return str(place / "run")


def predicted(run: str, table: Path, *options: str) -> tuple[pd.DataFrame, list[str]]:
    """The table on standard output, and the lines on standard error."""
    code, out, err = invoke("predict", run, str(table), *options)
    assert code == 0, err
    return pd.read_csv(io.StringIO(out), dtype=str, keep_default_na=False), err.splitlines()


def test_predictions_of_a_file_are_audited_with_the_runs_own_accuracy(
    place: Path, run: str, tmp_path: Path
) -> None:
    own = eh.load(run).predictions("ditto")
    tested = write(TABLE.iloc[own["row"]], tmp_path / "tested.csv")
    out = str(tmp_path / "predictions.csv")
    assert invoke("predict", run, str(tested), "--method", "ditto", "--out", out)[0] == 0
    found = pd.read_csv(out)
    assert found["prediction"].tolist() == own["prediction"].tolist()
    assert found["probability"].tolist() == pytest.approx(own["probability"].tolist(), abs=1e-6)

    roles = ("--client", "site", "--label", "ill", "--prediction", "prediction", "--group", "sex")
    code, said, err = invoke("audit", out, *roles, "--score", "probability", "--json")
    assert code == 0, err
    kept = place / "run" / "ditto" / "predictions.csv"
    names = ("--client", "client", "--label", "label", "--prediction", "prediction")
    more = ("--group", "group", "--score", "probability", "--json")
    code, again, err = invoke("audit", str(kept), *names, *more)
    assert code == 0, err
    audits = [json.loads(text) for text in (said, again)]
    scores = eh.load(run).trial("ditto").scores.set_index(["by", "name"])["accuracy"]
    for audit in audits:
        rates = {
            (row["by"], row["name"]): row["value"]
            for row in audit["rates"]
            if row["rate"] == "accuracy"
        }
        for key in (("client", "East"), ("client", "West"), ("group", "f")):
            assert rates[key] == pytest.approx(scores[key])


def test_the_columns_of_a_file_are_kept_as_they_are(place: Path, run: str, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text(
        "id,site,age,sex,pay,ward,note\n"
        '001,East,52,f,cash,007,"a, b"\n'
        "002,West,,m,?,012,=1+1\n"
        "003,North,61.50,f,card,120,\n"
    )
    found, _ = predicted(run, path, "--method", "ditto")
    before = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert found[before.columns].equals(before)
    assert [*found.columns] == [*before.columns, "prediction", "probability"]
    model = eh.load(run).model("ditto")
    expected = model.predict_proba(eh.read_table(path))
    assert found["probability"].astype(float).tolist() == expected["1"].tolist()
    each, _ = predicted(run, path, "--method", "ditto", "--proba")
    assert [*each.columns][-3:] == ["prediction", "probability_0", "probability_1"]
    assert each["probability_0"].astype(float).tolist() == expected["0"].tolist()


def test_cells_between_semicolons_are_kept_too(run: str, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("site;age;sex;pay;ward\nEast;52;f;cash;3\nWest;;m;card;\n")
    found, _ = predicted(run, path, "--method", "ditto")
    assert found["age"].tolist() == ["52", ""]
    assert found["ward"].tolist() == ["3", ""]


def test_a_regression_has_no_probabilities(place: Path, tmp_path: Path) -> None:
    table = place / "visits.csv"
    train(table, "weight", tmp_path / "run", "-a", "fedavg", "--no-reference")
    code, out, err = invoke("predict", str(tmp_path / "run"), str(table), "--proba")
    assert (code, out) == (1, "")
    assert err == "evenhand: --proba is for classifiers; fedavg predicts a number\n"


def test_a_model_that_diverged_is_not_to_be_used(place: Path, tmp_path: Path) -> None:
    table, run = place / "visits.csv", tmp_path / "run"
    train(table, "ill", run, "-a", "fedavg:local.lr=1e30", "-a", "qffl", "--no-reference")
    _, said = predicted(str(run), table, "--method", "fedavg")
    assert "fedavg diverged in training: do not use these predictions" in said[1]
    _, said = predicted(str(run), table, "--method", "qffl")
    assert "diverged" not in "".join(said)


def test_what_is_new_in_a_file_is_reported(run: str, tmp_path: Path) -> None:
    table = TABLE[:20].drop(columns=["ill", "stage", "weight"])
    table = table.assign(
        age=[None] * 3 + [50] * 17,
        pay=["barter"] * 2 + ["gift"] + ["cash"] * 17,
        sex=[None] + ["f"] * 19,
    )
    path = write(table, tmp_path / "new.csv")
    mean = eh.load(run).trial("fedavg").encoding.columns[0].mean
    found, said = predicted(run, path, "--method", "fedavg")
    ones = (found["prediction"] == "1").sum()
    counts = ", ".join(f"{label} {n}" for label, n in ((0, 20 - ones), (1, ones)) if n)
    assert said == [
        f"20 rows predicted with fedavg: {counts}",
        f"column 'age': 3 of 20 rows have no value; the mean of the training rows, {mean:.4g}, is"
        " used",
        "column 'sex': 1 of 20 rows has no value; every training row has one, so the model treats"
        " it as unknown",
        "column 'pay': 3 of 20 rows have a value that no training row has: 'barter' (2), 'gift'"
        " (1); the model treats them as unknown",
    ]
    assert invoke("predict", run, str(path), "--method", "fedavg", "-q")[2] == ""
    out = str(tmp_path / "out.csv")
    code, text, err = invoke(
        "predict", run, str(path), "--method", "fedavg", "--out", out, "--json"
    )
    assert (code, err) == (0, "")
    summary = json.loads(text)
    assert summary["method"] == "fedavg"
    assert summary["rows"] == 20
    assert summary["predictions"] == {"0": 20 - ones, "1": ones}
    assert summary["out"] == out
    assert summary["differences"][2]["values"] == {"barter": 2, "gift": 1}


def test_every_kind_of_file_is_read_and_written(place: Path, run: str, tmp_path: Path) -> None:
    given = ("--method", "fedavg", "-q")
    expected, _ = predicted(run, place / "visits.csv", *given)
    for name in ("a.csv", "a.tsv", "a.csv.gz", "a.parquet"):
        out = tmp_path / name
        assert invoke("predict", run, str(place / "visits.csv"), *given, "--out", str(out))[0] == 0
        found = eh.read_table(out)
        assert found["prediction"].astype(str).tolist() == expected["prediction"].tolist()
        assert found["probability"].tolist() == expected["probability"].astype(float).tolist()
        # and what was written is read again, without the columns that were added
        assert (
            invoke("predict", run, str(out), *given)[2]
            == f"evenhand: {out} already has a column 'prediction'; rename or remove it\n"
        )
    assert (
        gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == (tmp_path / "a.csv").read_bytes()
    )
    parquet = tmp_path / "visits.parquet"
    TABLE.to_parquet(parquet)
    assert predicted(run, parquet, *given)[0]["prediction"].equals(expected["prediction"])
    european = tmp_path / "visits-eu.csv"
    TABLE.to_csv(european, sep=";", decimal=",", index=False)
    found, _ = predicted(run, european, *given)
    assert found["prediction"].equals(expected["prediction"])
    assert found["weight"].astype(float).tolist() == TABLE["weight"].tolist()


def test_a_client_is_named_for_personal_models(place: Path, run: str, tmp_path: Path) -> None:
    model = eh.load(run).model("ditto")
    path = write(TABLE.rename(columns={"site": "where"}), tmp_path / "where.csv")
    by_column, _ = predicted(run, path, "--method", "ditto", "--client-column", "where")
    assert by_column["prediction"].tolist() == model.predict(TABLE).astype(str).tolist()
    by_name, _ = predicted(run, path, "--method", "ditto", "--for-client", "West")
    assert by_name["prediction"].tolist() == model.predict(TABLE, "West").astype(str).tolist()
    found, said = predicted(run, path, "--method", "ditto", "--shared")
    assert "240 of 240 rows are of no known client: the shared model predicts them" in said
    expected = model.predict(TABLE.drop(columns="site"), shared=True)
    assert found["prediction"].tolist() == expected.astype(str).tolist()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, (), "choose a method of run: fedavg, ditto, localonly"),
        ({}, ("--method", "ditt"), "unknown method 'ditt'; did you mean 'ditto'?"),
        (
            {},
            ("--method", "ditto", "--seed", "3"),
            "ditto was not trained with seed 3; choose from 0",
        ),
        (
            {"site": "Moon"},
            ("--method", "ditto"),
            "row 1: client 'Moon' is not known; the clients with a model are East, North, West;"
            " name one of them, or use the shared model with shared=True (--shared)",
        ),
        (
            {"site": None},
            ("--method", "localonly", "--shared"),
            "localonly has no shared model, only one for each client",
        ),
        ({"age": "old"}, ("--method", "fedavg"), "column 'age': 'old' in rows 1, 2, 3 and 237 mo"),
        ({}, ("--method", "ditto", "--client-column", "sight"), "--client-column: there is no col"),
        ({}, ("--method", "fedavg", "--out", "x.xls"), "--out must end with .csv, .tsv or .parqu"),
        (
            {},
            ("--method", "fedavg", "--for-client", "East"),
            "fedavg has one model for all clients; leave out --for-client",
        ),
        ({"prediction": 1}, ("--method", "fedavg"), "already has a column 'prediction'; rename"),
    ],
)
def test_mistakes_are_one_line(
    run: str, tmp_path: Path, change: dict[str, object], options: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "new.csv"
    TABLE.assign(**change).to_csv(path, index=False)
    code, out, err = invoke("predict", run, str(path), *options)
    assert (code, out) == (1, "")
    assert err.startswith("evenhand: ")
    assert message in err
    assert err.count("\n") == 1


def test_tables_and_runs_that_are_none_are_refused(place: Path, run: str, tmp_path: Path) -> None:
    table, given = str(place / "visits.csv"), ("--method", "fedavg")
    empty = tmp_path / "empty.csv"
    empty.write_text("site,age,sex,pay,ward\n")
    for arguments, message in (
        ((str(tmp_path), table), f"{tmp_path} holds no run: there is no spec.toml in it"),
        ((run, str(tmp_path / "none.csv")), "none.csv does not exist; pass a table's path"),
        ((run, str(empty)), "empty.csv has column names but no rows"),
        ((run, table, "--out", table), "is the table itself; write to another file"),
    ):
        code, _, err = invoke("predict", *arguments, *given)
        assert code == 1
        assert message in err
        assert err.count("\n") == 1
    for options in (("--json",), ("--for-client", "East", "--client-column", "site")):
        assert invoke("predict", run, table, *given, *options)[0] == 2
    assert (place / "visits.csv").read_text().startswith("site,age,sex,pay,ward,stage,ill,weight\n")


def test_kept_predictions_are_the_runs_own(place: Path, run: str) -> None:
    study = eh.load(run)
    for method in study.trained:
        path = place / "run" / method / "predictions.csv"
        kept, own = pd.read_csv(path), study.predictions(method)
        assert kept.columns.tolist() == own.columns.tolist()
        assert kept["row"].tolist() == own["row"].tolist()
        assert kept["client"].tolist() == own["client"].tolist()
        assert kept["prediction"].tolist() == own["prediction"].tolist()
        assert kept["probability"].tolist() == own["probability"].tolist()
    assert eh.verify(run).whole
    path.write_text("gone")
    assert not eh.verify(run).whole
    assert invoke("resume", run, "-q", "--no-report")[0] == 0
    assert path.read_text().startswith("row,client,group,label,prediction,probability\n")
    assert eh.verify(run).whole
