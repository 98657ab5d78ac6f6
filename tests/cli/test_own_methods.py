"""A method of the user's own on the command line, by module and class."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import evenhand as eh
from evenhand.algorithms.naming import described, imported
from evenhand.errors import SpecError
from evenhand.studies.specs.method import build_algorithm
from evenhand.studies.specs.parsing import parse_method
from evenhand.studies.specs.spec import Spec
from tests.conftest import Call
from tests.support import own_method, own_metrics
from tests.support.commands import results
from tests.support.warm import commands

SMALL = ("--rounds", "2", "--clients", "4")


def evenhand(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as it is installed, started in a directory."""
    return subprocess.run(
        [commands() / "evenhand", *arguments],
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
    )


def test_a_method_beside_the_command_is_trained_resumed_and_reported(tmp_path: Path) -> None:
    own_method.copy_to(tmp_path)
    method = "mymethods:PowerLoss"
    done = evenhand(
        tmp_path, "run", *SMALL, "-a", method, "-a", f"{method}:power=1.5,label=mild", "--out", "r"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ PowerLoss ", done.stdout, re.MULTILINE)
    assert re.search(r"^ mild ", done.stdout, re.MULTILINE)
    run = tmp_path / "r"
    spec = Spec.load(run / "spec.toml")
    assert [one.table() for one in spec.methods] == [
        {"name": "fedavg"},
        {"name": method},
        {"name": method, "label": "mild", "power": 1.5},
    ]
    whole = results(run)
    for path in (run / "mild").iterdir():
        path.unlink()
    (run / "mild").rmdir()
    again = evenhand(tmp_path, "resume", "r")
    assert again.returncode == 0, again.stderr
    assert results(run) == whole
    # a page needs none of the user's code
    (tmp_path / "elsewhere").mkdir()
    page = evenhand(tmp_path / "elsewhere", "report", str(run), "--out", "page.html")
    assert page.returncode == 0, page.stderr
    assert "mild" in (tmp_path / "elsewhere" / "page.html").read_text()
    for path in (run / "mild").iterdir():
        path.unlink()
    lost = evenhand(tmp_path / "elsewhere", "resume", str(run))
    assert lost.returncode == 1
    assert lost.stderr == (
        "evenhand: there is no module 'mymethods' for the method 'mymethods:PowerLoss'; start"
        " evenhand in the directory that contains it, or install it\n"
    )


def test_its_results_are_those_of_python(tmp_path: Path) -> None:
    own_method.copy_to(tmp_path, "other_methods")
    done = evenhand(
        tmp_path,
        *("compare", *SMALL, "--seeds", "2", "--no-reference", "--out", "r"),
        *("-a", "other_methods:PowerLoss:power=1.5,local.lr=0.05"),
    )
    assert done.returncode == 0, done.stderr
    spec = Spec.load(tmp_path / "r" / "spec.toml")
    found = eh.compare(
        spec, methods={"PowerLoss": (own_method.PowerLoss(1.5), {"lr": 0.05})}, references=()
    )
    theirs = eh.load(tmp_path / "r")
    for seed in (0, 1):
        one, other = (study.trial("PowerLoss", seed) for study in (found.study, theirs))
        for name, value in one.params.items():
            assert value.equal(other.params[name])


def test_a_sweep_has_a_grid_over_it(tmp_path: Path) -> None:
    own_method.copy_to(tmp_path)
    done = evenhand(
        tmp_path,
        *("sweep", *SMALL, "--method", "mymethods:PowerLoss", "--method", "qffl", "--seeds", "1"),
        *("--grid", "PowerLoss.power=1,1.5", "--grid", "qffl.q=0.1", "--out", "r"),
    )
    assert done.returncode == 0, done.stderr
    labels = [method.label for method in Spec.load(tmp_path / "r" / "spec.toml").methods]
    assert labels == [
        "fedavg",
        "localonly",
        "PowerLoss power=1",
        "PowerLoss power=1.5",
        "qffl q=0.1",
    ]


def test_a_class_without_settings_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plainly.py").write_text(
        "import evenhand as eh\n\nclass Plain(eh.Algorithm):\n    pass\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    method = build_algorithm({"name": "plainly:Plain"}, own=True)
    assert type(method).__name__ == "Plain"


def test_specs_and_wrappers_name_it_the_same_way() -> None:
    where = "tests.support.own_method:PowerLoss"
    text = f"""
rounds = 1
[[methods]]
name = "{where}"
power = 3.0
[[methods]]
name = "clipped"
inner = {{ name = "{where}", power = 2.5 }}
"""
    spec = Spec.from_toml(text, "SPEC")
    assert [method.label for method in spec.methods] == ["PowerLoss", "clipped"]
    first, second = (method.algorithm() for method in spec.methods)
    assert first == own_method.PowerLoss(3.0)
    assert second == eh.Clipped(inner=own_method.PowerLoss(2.5))
    assert Spec.from_toml(spec.to_toml(), "again") == spec
    for algorithm in (first, second):
        assert build_algorithm(described(algorithm), own=True) == algorithm
    assert parse_method(f"clipped:inner={where},inner.power=2.5") == {
        "name": "clipped",
        "inner": {"name": where, "power": 2.5},
    }
    twice = Spec().with_methods([{"name": where}, {"name": "a:PowerLoss"}])
    assert [method.label for method in twice.methods] == ["PowerLoss", "PowerLoss-2"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("mymethds:PowerLoss", "there is no module 'mymethds' for the method 'mymethds:PowerLoss'"),
        ("mymethods:PowerLos", "unknown method of .*mymethods.py: 'PowerLos'; did you mean"),
        ("mymethods:helper", "'mymethods:helper' is not a method; name a class that derives"),
        ("mymethods:TwoLayers", "'mymethods:TwoLayers' is not a method"),
        ("mymethods:PowerLoss:powr=2", "unknown keyword of method mymethods:PowerLoss: 'powr'"),
        ("mymethods:PowerLoss:power=0.5", "power must be at least 1, got 0.5; 1 gives FedAvg"),
        ("broken:Mine", "the module of the method 'broken:Mine' cannot be imported: SyntaxError"),
        ("needs:Mine", "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("qffl:q", "cannot read 'q' in 'qffl:q'; write NAME:key=value"),
        ("clipped:inner=mymethods:Nobody", "unknown method of .*mymethods.py: 'Nobody'"),
    ],
)
def test_a_slip_is_refused_in_one_line_and_leaves_no_directory(
    method: str, message: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_method.copy_to(tmp_path)
    (tmp_path / "broken.py").write_text("class Mine(:\n")
    (tmp_path / "needs.py").write_text("import no_such_thing\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mymethods", "broken", "needs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    code, out, err = call("run", *SMALL, "-a", method)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert re.match(f"evenhand: .*{message}", err), err
    assert not (tmp_path / "runs").exists()
    monkeypatch.delitem(sys.modules, "mymethods", raising=False)


FAULTY = """
import evenhand as eh
import torch


class OnlyState(eh.Algorithm):
    def server(self, state, replies):
        return {"model": state["model"]}


class OtherKey(eh.Algorithm):
    def reply(self, model, start, end, data, task, memory):
        return eh.Reply(total={"step": task.own["weight"]}), memory


class WrongShape(eh.Algorithm):
    def server(self, state, replies):
        return {"model": self.helper()}, {}

    def helper(self):
        return torch.zeros(2) + torch.zeros(3)


class NoTask(eh.Algorithm):
    def task(self, state, ids):
        return {"model": state["model"]}
"""
CHECK = "; check it with evenhand.testing.check_algorithm, or rerun with --debug\n"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("OnlyState", r"OnlyState.server must return \(state, info\), two dicts, got dict\n"),
        ("OtherKey", f"the method faulty:OtherKey failed in server: KeyError: 'delta'{CHECK}"),
        (
            "WrongShape",
            f"the method faulty:WrongShape failed in helper: RuntimeError: The size of .*{CHECK}",
        ),
        ("NoTask", f"the method faulty:NoTask failed: AttributeError: .*{CHECK}"),
    ],
)
@pytest.mark.parametrize("command", [("run",), ("compare", "--seeds", "2")])
def test_a_mistake_in_a_method_is_blamed_on_the_method(
    command: tuple[str, ...], method: str, message: str, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.delitem(sys.modules, "faulty", raising=False)
        code, _, err = call(*command, *SMALL, "-q", "-a", f"faulty:{method}")
        sys.modules.pop("faulty", None)
    assert code == 1
    assert re.fullmatch(f"evenhand: {message}", err), err


def test_a_file_here_hides_no_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tomllib.py").write_text("raise RuntimeError('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tomllib")
    with pytest.raises(SpecError, match=r"unknown method of .*tomllib"):
        imported("tomllib:Mine")


def test_only_what_asks_for_it_imports_a_users_code() -> None:
    with pytest.raises(SpecError, match=r"unknown method .tests\.support\.own_method:PowerLoss."):
        build_algorithm({"name": "tests.support.own_method:PowerLoss"})


def test_a_metric_beside_the_command_is_evaluated_and_reported_without_it(tmp_path: Path) -> None:
    module = tmp_path / "mymetrics.py"
    module.write_text(Path(own_metrics.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    metric = ("--metric", "top2=mymetrics:top2", "--metric", "cost=mymetrics:cost")
    done = evenhand(tmp_path, "run", *SMALL, "-a", "qffl", *metric, "--out", "r")
    assert done.returncode == 0, done.stderr
    assert re.search(r"cost +lower +fedavg", done.stdout)
    spec = Spec.load(tmp_path / "r" / "spec.toml")
    assert spec.metrics == {"top2": "mymetrics:top2", "cost": "mymetrics:cost"}
    module.unlink()
    again = evenhand(tmp_path, "report", "r")
    assert again.returncode == 0, again.stderr
    assert "Other metrics" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    wrong = evenhand(tmp_path, "run", *SMALL, "--metric", "top2", "--out", "s")
    assert wrong.returncode == 1
    assert "--metric takes NAME=MODULE:FUNCTION, got 'top2'" in wrong.stderr
