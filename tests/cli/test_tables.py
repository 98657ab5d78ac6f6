"""A user's own table on the command line."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import evenhand as eh
from evenhand.data.tables.encoding import Encoding
from evenhand.studies.specs.spec import Spec
from evenhand.studies.specs.suited import suitable_methods, suitable_model

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _a_table(tmp_path: Path) -> None:
    """In the directory that commands run in."""
    patients().to_csv(tmp_path / "patients.csv", index=False)


def patients() -> pd.DataFrame:
    """Three hospitals; one of them, the smallest, with another relation between age and disease."""
    rng = np.random.default_rng(0)
    hospital = np.repeat(["north", "south", "west"], [60, 50, 20])
    age = rng.normal(50, 10, 130).round(1)
    ill = (age > 50) ^ (hospital == "west") ^ (rng.random(130) < 0.1)
    table = {
        "hospital": hospital,
        "age": age,
        "smoker": rng.choice(["yes", "no"], 130),
        "sex": rng.choice(["f", "m"], 130),
    }
    return pd.DataFrame(
        {
            **table,
            "stage": np.where(ill, rng.integers(1, 4, 130), 0),
            "days": (3 * age + rng.normal(0, 5, 130)).round(2),
        }
    )


OPTIONS = ("run", "--data", "patients.csv", "--client", "hospital", "--rounds", "3")
HEART = (*OPTIONS, "--label", "stage > 0", "--group", "sex", "--drop", "days")


def test_a_table_ends_in_results_for_every_hospital_and_group(call: Call, tmp_path: Path) -> None:
    code, out, err = call(*HEART, "-v")
    assert (code, err) == (0, "")
    for word in (
        "age",
        "number",
        "smoker",
        "yes/no",
        "3 clients, 2 groups; 104 training, 26 test samples; model linear",
    ):
        assert word in " ".join(out.split())
    assert (
        out.index("Gain (+) or loss (-) of each client")
        < out.index(" north ")
        < out.index("Gain (+) or loss (-) of each group")
        < out.rindex("FedAvg serves")
    )
    spec = tomllib.loads((tmp_path / "runs" / "patients" / "spec.toml").read_text())
    columns = {"client": "hospital", "label": "stage > 0", "group": "sex", "drop": ["days"]}
    assert spec["data"] == {"name": "table", "path": str(tmp_path / "patients.csv"), **columns}
    assert [method["name"] for method in spec["methods"]] == [
        "fedavg",
        "localonly",
        "qffl",
        "afl",
        "fedminmax",
        "ditto",
    ]
    assert (spec["model"], spec["loss"], spec["local"]["batch_size"]) == (
        {"name": "linear"},
        "cross_entropy",
        32,
    )
    scores = pd.read_csv(tmp_path / "runs" / "patients" / "afl" / "scores.csv")
    assert scores["name"].tolist() == ["north", "south", "west", "f", "m"]
    assert scores["count"].tolist()[:3] == [12, 10, 4]


def test_a_saved_model_and_encoding_predict_new_rows_as_the_run_did(
    call: Call, tmp_path: Path
) -> None:
    assert call(*HEART, "-a", "fedavg")[0] == 0
    run = tmp_path / "runs" / "patients"
    encoding = Encoding.from_json(json.loads((run / "encoding.json").read_text()))
    module = eh.models.MODELS["linear"]((len(encoding.features),), 2, 0)
    module.load_state_dict(load_file(run / "fedavg" / "model.safetensors"))
    fed = eh.Federation.from_frame(
        patients(), client="hospital", label="stage > 0", group="sex", drop=["days"], seed=0
    )
    assert fed.test is not None
    correct = (module(fed.test.x[:]).argmax(1) == fed.test.y).double()
    expected = pd.read_csv(run / "fedavg" / "scores.csv")["accuracy"][:3]
    assert [
        float(part.mean()) for part in torch.split(correct, fed.test.sizes.tolist())
    ] == pytest.approx(expected.tolist())
    assert encoding.transform(patients()).shape == (130, len(encoding.features))


def test_a_regression_reports_errors_in_units_of_the_label(call: Call, tmp_path: Path) -> None:
    code, out, _ = call(
        *OPTIONS,
        "--label",
        "days",
        "--drop",
        "stage",
        "-a",
        "fedavg",
        "-a",
        "qffl",
        "--rounds",
        "40",
        "-v",
    )
    assert code == 0
    assert "Test error (RMSE) across clients, in units of days" in out
    assert "Always predicting the mean would reach a mean error (RMSE) of " in " ".join(out.split())
    assert "loss mse" in " ".join(out.split())
    fed = eh.Federation.from_frame(
        patients(), client="hospital", label="days", drop=["stage"], seed=0
    )
    assert fed.encoding is not None
    scores = pd.read_csv(tmp_path / "runs" / "patients" / "fedavg" / "scores.csv")
    error = fed.encoding.label_std * scores["loss"] ** 0.5
    line = next(
        line
        for line in out[out.index("Test error") :].splitlines()
        if line.strip().startswith("fedavg ")
    )
    mean, worst, _, _ = (float(number) for number in re.findall(r" (\d+\.\d+)", line))
    assert [mean, worst] == pytest.approx([error.mean(), error.max()], abs=0.06)
    assert error.mean() < 12  # the label is 3 age + noise of 5, its standard deviation 30


def test_a_run_on_a_table_resumes_from_another_directory(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(*HEART, "-a", "fedavg", "--out", "mine")[0] == 0
    before = (tmp_path / "mine" / "fedavg" / "scores.csv").read_bytes()
    (tmp_path / "mine" / "fedavg" / "scores.csv").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call("resume", str(tmp_path / "mine"), "-q") == (0, "", "")
    assert (tmp_path / "mine" / "fedavg" / "scores.csv").read_bytes() == before


def test_parquet_and_several_groups(call: Call) -> None:
    patients().to_parquet("patients.parquet")
    arguments = (
        "run",
        "--data",
        "patients.parquet",
        "--client",
        "hospital",
        "--rounds",
        "1",
        "--label",
        "stage > 0",
        "-a",
        "fedavg",
    )
    code, out, _ = call(*arguments, "--group", "sex", "--group", "smoker", "-v")
    assert code == 0
    assert all(f" {sex} & {smoker} " in out for sex in "fm" for smoker in ("yes", "no"))


def test_rows_without_natural_clients_are_dealt(call: Call) -> None:
    arguments = (
        "run",
        "--data",
        "patients.csv",
        "--label",
        "stage > 0",
        "--rounds",
        "1",
        "-a",
        "fedavg",
    )
    code, out, _ = call(*arguments, "--partition", "iid:clients=5", "--split", "test=0.5")
    assert code == 0
    assert "5 clients; 65 training, 65 test samples" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--data", "nothing.csv", "--client", "a", "--label", "b"),
            "there is no file nothing.csv",
        ),
        (
            ("--data", "nothing.data.gz", "--client", "a", "--label", "b"),
            "there is no file nothing.data.gz",
        ),
        (("nothing.data",), "nothing.data is a table, not a spec; give it with --data"),
        (
            ("--data", "patients.csv", "--client", "hospital"),
            "a table needs a label to predict; give it with --label COLUMN",
        ),
        (
            ("--data", "patients.csv", "--label", "stage"),
            "a table needs clients; name their column with --client COLUMN, or distribute",
        ),
        (("--data", "patients.csv", "--client", "hopital", "--label", "stage"), "hopital"),
        (
            (
                "--data",
                "patients.csv",
                "--client",
                "hospital",
                "--label",
                "stage",
                "--split",
                "test=1.5",
            ),
            "test",
        ),
        (("--data", "heart_diseas"), "did you mean 'heart_disease'?"),
        (("--data", "digits:noize=1"), "did you mean 'noise'?"),
        (
            (
                "--data",
                "patients.csv",
                "--client",
                "hospital",
                "--label",
                "stage",
                "--model",
                "mpl",
            ),
            "did you mean 'mlp'?",
        ),
    ],
)
def test_a_slip_gives_one_line_and_leaves_nothing_behind(
    call: Call, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = call("run", *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert words in err
    assert [path.name for path in tmp_path.iterdir()] == ["patients.csv"]


def test_describe_shows_columns_clients_and_balance(call: Call, tmp_path: Path) -> None:
    code, out, err = call(
        "data",
        "describe",
        "patients.csv",
        "--client",
        "hospital",
        "--label",
        "stage > 0",
        "--group",
        "sex",
        "--csv",
        "all.csv",
    )
    assert (code, err) == (0, "")
    assert (
        "3 clients; 104 train, 26 test samples; 16 to 48 training samples per client, median 40"
        in " ".join(out.split())
    )
    table = pd.read_csv(tmp_path / "all.csv")
    assert table["client"].tolist() == ["north", "south", "west"]
    shares = patients().groupby("hospital")["sex"].apply(lambda sex: (sex == "f").mean())
    assert table["group f"].tolist() == pytest.approx(shares.tolist())


def test_a_data_set_by_name_is_not_taken_for_a_folder_of_that_name(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "digits").mkdir()
    assert call("data", "describe", "digits", "--clients", "3")[0] == 0
    code, _, err = call("data", "describe", "./digits")
    assert code == 1
    assert "digits" in err
    assert err.count("\n") == 1


def test_describe_limits_itself_to_the_largest_clients(call: Call) -> None:
    code, out, _ = call("data", "describe", "digits", "--clients", "9", "--most", "4")
    assert code == 0
    assert "and 5 more, none of them larger" in out


def test_describe_draws_a_picture(call: Call, tmp_path: Path) -> None:
    code, out, _ = call(
        "data", "describe", "digits", "--clients", "5", "--picture", "digits.html", "--by", "group"
    )
    assert code == 0
    assert "Picture: digits.html" in out
    assert "rotated" in (tmp_path / "digits.html").read_text()


def test_a_model_and_methods_suit_the_data() -> None:
    fed = eh.datasets.digits(clients=3)
    assert suitable_model(fed) == "linear"
    assert list(suitable_methods(fed)) == [
        "fedavg",
        "localonly",
        "qffl",
        "afl",
        "fedminmax",
        "gifair",
        "ditto",
    ]
    assert suitable_model(eh.datasets.population(clients=3000, samples=2)) == "mlp"
    plain = eh.datasets.population(clients=30, samples=2)
    assert list(suitable_methods(plain)) == ["fedavg", "localonly", "qffl", "afl", "ditto"]
    settled = Spec.for_data("a b/c").settled(plain)
    assert (settled.name, settled.loss, settled.model, settled.local["batch_size"]) == (
        "a b-c",
        "cross_entropy",
        {"name": "linear"},
        32,
    )
    assert settled.settled(plain) == settled


def test_help_of_run_shows_the_example_of_a_table(call: Call) -> None:
    os.environ.pop("COLUMNS", None)
    code, out, _ = call("run", "--help")
    assert code == 0
    assert "--data patients.csv --client hospital --label disease --group sex" in " ".join(
        out.split()
    )


# ---- tables as people have them


def test_a_regression_with_a_client_and_a_group_that_have_no_test_rows_ends_in_tables(
    call: Call, tmp_path: Path
) -> None:
    table = pd.concat([patients(), patients().iloc[:1].assign(hospital="alone", sex="x")])
    table.to_csv("more.csv", index=False)
    arguments = (
        "run",
        "--data",
        "more.csv",
        "--client",
        "hospital",
        "--label",
        "days",
        "--drop",
        "stage",
        "--group",
        "sex",
        "--rounds",
        "2",
    )
    code, out, err = call(*arguments, "-a", "fedavg", "-a", "localonly", "-v")
    assert (code, err) == (0, "")
    assert any(line.split() == ["alone", "0", "(few)", "-", "-"] for line in out.splitlines())
    assert any(line.split() == ["x", "0", "(few)", "-", "-"] for line in out.splitlines())
    assert " clients with at least 10 test samples" in " ".join(out.split())


def test_brackets_in_names_are_shown_as_they_are(call: Call) -> None:
    table = (
        patients()
        .rename(columns={"age": "age [years]"})
        .replace({"north": "[/x] north", "f": "[f]"})
    )
    table.to_csv("brackets.csv", index=False)
    source = ("brackets.csv", "--client", "hospital", "--label", "stage > 0", "--group", "sex")
    methods = ("-a", "fedavg", "-a", "qffl")
    code, out, _ = call("run", "--data", *source, "--rounds", "1", *methods, "-v")
    assert code == 0
    assert all(f" {name} " in out for name in ("age [years]", "[/x] north", "[f]"))
    code, out, _ = call("data", "describe", *source)
    assert code == 0
    assert all(f" {name} " in out for name in ("age [years]", "[/x] north", "[f] %"))


def test_resuming_refuses_a_table_that_has_changed(call: Call, tmp_path: Path) -> None:
    assert call(*HEART, "-a", "fedavg", "-a", "qffl", "--out", "mine")[0] == 0
    (tmp_path / "mine" / "qffl" / "scores.csv").unlink()
    before = (tmp_path / "mine" / "encoding.json").read_bytes()
    changed = patients()
    changed.loc[5, "age"] += 1
    changed.to_csv("patients.csv", index=False)
    code, _, err = call("resume", "mine")
    assert (code, err) == (
        1,
        (
            "evenhand: the data have changed since mine was begun; use another directory for the"
            " new data\n"
        ),
    )
    assert (tmp_path / "mine" / "encoding.json").read_bytes() == before


def test_without_test_rows_the_tables_speak_of_training(call: Call) -> None:
    code, out, _ = call(*HEART, "-a", "fedavg", "-a", "qffl", "--split", "test=0")
    assert code == 0
    assert "Training accuracy across clients" in out
    assert "training samples" in out
    assert "Test accuracy" not in out
    assert "test samples" not in out


def test_a_label_and_a_group_of_one_name_are_told_apart(call: Call) -> None:
    table = pd.DataFrame(
        {
            "site": ["a"] * 10,
            "ill": ["yes"] * 6 + ["no"] * 4,
            "smoker": (["yes"] + ["no"] * 4) * 2,
            "age": range(10),
        }
    )
    table.to_csv("yn.csv", index=False)
    code, out, _ = call(
        "data", "describe", "yn.csv", "--client", "site", "--label", "ill", "--group", "smoker"
    )
    assert code == 0
    assert "group no %" in out
    row = next(
        line for line in out[out.index("Clients") :].splitlines() if line.strip().startswith("a ")
    )
    assert row.split()[-4:] == ["40", "60", "80", "20"]


def test_more_rows_than_a_table_holds_are_pointed_to(call: Call) -> None:
    code, out, _ = call(
        "run",
        "--data",
        "population:clients=50,test=2",
        "--rounds",
        "1",
        "-a",
        "fedavg",
        "-a",
        "qffl",
        "-v",
    )
    assert code == 0
    assert "50 clients are too many to print; ledger.csv lists all of them." in " ".join(
        out.split()
    )


def test_the_arguments_of_a_table_may_come_with_its_name(call: Call) -> None:
    code, out, err = call(
        "run",
        "--data",
        "table:path=patients.csv,client=hospital,label=sex",
        "--rounds",
        "1",
        "-a",
        "fedavg",
        "-q",
    )
    assert (code, out, err) == (0, "", "")


# ---- tables as people save them


def german() -> pd.DataFrame:
    """The same patients, with semicolons and decimal commas in mind, and with slips."""
    table = patients()
    chol = [250.0, 126.0, 200.5, 390.0, 181.0] * 26
    chol[:14] = [999.0] * 14
    crp = ["4,4", "12,5", "0,9", "7,1", "3,3"] * 26
    crp[3], crp[8], crp[20] = "<0,5", "<0,5", "n.d."
    hospital = table["hospital"].replace({"west": "wést"})
    hospital[:5] = "North"
    return pd.DataFrame(
        {
            " hospital ": hospital,
            "fall": np.arange(130) + 1001,
            "age": table["age"],
            "sex": table["sex"],
            "chol": chol,
            "crp": crp,
            "ill": np.where(table["stage"] > 0, "ja", "nein"),
        }
    )


GERMAN = (
    "--client",
    "hospital",
    "--label",
    "ill",
    "--group",
    "sex",
    "--rounds",
    "2",
    "-a",
    "fedavg",
)
CURED = ("--missing", "999", "--missing", "<0,5", "--missing", "n.d.", "--encoding", "utf-16")


def save(table: pd.DataFrame, encoding: str) -> None:
    text = table.to_csv(index=False, sep=";", decimal=",")
    Path("german.csv").write_bytes(text.encode(encoding))


def test_hints_stand_before_the_results(call: Call) -> None:
    save(german(), "cp1252")
    code, out, err = call("run", "--data", "german.csv", *GERMAN)
    assert (code, err) == (0, "")
    told = " ".join(out[: out.index("Test accuracy")].split())
    for hint in (
        "hint: the file is not UTF-8 and was read as cp1252; if letters look wrong, pass its"
        " encoding with --encoding NAME",
        "hint: 'hospital' has 'north' (55 rows) and 'North' (5 rows), which may mean the same but"
        " count as different clients; unify them in the file",
        "hint: 'fall' has a different whole number in every row and looks like an identifier; remove"
        " it with --drop fall",
        "hint: 'chol' is 999 in 14 of 130 rows while the others lie between 126 and 390; if it means"
        " missing, pass --missing 999",
    ):
        assert hint in told
    assert told.count("hint:") == 4
    assert call("run", "--data", "german.csv", *GERMAN, "-q") == (0, "", "")
    for command in ("compare", "sweep"):
        more = ("--seeds", "2") if command == "compare" else ("--grid", "q=0.1,1")
        chosen = GERMAN if command == "compare" else (*GERMAN[:-2], "--method", "qffl")
        code, out, err = call(command, "--data", "german.csv", *chosen, *more)
        assert (code, out.count("hint: 'fall' has")) == (0, 1), err


def test_the_columns_are_described_with_the_same_hints(call: Call) -> None:
    save(german(), "utf-16")
    code, out, _ = call("data", "describe", "german.csv", *GERMAN[:6])
    assert code == 0
    assert out.count("hint: ") == 4
    assert "hint: the file is not UTF-8 and was read as utf-16; " in out
    assert out.index("hint: ") < out.index("Clients")
    code, out, _ = call("data", "describe", "german.csv", *GERMAN[:6], *CURED, "--drop", "fall")
    assert code == 0
    assert out.count("hint: ") == 1  # North
    # 14 of 999, and 12 of them train
    assert re.search(r"chol +number +1\d +mean", out)
    assert re.search(r"crp +number +\d +mean", out)


def test_what_is_called_missing_and_the_encoding_are_kept_for_resume(
    call: Call, tmp_path: Path
) -> None:
    save(german(), "utf-16")
    code, _, err = call("run", "--data", "german.csv", *GERMAN, *CURED, "--out", "mine", "-q")
    assert (code, err) == (0, "")
    spec = tomllib.loads(Path("mine/spec.toml").read_text())["data"]
    assert (spec["missing"], spec["encoding"]) == (["999", "<0,5", "n.d."], "utf-16")
    encoding = Encoding.from_json(json.loads(Path("mine/encoding.json").read_text()))
    assert encoding.missing == ("999", "<0,5", "n.d.")
    assert {column.name: column.kind for column in encoding.columns}["crp"] == "number"
    before = Path("mine/fedavg/scores.csv").read_bytes()
    for file in ("scores.csv", "model.safetensors"):
        (tmp_path / "mine" / "fedavg" / file).unlink(missing_ok=True)
    assert call("resume", "mine", "-q") == (0, "", "")
    assert Path("mine/fedavg/scores.csv").read_bytes() == before


def test_a_spec_may_name_numbers_and_one_text(call: Call) -> None:
    save(german(), "utf-8")
    text = """
        rounds = 1
        [data]
        name = "table"
        path = "german.csv"
        client = "hospital"
        label = "ill"
        drop = ["fall"]
        missing = {}
        [[methods]]
        name = "fedavg"
    """
    for missing in ("[999, '<0,5', 'n.d.']", "999"):
        Path("own.toml").write_text(text.format(missing))
        code, out, _ = call("run", "own.toml", "-v")
        assert code == 0
        assert re.search(r"chol +number +1\d +mean", out)


def test_negative_codes_can_be_called_missing(call: Call) -> None:
    table = german().assign(chol=lambda rows: rows["chol"].replace(999, -9))
    save(table, "utf-8")
    code, out, _ = call("data", "describe", "german.csv", *GERMAN[:6])
    assert (code, "if it means missing, pass --missing -9" in " ".join(out.split())) == (0, True)
    code, out, _ = call("data", "describe", "german.csv", *GERMAN[:6], "--missing", "-9")
    assert (code, "--missing" in out) == (0, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--encoding", "ascii"),
            r"german.csv line \d+ is not ascii text \(byte 0xe9 at position \d+",
        ),
        (("--encoding", "cp99"), "unknown text encoding 'cp99'; use a name that Python knows"),
    ],
)
def test_an_encoding_that_does_not_fit_is_refused_in_one_line(
    call: Call, options: tuple[str, ...], message: str
) -> None:
    save(german(), "cp1252")
    code, out, err = call("run", "--data", "german.csv", *GERMAN, *options)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert re.search(message, err)
    assert not Path("runs").exists()


def test_all_bad_cells_are_one_line(call: Call) -> None:
    table = german().assign(bmi=[f"{20 + i / 10:.1f}" for i in range(130)])
    table.loc[[4, 9], "bmi"] = "?!"
    table["waist"] = table["bmi"]
    save(table, "utf-8")
    code, _, err = call("run", "--data", "german.csv", *GERMAN)
    assert (code, err.count("\n")) == (1, 1)
    for column in ("bmi", "waist"):
        assert f"column '{column}': '?!' in rows 5 and 10 are not numbers; " in err
    assert "pass --missing '?!' if it means missing" in err


def test_the_help_says_that_missing_is_no_comparison(call: Call) -> None:
    code, out, _ = call("run", "--help")
    assert code == 0
    assert "cells with exactly this TEXT, such as 999 or '<0.5', as missing" in " ".join(
        out.split()
    )


def test_one_client_is_a_client(call: Call) -> None:
    rows = "".join(f"north,{row % 7},{row % 2}\n" for row in range(40))
    Path("one.csv").write_text(f"site,x,sick\n{rows}")
    columns = ("--client", "site", "--label", "sick")
    code, out, err = call("data", "describe", "one.csv", *columns)
    assert code == 0, err
    assert re.search(r"^1 client; \d+ train", out, re.MULTILINE)
    code, out, err = call("run", "--data", "one.csv", *columns, "--rounds", "1", "-a", "fedavg")
    assert code == 0, err
    assert re.search(r"^1 client; \d+ training", out + err, re.MULTILINE)
    found = eh.datasets.table("one.csv", client="site", label="sick")
    assert repr(found).startswith("<Federation: 1 client, ")


def test_a_table_that_does_not_exist_is_named_once(call: Call) -> None:
    Path("spec.toml").write_text(
        "[data]\nname = 'table'\npath = 'absent.csv'\nclient = 'a'\nlabel = 'b'"
    )
    found = call("run", "spec.toml", "-a", "qffl")
    assert found == (1, "", "evenhand: absent.csv does not exist; pass a table's path\n")


def test_the_options_of_tables_are_refused_for_data_sets(call: Call) -> None:
    code, _, err = call("run", "--data", "digits", "--missing", "9", "-a", "fedavg")
    assert code == 1
    assert "unknown keyword of data set digits: 'missing'" in err
