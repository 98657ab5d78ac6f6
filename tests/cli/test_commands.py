"""The command line, as a user meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from evenhand.cli import SECTIONS, main
from evenhand.studies.specs.spec import Spec

COMMAND = [sys.executable, "-m", "evenhand"]
OPTIONS = ["--rounds", "3", "--clients", "4", "--seed", "3", "--engine", "loop"]
METHODS = ["-a", "qffl:q=2", "-a", "ditto:lam=0.5,local.lr=0.05"]
ANSI = "\x1b"


def environment() -> dict[str, str]:
    """As in a terminal with colours, but without anything that forces them."""
    return {
        key: value
        for key, value in os.environ.items()
        if key not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")
    } | {"TERM": "xterm-256color"}


def evenhand(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


Call = Callable[..., tuple[int, str, str]]


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def results(directory: Path) -> dict[str, bytes]:
    """Every file of a run but the note on versions and machine, and the report, which names the
    directory."""
    others = ("about.json", "report.html")
    return {name: content for name, content in files(directory).items() if name not in others}


def tables(output: str) -> str:
    """What is printed after the answer, without the lines that name the directory."""
    return output[output.index("Test accuracy") : output.index("Report: ")]


# ---- a run


@pytest.fixture(scope="module")
def first(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run with options, in a process of its own."""
    cwd = tmp_path_factory.mktemp("cli")
    return cwd / "first", evenhand("run", *OPTIONS, *METHODS, "--out", "first", cwd=cwd)


First = tuple[Path, subprocess.CompletedProcess[str]]


def test_a_run_prints_the_answer_one_table_and_where_the_results_are(first: First) -> None:
    _, done = first
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert ANSI not in done.stdout
    answer, table = done.stdout.split("\nTest accuracy across clients, %\n")
    assert len(re.findall(r"\.(?:\s|$)", answer)) <= 3
    cell = r" +\d+\.\d[ ↑↓]"
    for method in ("fedavg", "qffl", "ditto"):
        assert re.search(rf"^ {method}{cell * 4} *$", table, re.MULTILINE), table
    assert re.search(
        r"\n\nReport: first/report\.html\nTables: first/\nNext:   evenhand compare"
        r" first/spec\.toml --\S+( 5)?\n$",
        table,
    ), table
    assert "Gain (+)" not in table
    assert "[" not in table  # intervals are for -v and the report
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_verbose_prints_every_table_and_the_details(first: First) -> None:
    directory, done = first
    verbose = evenhand("resume", "first", "-v", cwd=directory.parent)
    assert (verbose.returncode, verbose.stderr) == (0, "")
    out = verbose.stdout
    assert re.search(r"^ *qffl +\d+\.\d.? \[\d+\.\d.\d+\.\d\]", out, re.MULTILINE)
    assert re.search(
        r"^ *3 +rotated +\d+ +\d+\.\d +[+-]\d+\.\d.? +[+-]\d+\.\d.? *$", out, re.MULTILINE
    )
    for title in ("of each client", "of each group", "Largest gaps", "Effective weights"):
        assert title in out
    assert "The 95 % intervals of metrics across clients cover" in " ".join(out.split())
    assert out[out.index("\nReport: ") :] == done.stdout[done.stdout.index("\nReport: ") :]


def test_a_run_writes_the_report_which_is_no_part_of_the_manifest(
    first: First, call: Call, tmp_path: Path
) -> None:
    directory, _ = first
    page = (directory / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert all(method in page for method in ("fedavg", "qffl", "ditto"))
    assert "report.html" not in json.loads((directory / "manifest.json").read_text())["files"]
    short = ("run", "--rounds", "1", "--clients", "3", "-a", "fedavg", "--out", "bare")
    code, out, _ = call(*short, "--no-report")
    assert code == 0
    assert "Report:" not in out
    assert out.rstrip().splitlines()[-2] == "Tables: bare/"
    assert not (tmp_path / "bare" / "report.html").exists()
    (tmp_path / "bare" / "report.html").write_text("mine")
    assert call("verify", "bare")[0] == 0


def test_open_shows_the_report_in_the_browser(call: Call, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> "{tmp_path}/opened"\n')
    browser.chmod(0o755)
    short = ("run", "--rounds", "1", "--clients", "3", "-a", "fedavg", "--open", "--out", "my run")
    done = subprocess.run(
        [*COMMAND, *short],
        cwd=tmp_path,
        env=environment() | {"BROWSER": f"{browser} %s"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "my run" / "report.html").as_uri()
    assert (tmp_path / "opened").read_text() == f"{page}\n"
    assert "%20" in page
    code, out, err = call("resume", "my run", "--open", "--no-report")
    assert (code, out) == (1, "")
    assert err == "evenhand: --open shows the report; leave out --no-report\n"


def test_a_run_directory_holds_the_spec_the_tables_the_models_and_no_leftovers(
    first: First,
) -> None:
    directory, _ = first
    every = {
        "history.csv",
        "scores.csv",
        "model.safetensors",
        "tally.safetensors",
        "values.safetensors",
        "manifest.json",
    }
    tables = {
        f"{name}.csv"
        for name in ("comparison", "differences", "ledger", "gaps", "local_gaps", "clients")
    }
    about = {"spec.toml", "about.json", "samples.safetensors", "manifest.json", "report.html"}
    assert {path.name for path in directory.iterdir()} == about | tables | {
        "fedavg",
        "qffl",
        "ditto",
    }
    assert {path.name for path in (directory / "fedavg").iterdir()} == every | {
        "weights.json",
        "weights.safetensors",
    }
    assert {path.name for path in (directory / "ditto").iterdir()} == every | {
        "personal.safetensors"
    }
    assert len((directory / "qffl" / "history.csv").read_text().splitlines()) == 1 + 3
    scores = (directory / "qffl" / "scores.csv").read_text().splitlines()
    detail = "balanced_accuracy,precision,recall,brier,calibration_error"
    assert scores[0] == f"by,name,team,train_count,count,accuracy,loss,{detail}"
    assert [line.split(",")[0] for line in scores[1:]] == ["client"] * 4 + ["group"] * 2 + [
        "team"
    ] * 2
    comparison = (directory / "comparison.csv").read_text().splitlines()
    assert comparison[0] == "method,statistic,value,low,high,best"
    assert list(dict.fromkeys(line.split(",")[0] for line in comparison[1:])) == [
        "fedavg",
        "qffl",
        "ditto",
    ]
    about = json.loads((directory / "about.json").read_text())
    assert about["seed"] == 3
    assert {"python", "evenhand", "torch", "numpy"} <= about["versions"].keys()
    nothing = {"sees": [], "stays": []}
    assert about["server"] == {
        "fedavg": nothing,
        "qffl": nothing,
        "ditto": {"sees": [], "stays": ["personal"]},
    }


def test_the_spec_in_a_run_directory_says_what_was_asked_for_and_parses_back(first: First) -> None:
    directory, _ = first
    text = (directory / "spec.toml").read_text()
    table = tomllib.loads(text)
    assert (table["rounds"], table["seed"], table["engine"], table["data"]["clients"]) == (
        3,
        3,
        "loop",
        4,
    )
    assert table["methods"] == [
        {"name": "fedavg"},
        {"name": "qffl", "q": 2},
        {"name": "ditto", "lam": 0.5, "local": {"lr": 0.05}},
    ]
    spec = Spec.from_toml(text, "spec.toml")
    assert spec.to_toml() == text
    assert Spec.from_toml(spec.to_toml(), "again") == spec


def test_running_the_spec_of_a_run_again_quietly_gives_the_same_files_byte_for_byte_and_overwrites_nothing(
    first: First,
) -> None:
    directory, _ = first
    cwd, before = directory.parent, files(directory)
    done = evenhand("run", "first/spec.toml", "-q", cwd=cwd)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert results(cwd / "runs" / "digits") == results(directory)
    assert files(directory) == before


def test_a_second_run_takes_a_directory_of_its_own(call: Call, tmp_path: Path) -> None:
    arguments = ("run", "--rounds", "1", "--clients", "3", "-a", "fedavg")
    assert call(*arguments)[0] == 0
    before = files(tmp_path)
    for count in (2, 3):
        code, out, _ = call(*arguments)
        assert code == 0
        assert f"\nReport: runs/digits-{count}/report.html\nTables: runs/digits-{count}/\n" in out
        assert results(tmp_path / "runs" / f"digits-{count}") == results(
            tmp_path / "runs" / "digits"
        )
    assert before.items() <= files(tmp_path).items()


def test_out_may_be_an_empty_directory_but_not_one_that_holds_something(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert call(
        "run", "--rounds", "1", "--clients", "3", "-a", "fedavg", "--out", "empty", "-q"
    ) == (0, "", "")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    before = files(tmp_path)
    code, out, err = call("run", "--rounds", "1", "--out", "mine")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"evenhand: mine is not empty; give another --out.*\n", err)
    assert files(tmp_path) == before


def test_fedavg_is_added_as_the_reference_unless_it_is_there_or_not_wanted(
    call: Call, tmp_path: Path
) -> None:
    short = ("run", "--rounds", "1", "--clients", "3", "-q", "--out")
    assert call(*short, "a", "-a", "qffl")[0] == 0
    assert call(*short, "b", "-a", "qffl", "-a", "fedavg", "-a", "qffl:q=3")[0] == 0
    assert call(*short, "c", "-a", "qffl", "--no-reference")[0] == 0
    labels = {
        run: [p.name for p in sorted((tmp_path / run).iterdir()) if p.is_dir()] for run in "abc"
    }
    assert labels == {"a": ["fedavg", "qffl"], "b": ["fedavg", "qffl", "qffl-2"], "c": ["qffl"]}


def test_the_default_run_fits_into_80_columns_with_nothing_cut_off(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("run", "--rounds", "1")
    assert code == 0
    assert "…" not in out
    assert max(len(line) for line in out.splitlines()) <= 80
    for name in ("fedavg", "qffl", "afl", "fedminmax"):
        numbers = r"( +\d+\.\d[ ↑↓]){5}"
        assert re.search(rf"^ {name}{numbers} *$", tables(out), re.MULTILINE), name


# ---- resume


def test_resuming_a_finished_run_changes_nothing_and_prints_the_same_tables(first: First) -> None:
    directory, done = first
    before = files(directory)
    again = evenhand("resume", "first", cwd=directory.parent)
    assert again.returncode == 0, again.stderr
    assert tables(again.stdout) == tables(done.stdout)
    assert files(directory) == before


def test_resuming_what_is_no_run_is_refused_in_one_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    before = files(tmp_path)
    code, out, err = call("resume", "mine")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"evenhand: mine holds no run: there is no spec\.toml in it\n", err)
    assert files(tmp_path) == before
    assert call("resume", "nowhere")[0] == 2
    (tmp_path / "mine" / "spec.toml").write_text("rounds = [")
    code, out, err = call("resume", "mine")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"evenhand: mine/spec\.toml is damaged: it is not valid TOML.*\n", err)


SPEC = """
name = "stop"
rounds = 150
checkpoint_every = 5

[data]
name = "digits"
clients = 5

[model]
name = "linear"

[local]
lr = 0.3
steps = 2
batch_size = 16

[cohort]
name = "proportional"
k = 3

[[methods]]
name = "afl"

[[methods]]
name = "ditto"
"""


def test_ctrl_c_ends_with_130_and_a_hint_and_resuming_gives_the_same_files_byte_for_byte(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    # a shell's background jobs, and so their children, ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [*COMMAND, "run", "spec.toml", "--out", "my run"],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "my run" / "afl" / "checkpoint.safetensors").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    assert len(err.splitlines()) == 1
    assert re.search(r"stopped.*evenhand resume .*my run", err), err
    assert not (tmp_path / "my run" / "ditto" / "scores.csv").exists()
    assert not list((tmp_path / "my run").rglob(".*"))
    done = evenhand("resume", "my run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert call("run", "spec.toml", "--out", "whole", "-q") == (0, "", "")
    assert results(tmp_path / "my run") == results(tmp_path / "whole")
    assert re.search(r"evenhand resume ('my run'|\"my run\")", err), (
        f"cannot be pasted into a shell: {err}"
    )


# ---- errors

LATE = [  # what only a look at the data, the model or the machine can tell
    pytest.param(
        "[data]\nname = 'imagenet'",
        r"unknown data set 'imagenet'; (did you mean|choose from)",
        id="unknown data set",
    ),
    pytest.param(
        "[data]\nclients = 5",
        r"unknown data set ''; choose from .*digits",
        id="data without a name",
    ),
    pytest.param("[data]\nname = 5", r"data.*\b5\b", id="number for a data set"),
    pytest.param(
        "[data]\nname = 'digits'\nclient = 3",
        r"unknown keyword of data set digits: 'client'; did you mean 'clients'\?",
        id="data keyword",
    ),
    *(
        pytest.param(
            f"{table}\nrounds = 3",
            rf"unknown keyword of {what}: 'rounds'; it is a setting of the run: in a spec it belongs"
            r" at the top, before the first \[table\]",
            id=f"a setting of the run in {what}",
        )
        for table, what in (
            ("[data]\nname = 'digits'", "data set digits"),
            ("[local]\nlr = 0.1", "local solver"),
            ("[[methods]]\nname = 'qffl'", "method qffl"),
        )
    ),
    pytest.param("[data]\nname = 'digits'\nclients = 61", r"\b61\b", id="too many clients"),
    pytest.param(
        "[data]\nname = 'digits'\nminority = 'few'", r"minority.*'few'", id="text for a share"
    ),
    pytest.param(
        "[model]\nname = 'vit'", r"unknown model 'vit'; choose from linear, mlp", id="unknown model"
    ),
    pytest.param("[model]\nname = 'mlp'\nhidden = 32", r"hidden.*\b32\b", id="number for widths"),
    pytest.param(
        "[model]\nname = 'mlp'\nhidden = [0]",
        r"hidden must be a list of widths >= 1, got \[0\]",
        id="no width",
    ),
    pytest.param(
        "[model]\nname = 'mlp'\noutputs = 2",
        r"label 9 is out of range: the module has 2 outputs",
        id="too few outputs",
    ),
    pytest.param(
        "[cohort]\nname = 'uniform'\nk = 50",
        r"50 clients per round, but the federation has 20",
        id="cohort too large",
    ),
    pytest.param("rounds = 0", r"rounds must be a whole number >= 1, got 0", id="no rounds"),
    pytest.param("seed = -1", r"seed must be a whole number >= 0, got -1", id="negative seed"),
    pytest.param(
        "eval_every = 0", r"eval_every must be a whole number >= 1, got 0", id="eval_every"
    ),
    pytest.param(
        "checkpoint_every = 0",
        r"checkpoint_every must be a whole number >= 1, got 0",
        id="checkpoint_every",
    ),
    pytest.param(
        "loss = 'mae'", r"unknown loss 'mae'; choose from cross_entropy", id="unknown loss"
    ),
    pytest.param("loss = 'mse'", r"mse.*10 numbers per sample", id="loss that does not fit"),
    pytest.param(
        "weights = 'size'",
        r'weights must be "data" or "uniform", got \'size\'',
        id="unknown weights",
    ),
    pytest.param("engine = 'gpu'", r"unknown engine 'gpu'", id="unknown engine"),
    pytest.param("device = 'gpu'", r"device.*gpu", id="unknown device"),
    pytest.param("device = 'cuda:99'", r"cuda:99", id="device that is not there"),
    pytest.param(
        "[[methods]]\nname = 'fafl'\nalpha = [0.5, 0.5]",
        r"alpha has 2 entries for 20 clients",
        id="alpha for other clients",
    ),
    pytest.param(
        "[[methods]]\nname = 'afl'\nlabel = '../up'",
        r"label.*'\.\./up'",
        id="label outside the run",
    ),
    pytest.param("[[methods]]\nname = 'afl'\nlabel = ''", r"label.*''", id="empty label"),
    pytest.param(
        "[[methods]]\nname = 'afl'\nlabel = 'spec.toml'",
        r"label.*'spec\.toml'",
        id="label that is a file of the run",
    ),
    pytest.param("name = '../up'", r"name.*'\.\./up'", id="name outside runs"),
    pytest.param("name = ''", r"name.*''", id="empty name"),
]
EARLY = [
    pytest.param("rounds = [", r"spec\.toml is not valid TOML", id="no TOML"),
    pytest.param(
        "round = 3",
        r"unknown key in spec\.toml: 'round'; did you mean 'rounds'\?",
        id="unknown key",
    ),
    pytest.param(
        "rounds = 'ten'", r"rounds must be a whole number, got 'ten'", id="text for a number"
    ),
    pytest.param(
        "rounds = true", r"rounds must be a whole number, got True", id="switch for a number"
    ),
    pytest.param("local = 0.1", r"local must be a table, got 0\.1", id="number for a table"),
    pytest.param("[local]\nlr = -1", r"lr must be .*got -1", id="negative lr"),
    pytest.param("[local]\nlr = '0.1'", r"\blr\b.*'0\.1'", id="text for lr"),
    pytest.param("[local]\nepochs = 1", r"local solver needs lr", id="no lr"),
    pytest.param(
        "[local]\nlr = 0.1\nepoch = 1",
        r"unknown keyword of local solver: 'epoch'; did you mean 'epochs'\?",
        id="unknown local keyword",
    ),
    pytest.param(
        "[cohort]\nname = 'uniform'", r"cohort needs k \(clients per round\)", id="cohort without k"
    ),
    pytest.param(
        "[cohort]\nk = 3",
        r"cohort.*choose from full, uniform, proportional",
        id="cohort without a name",
    ),
    pytest.param(
        "[[methods]]\nq = 1",
        r"every \[\[methods\]\] entry needs a name",
        id="method without a name",
    ),
    pytest.param(
        "[[methods]]\nname = 'afl'\nlocal = 3", r"local.*\b3\b", id="number for a method's solver"
    ),
    pytest.param(
        "[[methods]]\nname = 'fedbetter'",
        r"unknown method 'fedbetter'; (choose from|did you mean).*fedavg",
        id="unknown method",
    ),
]


@pytest.mark.parametrize(("text", "pattern"), EARLY + LATE)
def test_a_wrong_spec_is_refused_in_one_line_and_leaves_no_directory(
    text: str, pattern: str, call: Call, tmp_path: Path
) -> None:
    spec = text if text.startswith("[") else f"{text}\n"
    rounds = "" if "rounds" in text or text.startswith("[") else "rounds = 1\n"
    (tmp_path / "spec.toml").write_text(f"{rounds}{spec}\n[[methods]]\nname = 'fedavg'\n")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call("run", "spec.toml", *([] if "rounds" in text else ["--rounds", "1"]))
    assert code == 1, (out, err)
    assert len(err.splitlines()) == 1, err
    assert err.startswith("evenhand: ")
    assert re.search(pattern, err), err
    assert out.strip() == ""
    assert sorted(tmp_path.rglob("*")) == before


METHOD_ERRORS = [
    ("fedavgg", r"unknown method 'fedavgg'; did you mean 'fedavg'\?"),
    ("scaffold", r"unknown method 'scaffold'; choose from fedavg, .*ditto"),
    ("", r"unknown method ''; choose from"),
    ("qffl:p=1", r"unknown keyword of method qffl: 'p'; (did you mean|choose from) '?q"),
    ("qffl:q", r"cannot read 'q' in 'qffl:q'; write NAME:key=value"),
    ("qffl:q=-1", r"method qffl: q must be .*>= 0, got -1"),
    ("qffl:q=two", r"method qffl: .*\bq\b.*'two'"),
    ("qffl:q=", r"method qffl: .*\bq\b.*''|cannot read 'q='"),
    ("qffl:q=1,q=2", r"'?q'? .*twice|q.*more than once"),
    ("qffl:name=afl", r"unknown keyword of method qffl: 'name'|name"),
    ("qffl:local.lr=-1", r"lr must be .*got -1"),
    ("qffl:local.lr=fast", r"\blr\b.*'fast'"),
    ("qffl:local.rate=1", r"unknown keyword of local solver: 'rate'"),
    ("qffl:local=3", r"local\b.*\b3\b"),
    ("gifair:personal=no", r"personal\b.*'no'"),
    ("gifair:strength=1", r"strength must be in \[0, 1\), got 1"),
    ("propfair:M=0", r"M must be .*> 0, got 0"),
    ("fafl:alpha=0", r"alpha must be in \(0, 1\], got 0"),
    ("fafl:alpha=[0.1,0.2]", r"alpha has 2 entries for 4 clients"),
    ("afl:output=mean", r"output must be .*got 'mean'"),
]


@pytest.mark.parametrize(("method", "pattern"), METHOD_ERRORS)
def test_a_wrong_method_is_refused_in_one_line_and_leaves_no_directory(
    method: str, pattern: str, call: Call, tmp_path: Path
) -> None:
    code, out, err = call("run", "--rounds", "1", "--clients", "4", "-a", method)
    assert code == 1, (out, err)
    assert len(err.splitlines()) == 1, err
    assert re.search(rf"^evenhand: .*({pattern})", err), err
    assert out.strip() == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["run", "--rounds", "0"], r"--rounds.*0"),
        (["run", "--clients", "1"], r"--clients.*1"),
        (["run", "--seed", "-1"], r"--seed.*-1"),
        (["run", "--engine", "gpu"], r"--engine.*'gpu'.*'vmap'"),
        (["run", "--round", "3", "--bogus"], r"(?i)no such option"),
        (["run", "a.toml", "b.toml"], r"unexpected extra argument.*b\.toml"),
        (["train"], r"No such command 'train'"),
        (["resume"], r"Missing argument 'RUN'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_ends_with_2_and_says_how_to_get_help(
    arguments: list[str], pattern: str, call: Call, tmp_path: Path
) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert re.search(pattern, err), err
    assert "--help" in err
    assert not list(tmp_path.iterdir())


def test_other_options_that_cannot_work_are_refused_before_a_directory_is_made(
    call: Call, tmp_path: Path
) -> None:
    for arguments, pattern in (
        (["--clients", "61"], r"clients.*61"),
        (["--device", "gpu"], r"device.*gpu"),
        (["--device", "cuda:99"], r"cuda:99"),
        (["--seed", str(2**64)], rf"seed.*{2**64}"),
        (["nowhere.toml"], r"cannot read nowhere\.toml: No such file"),
    ):
        code, out, err = call("run", "--rounds", "1", "-a", "fedavg", *arguments)
        assert (code, out.strip()) == (1, ""), err
        assert re.fullmatch(rf"evenhand: .*{pattern}.*\n", err), err
        assert not list(tmp_path.iterdir())


def test_a_real_process_shows_an_error_as_one_line_without_a_traceback(tmp_path: Path) -> None:
    done = evenhand("run", "-a", "qfl:q=1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "evenhand: unknown method 'qfl'; did you mean 'qffl'?\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_warning_is_one_line_and_quiet_prints_not_even_that(call: Call) -> None:
    arguments = (
        "run",
        "--rounds",
        "1",
        "--clients",
        "4",
        "-a",
        "fafl:alpha=0.01",
        "--no-reference",
    )
    code, out, err = call(*arguments)
    assert code == 0
    assert re.fullmatch(r"warning: alpha of client .*does not change the exact objective\n", err)
    assert "warning" not in out
    assert call(*arguments, "-q") == (0, "", "")


# ---- help


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["run", "resume", "Fair federated learning"]),
        (["-h"], ["run", "resume"]),
        (
            ["run", "--help"],
            [
                "SPEC",
                "--algorithm",
                "qffl:q=2",
                "--rounds",
                "--clients",
                "--seed",
                "--engine",
                "--device",
                "--out",
                "--quiet",
            ],
        ),
        (["resume", "--help"], ["RUN", "interrupted", "byte for byte"]),
        (["--version"], ["evenhand", "0."]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_explains_every_command(arguments: list[str], words: list[str], call: Call) -> None:
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    for word in words:
        assert word in out, word


def test_help_lists_every_command_and_cuts_no_line(call: Call) -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    known = {name for name, command in main.commands.items() if not command.hidden}
    assert sorted(listed) == sorted(known)
    _, out, _ = call("--help")
    assert "\n  spec " in out
    assert not re.search(r"\.\.\.$", out.partition("Train and compare:")[2], re.MULTILINE)


def loaded_after(code: str) -> set[str]:
    """The modules a fresh interpreter has loaded after running ``code``."""
    report = (
        f"import sys\ntry:\n    exec({code!r})\nexcept SystemExit:\n    pass\nprint('|',"
        " *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("|")[2].split())


def test_help_does_not_wait_for_torch() -> None:
    for arguments in (["--help"], ["run", "--help"], ["resume", "--help"], ["--version"]):
        loaded = loaded_after(f"from evenhand.cli import main; main({arguments!r})")
        assert "click" in loaded
        assert not loaded & {
            "torch",
            "numpy",
            "pandas",
            "sklearn",
            "rich",
            "safetensors",
        }, arguments


def test_importing_the_library_loads_nothing_that_only_some_uses_need() -> None:
    assert not loaded_after("import evenhand") & {
        "torch",
        "numpy",
        "pandas",
        "sklearn",
        "rich",
        "click",
    }
    loaded = loaded_after("import evenhand as eh; eh.fit, eh.Federation, eh.FedAvg, eh.datasets")
    assert "torch" in loaded
    assert not loaded & {"pandas", "sklearn", "rich", "click"}
