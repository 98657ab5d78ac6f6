"""evenhand flower new: a project that runs as it is."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.cli.tryout import explained, without_traceback
from evenhand.data.tables.files import read_table
from evenhand.files import read_tensors
from evenhand.flower import Columns, Policy
from evenhand.flower.codebook import Codebook
from evenhand.flower.project.new import code, example, package_name, write_project
from tests.support.flower_grid import InProcessGrid


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project with made-up hospitals, ready to import."""
    directory = tmp_path / "sample fair-app"
    codebook, tables = example()
    write_project(directory, codebook, "afl:lr_lambda=0.2,local.lr=0.2", tables=tables)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.chdir(tmp_path)
    yield directory
    for name in [name for name in sys.modules if name.startswith("sample_fair_app")]:
        del sys.modules[name]


# as earlier versions wrote them
OLDER = {
    "from evenhand.flower import Codebook": "from evenhand.flower.codebook import Codebook",
    "from evenhand.flower import client_app": (
        "from evenhand.flower.apps import client_app\nfrom evenhand.tables import read_table"
    ),
    "from evenhand.flower import server_app": "from evenhand.flower.apps import server_app",
    'federation(config["data"])': 'federation(read_table(config["data"]))',
}


@pytest.mark.parametrize("older", [False, True], ids=["a new project", "one of earlier versions"])
def test_a_project_trains_through_flowers_messages(
    older: bool, app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if older:
        parts = {path: path.read_text() for path in (app / "sample_fair_app").glob("*.py")}
        for now, then in OLDER.items():
            assert sum(now in text for text in parts.values()) == 1
            parts = {path: text.replace(now, then) for path, text in parts.items()}
        for path, text in parts.items():
            path.write_text(text)
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        importlib.import_module(settings["components"][side].partition(":")[0])
        for side in ("serverapp", "clientapp")
    )
    files = sorted((app / "data").glob("*.csv"))
    policy = app / "owner.toml"
    policy.write_text('order = "server"')
    configs = [
        {
            "partition-id": i,
            "data": str(path),
            "state-dir": str(app / f"state{i}"),
            "policy": str(policy),
        }
        for i, path in enumerate(files)
    ]
    grid = InProcessGrid(client.app, configs)
    context = grid.contexts[1]
    context.run_config = settings["config"] | {"num-rounds": 3}

    server.app(grid, context)

    clients = [client.load_data(config) for config in configs]
    arrays = [
        {
            "x": one.train.x,
            "y": one.train.y,
            "group": [one.group_names[code] for code in one.train.group],
        }
        for one in clients
    ]
    reference = eh.fit(
        importlib.import_module("sample_fair_app.model").make_model(),
        eh.Federation.from_arrays(arrays),
        eh.AFL(lr_lambda=0.2),
        rounds=3,
        local=eh.LocalSGD(lr=0.2, epochs=1, batch_size=32),
        engine="loop",
    )
    found, _ = read_tensors(Path("runs/sample-fair-app/afl/model.safetensors"))
    for name, value in reference.params.items():
        assert torch.equal(found[name], value), name
    printed = capsys.readouterr().out
    assert "female" in printed
    assert "male" in printed


def test_a_project_gets_its_columns_from_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    """With the policy that comes with it, as owners are told to start their nodes."""
    assert call("flower", "new", "agreed-app", "--columns-from-nodes", "--method", "fedavg")[0] == 0
    app = Path("agreed-app").absolute()
    monkeypatch.syspath_prepend(str(app))
    server, client = (
        importlib.import_module(f"agreed_app.{side}") for side in ("server_app", "client_app")
    )
    configs: list[dict[str, Any]] = [
        {
            "name": path.stem,
            "data": str(path),
            "state-dir": str(app / path.stem),
            "policy": str(app / "policy.toml"),
        }
        for path in sorted((app / "data").glob("*.csv"))
    ]
    grid = InProcessGrid(client.app, configs)
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    grid.contexts[1].run_config = settings["config"] | {"num-rounds": 2}

    server.app(grid, grid.contexts[1])

    codebook = Codebook.load("runs/agreed-app/codebook.toml")
    assert codebook.encoding.features == (
        *("age", "pressure", "cholesterol", "smoker=yes", "sex=male"),
    )
    assert codebook.classes == ("no", "yes")
    found, _ = read_tensors(Path("runs/agreed-app/fedavg/model.safetensors"))
    assert sum(leaf.numel() for leaf in found.values()) == 12
    assert "# agreed-app" in (app / "README.md").read_text()
    assert "| `agreed_app/columns.toml` |" in (app / "README.md").read_text()
    for name in [name for name in sys.modules if name.startswith("agreed_app")]:
        del sys.modules[name]


def test_the_policy_of_a_project_has_every_key_at_its_default_but_the_rounds_of_a_day(
    app: Path,
) -> None:
    text = (app / "policy.toml").read_text()
    assert Policy.parse(text) == Policy(rounds_per_day=1000)
    keys = {field.name.replace("_", "-") for field in dataclasses.fields(Policy)}
    assert {
        line.lstrip("# ").split(" = ")[0] for line in text.splitlines() if " = " in line
    } >= keys
    assert 'policy="policy.toml"' in (app / "README.md").read_text()


def test_columns_from_nodes_need_no_table_and_are_checked_against_one_that_is_given(
    call: Any,
) -> None:
    status, out, err = call(
        *("flower", "new", "blind", "--columns-from-nodes", "--label", "stage > 2"),
        *("--drop", "name", "--group", "sex"),
    )
    assert (status, err) == (0, "")
    assert "evenhand flower up blind --data DIRECTORY-OF-CSV-FILES" in out
    assert Columns.load("blind/blind/columns.toml") == Columns("stage > 2", ("sex",), ("name",))
    pd.DataFrame(
        {"name": [f"p{i}" for i in range(20)], "age": range(20), "ill": [0, 1, None, 1] * 5}
    ).to_csv("site.csv", index=False)
    options = ("flower", "new", "seen", "--columns-from-nodes", "--table", "site.csv", "--label")
    status, _, err = call(*options, "ill", "--drop", "nme")
    assert status == 1
    assert err == "evenhand: drop: there is no column 'nme'; did you mean 'name'?\n"
    status, _, err = call(*options, "age > 90")
    assert err.startswith("evenhand: label: 'age > 90' holds in none of the 20 rows; age goes from")
    status, _, err = call(*options, "ill", "--drop", "name")
    assert status == 0
    assert "hint: 5 of 20 rows have no value of 'ill'; nodes exclude such rows\n" in err
    assert Columns.load("seen/seen/columns.toml") == Columns("ill", (), ("name",))


ENDED = """\
INFO :      round 1 of 2: 4 of 4 clients have answered
ERROR :     ServerApp raised an exception
Traceback (most recent call last):
  File "/venv/flwr/run_serverapp.py", line 221, in run_serverapp
    context = run_(
  File "{file}", line 22, in main
    raise {kind}("it cannot be done") from error
{kind}: it cannot be done; do this
ERROR :     Exit Code: 201

An unhandled exception occurred in the ServerApp.
"""


@pytest.mark.parametrize(
    ("kind", "file", "ours"),
    [
        ("evenhand.errors.RunError", "/home/me/app/server_app.py", True),
        ("TimeoutError", "/venv/evenhand/flower/membership.py", True),
        ("ValueError", "/home/me/app/server_app.py", False),
    ],
)
def test_an_error_of_ours_is_one_line(kind: str, file: str, ours: bool) -> None:
    log = ENDED.format(kind=kind, file=file)
    first = log.splitlines(keepends=True)[0]
    assert without_traceback(log, finished=False) == first
    shown = without_traceback(log, finished=True)
    assert shown == (f"{first}ERROR :     it cannot be done; do this" if ours else log)
    assert without_traceback(first, finished=False) == first


def test_made_up_hospitals_differ_and_are_always_the_same() -> None:
    codebook, tables = example()
    again = example()[1]
    assert list(tables) == ["hospital-01", "hospital-02", "hospital-03", "hospital-04"]
    assert all(tables[name].equals(again[name]) for name in tables)
    assert [len(rows) for rows in tables.values()] == [800, 480, 240, 160]
    women = [float((rows["sex"] == "female").mean()) for rows in tables.values()]
    assert women == sorted(women)
    assert women[0] < 0.3 < 0.7 < women[-1]
    assert all(0.3 < float((rows["disease"] == "yes").mean()) < 0.7 for rows in tables.values())
    pooled = codebook.encoding.transform(pd.concat(tables.values()))
    assert bool((pooled[:, :3].mean(0).abs() < 0.3).all())
    assert bool(((pooled[:, :3].std(0) - 1).abs() < 0.2).all())


def test_the_apps_of_a_project_are_short_and_clear_of_placeholders(app: Path) -> None:
    for name, most in {"client_app": 20, "server_app": 40, "model": 20}.items():
        text = (app / "sample_fair_app" / f"{name}.py").read_text()
        ast.parse(text)
        assert len(text.splitlines()) <= most
    for path in app.rglob("*"):
        if path.is_file():
            assert "$" not in path.read_text(), path
    server = (app / "sample_fair_app/server_app.py").read_text()
    assert "METHOD = eh.AFL(lr_lambda=0.2)  #" in server
    assert "LOCAL = eh.LocalSGD(lr=0.2, epochs=1, batch_size=32)  #" in server
    assert "evenhand flower up '" in (app / "README.md").read_text()  # the path has a space


def test_flower_accepts_the_project_and_leaves_the_tables_here(app: Path, tmp_path: Path) -> None:
    import zipfile

    from evenhand.flower.tryout.processes import QUIET_FLOWER

    # what is built alone, for others, must have a plain name; what is run need not
    app = app.rename(tmp_path / "renamed")
    (app / "data" / "rows.json").write_text("[]")  # of a kind that Flower sends
    command = [str(Path(sys.executable).with_name("flwr")), "build", "--app", str(app)]
    environment = {
        **QUIET_FLOWER,
        "PATH": str(Path(sys.executable).parent),
        "FLWR_HOME": str(tmp_path / "home"),
    }
    built = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = tmp_path.glob("*.fab")
    names = set(zipfile.ZipFile(bundle).namelist())
    assert {
        "sample_fair_app/codebook.toml",
        "sample_fair_app/client_app.py",
        "sample_fair_app/server_app.py",
        "LICENSE",
    } <= names
    assert not [name for name in names if name.endswith(".csv") or name.startswith("data/")]


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("my-app", "my_app"),
        ("Fair Model!", "fair_model"),
        ("torch", "torch_app"),
        ("7 wards", "app_7_wards"),
        ("...", "fair_app"),
        ("a" * 40, "a" * 32),
    ],
)
def test_names_are_made_safe(name: str, package: str) -> None:
    assert package_name(name) == package


def test_methods_are_written_as_python_that_makes_them_again() -> None:
    from tests.support.federations import METHODS

    for method in METHODS.values():
        assert eval(code(method), {"eh": eh}) == method


# the command


def test_the_command_writes_a_project_and_says_how_to_run_it(call: Any) -> None:
    status, out, _ = call(
        "flower", "new", "my-app", "--clients", "3", "--label", "readmitted", "--group", "insurance"
    )
    assert status == 0
    assert out.splitlines()[-1] == "  evenhand flower up my-app --data my-app/data --nodes 3"
    assert [path.name for path in sorted(Path("my-app/data").iterdir())] == [
        "README.md",
        *(f"hospital-0{i}.csv" for i in (1, 2, 3)),
    ]
    rows = read_table("my-app/data/hospital-01.csv")
    assert list(rows.columns)[-2:] == ["insurance", "readmitted"]
    codebook = Codebook.load("my-app/my_app/codebook.toml")
    assert (codebook.label, codebook.group) == ("readmitted", ("insurance",))
    assert codebook.federation(rows).group_names == ("a", "b")
    assert (
        tomllib.loads(Path("my-app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"][
            "clients"
        ]
        == 3
    )
    assert "METHOD = eh.QFFL(q=1)  #" in Path("my-app/my_app/server_app.py").read_text()


def test_the_command_makes_a_codebook_from_a_table_and_does_not_copy_it(call: Any) -> None:
    pd.DataFrame({"age": range(40, 60), "sex": ["f", "m"] * 10, "ill": [0, 1, 1, 0] * 5}).to_csv(
        "site.csv", index=False
    )
    status, out, _ = call(
        "flower", "new", "mine", "--table", "site.csv", "--label", "ill", "--group", "sex"
    )
    assert status == 0
    assert "evenhand flower up mine --data DIRECTORY-OF-CSV-FILES" in out
    assert [path.name for path in Path("mine/data").iterdir()] == ["README.md"]
    codebook = Codebook.load("mine/mine/codebook.toml")
    assert codebook.encoding.features == ("age", "sex=m")
    assert codebook.classes == ("0", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "qfl"), "unknown method 'qfl'; did you mean 'qffl'?"),
        (("--method", "qffl:q=-1"), "q must be"),
        (("--method", "qffl:local.speed=1"), "'qffl:local.speed=1': "),
        (
            ("--table", "none.csv", "--label", "y"),
            "none.csv does not exist; pass a table's path",
        ),
        (("--table", "none.csv"), "a table needs a label to predict; give it with --label COLUMN"),
        (
            ("--drop", "age"),
            "--drop, --missing, --encoding and several groups need a table; give it with --table"
            " FILE",
        ),
        (
            ("--label", "age"),
            (
                "label: the made-up tables already have a column 'age'; choose another name, or"
                " give your own table with --table"
            ),
        ),
    ],
)
def test_wrong_options_are_refused_in_one_line_and_nothing_is_written(
    call: Any, options: tuple[str, ...], message: str
) -> None:
    status, _, err = call("flower", "new", "my-app", *options)
    assert status == 1
    assert err.startswith("evenhand: ")
    assert message in err
    assert err.count("\n") == 1
    assert not Path("my-app").exists()


def test_a_directory_with_something_in_it_is_left_alone(call: Any) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("all of it")
    status, _, err = call("flower", "new", "mine")
    assert (status, err) == (
        1,
        "evenhand: mine exists and is not empty; choose another directory\n",
    )
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.tex"]
    Path("mine/thesis.tex").unlink()
    assert call("flower", "new", "mine")[0] == 0


@pytest.mark.slow
def test_a_new_project_runs_as_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evenhand", "flower"]
    new = subprocess.run(
        [*command, "new", "my-app"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    printed = new.stdout.splitlines()[-1].split()
    assert printed[:2] == ["evenhand", "flower"]
    up = subprocess.run(
        [*command, *printed[2:], "-c", "num-rounds=2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert up.returncode == 0, up.stdout + up.stderr
    assert up.stderr.strip().endswith("finished:completed")
    assert {path.name for path in (tmp_path / "runs/my-app/qffl").iterdir()} >= {
        "history.csv",
        "model.safetensors",
        "scores.csv",
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "nonsense",
            "cannot parse -c at 'nonsense'; write settings as 'num-rounds=5 out=\"runs/trial\"'",
        ),
        ("num-rounds = = 3", "cannot parse -c at 'num-rounds = = 3'"),
        ("num-round=1", "unknown setting 'num-round'; did you mean 'num-rounds'?"),
    ],
)
def test_settings_of_a_run_are_checked_before_anything_starts(
    settings: str, message: str, call: Any
) -> None:
    assert call("flower", "new", "my-app")[0] == 0
    status, _, err = call("flower", "up", "my-app", "--data", "my-app/data", "-c", settings)
    assert status == 1
    assert message in err
    assert "starting" not in err


def test_groups_that_are_not_named_are_spoken_of(call: Any) -> None:
    assert call("flower", "new", "my-app")[0] == 0
    status, _, err = call(
        "flower", "new", "mine", "--table", "my-app/data/hospital-01.csv", "--label", "disease"
    )
    assert status == 0
    assert "no groups will be compared; name them with --group COLUMN" in err


def test_the_log_that_is_shown_says_which_node_and_why(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_text(
        "SuperNode ID: 77\nevenhand.errors.DataError: label 'a\\1' is odd\nx._OwnersError:"
        " load_data failed; its log says more\n"
    )
    nodes = [SimpleNamespace(name="node 0", log=log)]
    shown = (
        "node 77 cannot take part: load_data failed; its log says more\nnode 5 cannot take"
        " part: no; its log says more"
    )
    assert (
        explained(shown, cast(Any, SimpleNamespace(nodes=nodes, data=[Path("north.csv")])))
        == "node 77 (node 0, north.csv) cannot take part: load_data failed; its log says: label"
        " 'a\\1' is odd\nnode 5 cannot take part: no; its log says more"
    )


def test_what_the_docs_import_can_be_imported() -> None:
    """Also from where earlier versions had it."""
    from evenhand.flower import (
        Codebook,
        Loopback,
        certificates,
        codebook,
        loopback,
        write_certificates,
    )

    assert loopback.Loopback is Loopback
    assert certificates.write_certificates is write_certificates
    assert codebook.Codebook is Codebook
    with pytest.raises(ImportError, match="cannot import name 'Client'"):
        from evenhand.flower import Client  # noqa: F401


def test_a_table_as_people_save_it_becomes_a_codebook_with_hints(call: Any) -> None:
    text = "nr;crp;ort;krank\n" + "".join(
        f"{i};{'<0,5' if i % 9 == 0 else f'{i},5'};{'Köln' if i % 2 else 'Bonn'};{i % 3 % 2}\n"
        for i in range(1, 61)
    )
    Path("t.csv").write_bytes(text.encode("cp1252"))
    options = ("--table", "t.csv", "--label", "krank", "--missing", "<0,5")
    status, _, err = call("flower", "new", "guessed", *options)
    assert status == 0
    told = [line for line in err.splitlines() if line.startswith("hint: ")]
    assert told[0].startswith("hint: the file is not UTF-8 and was read as cp1252; ")
    assert told[1].startswith("hint: 'nr' has a different whole number in every row ")
    codebook = Codebook.load("guessed/guessed/codebook.toml")
    assert codebook.missing == ("<0,5",)
    assert [column.name for column in codebook.columns] == ["nr", "crp", "ort"]
    assert codebook.federation("t.csv").train.x.shape[1] == 4  # crp missing
    status, _, err = call(
        "flower", "new", "named", *options, "--encoding", "cp1252", "--drop", "nr"
    )
    assert (status, "hint" in err) == (0, False)
