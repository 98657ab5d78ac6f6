"""What is public, and that the small modules do what they say."""

from __future__ import annotations

import dataclasses
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evenhand as eh
from evenhand import files, tree
from evenhand.engines.replay import CALLS_BEFORE_TRACING, Replayed
from evenhand.studies.runs.executing import check
from evenhand.studies.specs.spec import Spec
from tests.support.federations import METHODS, network, ragged

ROOT = Path(__file__).parent.parent


def test_all_names_exist_and_nothing_else_is_listed() -> None:
    assert dir(eh) == sorted(eh.__all__)
    for name in eh.__all__:
        assert getattr(eh, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'FedAverage'"):
        eh.FedAverage  # noqa: B018 (the access is the test)


@pytest.mark.parametrize(
    ("chosen", "count"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["default", "own count", "own policy"],
)
def test_idle_threads_sleep_unless_the_user_chose_otherwise(
    chosen: dict[str, str], count: str
) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    look = (
        "import os, sys, evenhand; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], env=kept | chosen, capture_output=True, text=True, check=True
    )
    # OpenMP reads it once, when torch is imported
    assert done.stdout.split() == [count, "False"]


def test_commands_keep_numpy_to_one_thread_without_loading_it() -> None:
    kept = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    look = (
        "import os, sys, evenhand; assert 'OPENBLAS_NUM_THREADS' not in os.environ;"
        "import evenhand.cli; print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], env=kept, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "False"]


@pytest.mark.parametrize(
    "script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem
)
def test_examples_run(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_made_up_patients_are_those_of_their_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "make_patients.py"), run_name="__main__")
    made, kept = tmp_path / "patients.csv", ROOT / "examples" / "patients.csv"
    assert made.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8")
    assert kept.stat().st_size < 100_000


def test_every_method_prints_itself_compares_and_is_hashable() -> None:
    for algorithm in METHODS.values():
        twin = type(algorithm)(
            **{
                field.name: getattr(algorithm, field.name)
                for field in dataclasses.fields(algorithm)
            }
        )
        assert twin == algorithm
        assert repr(twin) == repr(algorithm)
        assert type(algorithm).__name__ in repr(algorithm)
        assert hash(twin) == hash(algorithm)


def test_default_spec_survives_toml() -> None:
    spec = Spec.default()
    check(spec)
    assert Spec.from_toml(spec.to_toml(), "test") == spec


def test_trees_flatten_and_come_back_with_awkward_keys() -> None:
    original = {"a/b": {"c~1": torch.ones(2)}, "d": torch.zeros(())}
    flat = tree.flatten(original)
    back = tree.unflatten(flat)
    assert list(back) == ["a/b", "d"]
    assert torch.equal(back["a/b"]["c~1"], original["a/b"]["c~1"])


def test_tree_algebra() -> None:
    a = {"x": torch.tensor([1.0, 2.0]), "y": {"z": torch.tensor(3.0)}}
    b = {"x": torch.tensor([10.0, 20.0]), "y": {"z": torch.tensor(30.0)}}
    assert tree.dot(a, b).item() == 10 + 40 + 90
    assert tree.sqnorm(a).item() == 1 + 4 + 9
    assert tree.leaves(tree.sub(b, tree.scale(a, 10.0)))[1].item() == 0
    assert tree.where(torch.tensor(False), a, b)["x"].tolist() == [10, 20]
    assert tree.row(tree.stack([a, b]), 1)["y"]["z"].item() == 30
    with pytest.raises(ValueError, match="differ in keys"):
        tree.add(a, {"x": torch.zeros(2)})


def test_rows_survive_a_file(tmp_path: Path) -> None:
    rows = [
        {"round": 1, "name": "007", "lr": 0.1, "void": False, "left_out": ""},
        {"round": 2, "name": "nan", "lr": 1 / 3, "void": True, "left_out": "a b", "mean": 0.5},
    ]
    files.write_rows(tmp_path / "rows.csv", rows)
    expected = [{key: value for key, value in row.items() if value != ""} for row in rows]
    assert files.read_rows(tmp_path / "rows.csv", text=("name",)) == expected


def test_a_function_is_replayed_when_its_shapes_have_come_up_often_and_only_for_them() -> None:
    calls = []

    def function(shared: tree.Tree, inputs: tree.Tree) -> tree.Tree:
        calls.append(1)
        return {"out": (inputs["x"] @ shared["w"]).tanh(), "same": {"x": inputs["x"]}}

    replayed = Replayed(function)
    shared = {"w": torch.randn(3, 2)}
    for step in range(CALLS_BEFORE_TRACING + 30):
        inputs = {"x": torch.randn(4, 3) + step}
        result = replayed(shared, inputs)
        assert torch.equal(result["out"], (inputs["x"] @ shared["w"]).tanh())
        assert torch.equal(result["same"]["x"], inputs["x"])
    assert len(calls) == CALLS_BEFORE_TRACING + 1  # once more for the trace, never after
    replayed(shared, {"x": torch.randn(5, 3)})
    assert len(calls) == CALLS_BEFORE_TRACING + 2


def test_frozen_parameters_buffers_and_tied_weights_come_back_under_their_names() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(5, 5, dtype=torch.float64)
            self.second = torch.nn.Linear(5, 5, dtype=torch.float64)
            self.second.weight = self.first.weight
            self.frozen = torch.nn.Linear(5, 3, dtype=torch.float64).requires_grad_(False)
            self.register_buffer("shift", torch.ones(5, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.second(self.first(x + self.shift)))

    module = Tied()
    results = [
        eh.fit(module, ragged(), eh.FedAvg(), rounds=2, engine=engine)
        for engine in ("loop", "vmap")
    ]
    torch.testing.assert_close(results[0].params, results[1].params)
    params = results[0].params
    assert list(params) == list(module.state_dict())
    assert torch.equal(params["first.weight"], params["second.weight"])
    assert not torch.equal(params["first.weight"], module.first.weight)
    assert torch.equal(params["frozen.weight"], module.frozen.weight)
    assert torch.equal(params["shift"], module.shift)
    module.load_state_dict(params)


def test_a_method_written_outside_runs_on_both_engines() -> None:
    """The example of the contributor's guide: a method with one changed function."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Squared(eh.Algorithm):
        def objective(
            self, model: eh.Model, variables: tree.Tree, batch: eh.Batch, task: eh.Task
        ) -> torch.Tensor:
            return model.loss(variables["model"], batch) ** 2

    results = [
        eh.fit(network(), ragged(), Squared(), rounds=3, engine=engine)
        for engine in ("loop", "vmap")
    ]
    torch.testing.assert_close(results[0].params, results[1].params, rtol=1e-12, atol=1e-12)


def test_a_method_may_send_nothing_and_have_fields_that_cannot_be_hashed() -> None:
    """Training alone, as a method: the client keeps its model and replies with nothing."""
    from dataclasses import dataclass, field

    @dataclass(frozen=True)
    class Alone(eh.Algorithm):
        notes: list[str] = field(default_factory=list)
        personal = True

        def server(
            self, state: tree.Tree, replies: eh.Replies
        ) -> tuple[tree.Tree, dict[str, float]]:
            assert not replies.total
            assert not replies.each
            return state, {}

        def start(self, task: eh.Task, memory: tree.Tree) -> tree.Tree:
            return {"model": memory["model"]}

        def reply(
            self,
            model: eh.Model,
            start: tree.Tree,
            end: tree.Tree,
            data: eh.Batch,
            task: eh.Task,
            memory: tree.Tree,
        ) -> object:
            return eh.Reply(), {"model": end["model"]}

        def memory(self, params: tree.Tree) -> tree.Tree:
            return {"model": params}

        def deployed(self, shared: tree.Tree, memory: tree.Tree) -> tree.Tree:
            return memory["model"]

    local = eh.LocalSGD(lr=0.1, epochs=1, batch_size=16)
    for engine in ("loop", "vmap"):
        alone = eh.fit(network(), ragged(), Alone(["a list"]), rounds=3, local=local, engine=engine)
        ditto = eh.fit(network(), ragged(), eh.Ditto(lam=0.0), rounds=3, local=local, engine=engine)
        assert alone.personal is not None
        assert ditto.personal is not None
        for mine, theirs in zip(alone.personal, ditto.personal, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone.params, network().state_dict())
