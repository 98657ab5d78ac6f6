"""Work in words: every method and kind of work comes back equal, and a node does nothing that it
cannot know."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.algorithm import Algorithm
from evenhand.algorithms import ALGORITHMS
from evenhand.engines.work import Ask, Evaluate, Train, Work
from evenhand.errors import SpecError
from evenhand.flower import client_app, server_app
from evenhand.flower.wire import describe_work, read_work
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import SETTINGS, one_client, trusting
from tests.support.own_method import PowerLoss

LOCALS = {
    "epochs": eh.LocalSGD(lr=0.1, epochs=3, batch_size=8),
    "steps": eh.LocalSGD(
        lr=1 / 3, steps=7, batch_size=None, momentum=0.9, weight_decay=1e-5, decay=0.99
    ),
    "defaults": eh.LocalSGD(lr=5e-324),  # the smallest number there is
}


def kinds(algorithm: Algorithm) -> list[Work]:
    return [
        *(Train(algorithm, local) for local in LOCALS.values()),
        Ask(algorithm),
        Evaluate(algorithm, 3),
        Evaluate(algorithm, 0, "val", full=True, clients=1_000_000),
        Evaluate(algorithm, 2, "train", clients=5),
    ]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_kind_of_work_comes_back_equal(method: str) -> None:
    algorithm = METHODS[method]
    for work in kinds(algorithm):
        again = read_work(describe_work(work, algorithm))
        assert again == work
        assert type(again) is type(work)
        assert repr(again) == repr(work)  # 1 and True are equal, and print differently


def test_work_of_no_method_in_particular_comes_back_equal() -> None:
    """The training losses that a certificate needs are of the shared model, whatever the method."""
    work = Evaluate(Algorithm(), 3, "train")
    again = read_work(describe_work(work, eh.Ditto(lam=0.5)))
    assert type(again.algorithm) is Algorithm  # type: ignore[attr-defined]
    assert replace(again, algorithm=work.algorithm) == work  # type: ignore[type-var]


def test_the_work_after_the_last_round_comes_back_equal() -> None:
    method = METHODS["finetuned"]
    last = method.local_work().last
    assert last is not None
    assert last != method
    for work in kinds(last):
        assert read_work(describe_work(work, method)) == work


def test_methods_with_one_setting_changed_stay_apart() -> None:
    words = {
        describe_work(Ask(replace(eh.QFFL(), q=q)), replace(eh.QFFL(), q=q))
        for q in (0.0, 0.1, 0.1 + 2**-56, 1.0)
    }
    assert len(words) == 4


@dataclass(frozen=True)
class Halved(eh.FedAvg):
    """A method of a user's own."""

    by: float = 2.0


def test_a_method_of_ones_own_is_the_one_that_the_node_was_given() -> None:
    theirs, ours = Halved(by=3.0), Halved(by=4.0)
    words = describe_work(Ask(theirs), theirs)
    assert "Halved" not in words
    assert "3.0" not in words
    assert read_work(words, ours) == Ask(ours)
    # only where it is asked for
    assert read_work(describe_work(Ask(METHODS["afl"]), METHODS["afl"]), ours) == Ask(
        METHODS["afl"]
    )
    with pytest.raises(SpecError, match=r"give it to client_app\(algorithm=\.\.\.\) on every node"):
        read_work(words)


def test_a_method_of_ones_own_runs_where_nodes_have_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation, module, method = ragged((2, 12, 7)), network(), Halved()
    found: list[eh.Result] = []

    def run(name: str, **given: Any) -> eh.Result:
        app = client_app(
            module, lambda config: one_client(federation, int(config["partition-id"])), **given
        )
        configs: list[dict[str, Any]] = [
            {"partition-id": i, "state-dir": str(tmp_path / name), "policy": trusting(tmp_path)}
            for i in range(3)
        ]
        grid = InProcessGrid(app, configs)
        settings = {
            **SETTINGS,
            "clients": 3,
            "out": tmp_path / name / "run",
            "rounds": 2,
            "eval_every": 2,
        }
        server_app(method, module, finished=found.append, **settings)(grid, grid.contexts[1])
        return found[-1]

    result = run("with", algorithm=method)
    expected = eh.fit(
        module, federation, eh.FedAvg(), rounds=2, engine="loop", **{**SETTINGS, "eval_every": 2}
    )
    assert all(torch.equal(result.params[key], value) for key, value in expected.params.items())


def words(**changes: Any) -> str:
    told = {
        "kind": "train",
        "part": "train",
        "local": {"lr": 0.1},
        "method": {"name": "qffl", "q": 1.0},
        "last": False,
    }
    told |= (
        {"groups": 1, "full": False, "clients": 1, "by_client": True}
        if changes.get("kind") == "evaluate"
        else {}
    )
    return json.dumps({key: value for key, value in (told | changes).items() if value is not ...})


def test_the_words_of_these_tests_are_right_but_for_what_is_changed() -> None:
    assert read_work(words()) == Train(eh.QFFL(q=1.0), eh.LocalSGD(lr=0.1))
    assert isinstance(read_work(words(kind="evaluate")), Evaluate)
    assert isinstance(read_work(words(kind="survey")), Ask)


class Touched(Exception):
    """Something was called that must not be."""


@pytest.mark.parametrize(
    "hostile",
    [
        # no words at all
        "",
        "{",
        "[]",
        "null",
        "1",
        '"train"',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"kind": ' + "9" * 10_000 + "}",
        # kinds of work
        words(kind="shell"),
        words(kind=["train"]),
        words(kind=...),
        words(kind="census"),
        # methods outside the registry
        words(method={"name": "os.system"}),
        words(method={"name": "evenhand.algorithms.fedavg.FedAvg"}),
        words(method={"name": "__import__"}),
        words(method={"name": "tests.support.own_method:PowerLoss"}),
        words(method={"name": "fedprox", "inner": {"name": "tests.support.own_method:PowerLoss"}}),
        words(method={"name": "fedprox", "inner": "tests.support.own_method:PowerLoss"}),
        words(method={"name": "FedAvg"}),
        words(method={"name": "tuning", "epochs": 1}),
        words(method="nobody's"),
        words(method={"name": ["qffl"]}),
        words(method={"name": "fedprox", "inner": {"name": "subprocess.run"}}),
        words(method={"name": "qffl", "inner": {"name": "qffl"}}),
        words(method=["qffl"]),
        words(method=7),
        words(method=...),
        words(last="yes"),
        words(last=...),
        words(last=True),
        words(plain="true", method=...),
        # settings
        words(method={"name": "qffl", "__class__": "x"}),
        words(method={"name": "qffl", "q": "1.0"}),
        words(method={"name": "qffl", "q": True}),
        words(method={"name": "qffl", "q": None}),
        words(method={"name": "qffl", "q": float("nan")}),
        words(method={"name": "qffl", "q": float("inf")}),
        words(method={"name": "qffl", "q": 10**400}),
        words(method={"name": "qffl", "q": [1]}),
        words(method={"name": "qffl", "q": {"name": "fedavg"}}),
        words(method={"name": "qffl", "solver": "exec"}),
        words(local={"lr": 0.1, "closure": "print"}),
        words(local={"lr": "0.1"}),
        words(local={"lr": 0.0}),
        words(local={"lr": 10**400}),
        words(local={"lr": 0.1, "steps": 2**70}),
        words(local={"lr": 0.1, "epochs": -1}),
        words(local={"lr": 0.1, "epochs": 1, "steps": 1}),
        words(local={"lr": 0.1, "batch_size": 0}),
        words(local={}),
        words(local=[0.1]),
        words(local=...),
        # parts and numbers
        words(part="__class__"),
        words(part="fingerprint"),
        words(part=["train"]),
        words(part=...),
        words(kind="evaluate", groups=-1),
        words(kind="evaluate", groups=2**40),
        words(kind="evaluate", groups=1.5),
        words(kind="evaluate", groups=True),
        words(kind="evaluate", clients=0),
        words(kind="evaluate", clients="many"),
        words(kind="evaluate", full=1),
        words(kind="evaluate", full=...),
    ],
    ids=lambda text: text[:100],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(*arguments: Any, **options: Any) -> None:
        raise Touched

    for name in ("eval", "exec", "compile"):
        monkeypatch.setattr(f"builtins.{name}", touched)
    monkeypatch.setattr("os.system", touched)
    with pytest.raises(SpecError) as caught:
        read_work(hostile)
    monkeypatch.undo()
    assert 0 < len(str(caught.value).splitlines()) < 2


@pytest.mark.parametrize("name", ["their_code:Mine", "their_code", "their_code.Mine"])
def test_a_message_imports_no_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spec may name a method by its module; a message may not, whatever lies on the node."""
    (tmp_path / "their_code.py").write_text(
        "from pathlib import Path\nPath('touched').touch()\n"
        "from evenhand import FedAvg\nclass Mine(FedAvg): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for method in ({"name": name}, {"name": "fedprox", "mu": 0.1, "inner": {"name": name}}):
        with pytest.raises(SpecError, match=f"unknown method '{name}'"):
            read_work(words(method=method))
    assert not (tmp_path / "touched").exists()


def test_a_users_own_method_travels_without_its_module() -> None:
    own = PowerLoss(3.0)
    told = describe_work(Ask(own), own)
    assert "own_method" not in told
    assert "PowerLoss" not in told


def test_methods_inside_each_other_without_end_are_refused() -> None:
    table: Any = {"name": "fedavg"}
    for _ in range(150):
        table = {"name": "fedprox", "mu": 0.1, "inner": table}
    text = words(method=table).replace(
        '{"name": "fedavg"}',
        '{"name": "fedprox", "mu": 0.1, "inner": ' * 60 + '{"name": "nobody\'s"}' + "}" * 60,
    )
    with pytest.raises(SpecError):
        read_work(text)


def test_work_that_is_no_kind_of_evenhands_does_not_travel() -> None:
    class Odd:
        name = "odd"

    with pytest.raises(TypeError, match="Odd cannot be sent to nodes"):
        describe_work(Odd(), eh.FedAvg())  # type: ignore[arg-type]


def test_all_methods_of_the_registry_are_among_those_tried() -> None:
    def tried(algorithm: Algorithm) -> set[type]:
        inner = getattr(algorithm, "inner", None)
        return {type(algorithm)} | (tried(inner) if inner is not None else set())

    # a private method has a secret, and a file of its own
    assert set().union(*map(tried, METHODS.values())) == set(ALGORITHMS.values()) - {eh.Private}
