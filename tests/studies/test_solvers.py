"""Local solvers in specs, comparisons and sweeps, on the command line and in run directories."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import evenhand as eh
from evenhand.studies.runs.executing import check
from evenhand.studies.specs.schema import spec_schema
from evenhand.studies.specs.spec import Spec
from tests.support.commands import invoke
from tests.support.federations import network, ragged

TEXT = """
rounds = 3
loss = "cross_entropy"
eval_every = 3
[data]
name = "digits"
clients = 4
[model]
name = "linear"
[local]
solver = "adam"
lr = 0.01
epochs = 1
batch_size = 64
betas = [0.8, 0.99]
clip = 1.0
schedule = { name = "cosine", length = 3, warmup = 1 }
step_schedule = { name = "warmup", length = 2 }
[[methods]]
name = "fedavg"
[[methods]]
name = "fedprox"
local = { lr = 0.02, betas = [0.9, 0.99] }
[[methods]]
name = "localonly"
local = { solver = "sgd", momentum = 0.9, nesterov = true, lr = 0.1 }
"""
ADAM = eh.LocalAdam(
    0.01,
    epochs=1,
    batch_size=64,
    betas=(0.8, 0.99),
    clip=1.0,
    schedule=eh.schedules.Cosine(3, warmup=1),
    step_schedule=eh.schedules.Warmup(2),
)
VALIDATOR = jsonschema.Draft202012Validator(spec_schema())


def test_a_spec_names_its_solver_and_schedules() -> None:
    spec = Spec.from_toml(TEXT, "text")
    found = [spec.build_local(method) for method in spec.methods]
    assert found[0] == ADAM
    assert isinstance(found[1], eh.LocalAdam)
    assert (found[1].lr, found[1].betas, found[1].clip) == (0.02, (0.9, 0.99), 1.0)
    # another solver keeps what it knows too, and forgets betas
    assert found[2] == eh.LocalSGD(
        0.1,
        epochs=1,
        batch_size=64,
        momentum=0.9,
        nesterov=True,
        clip=1.0,
        schedule=eh.schedules.Cosine(3, warmup=1),
        step_schedule=eh.schedules.Warmup(2),
    )
    assert Spec.from_toml(spec.to_toml(), "again") == spec
    check(spec)
    VALIDATOR.validate(tomllib.loads(TEXT))


WRONG = {
    "unknown solver": ('solver = "adam"', 'solver = "adamax"'),
    "unknown schedule": ('name = "cosine"', 'name = "cos"'),
    "unknown key of a schedule": ("warmup = 1", "warm = 1"),
    "a schedule that is no table": (
        'step_schedule = { name = "warmup", length = 2 }',
        'step_schedule = "warmup"',
    ),
    "a schedule without what it needs": ('{ name = "warmup", length = 2 }', '{ name = "warmup" }'),
    "no clipping at all": ("clip = 1.0", "clip = 0.0"),
    "negative epsilon": ("clip = 1.0", "eps = -1.0"),
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_solver_is_refused_by_schema_and_parser(change: str) -> None:
    old, new = WRONG[change]
    assert TEXT.count(old) == 1
    text = TEXT.replace(old, new)
    assert not VALIDATOR.is_valid(tomllib.loads(text))
    with pytest.raises(ValueError, match="local solver") as caught:
        check(Spec.from_toml(text, "text"))
    assert "\n" not in str(caught.value)


def test_a_setting_of_another_solver_is_refused() -> None:
    text = TEXT.replace("clip = 1.0", "momentum = 0.9")
    with pytest.raises(ValueError, match="unknown keyword of local solver: 'momentum'"):
        check(Spec.from_toml(text, "text"))


def test_the_command_line_trains_with_it_and_takes_it_apart(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(TEXT)
    out = tmp_path / "run"
    invoke("run", str(tmp_path / "spec.toml"), "--out", str(out))
    kept = Spec.load(out / "spec.toml")
    assert kept.build_local(kept.methods[0]) == ADAM
    history = (out / "fedavg" / "history.csv").read_text().splitlines()
    column = history[0].split(",").index("lr")
    assert [float(row.split(",")[column]) for row in history[1:]] == [0.005, 0.01, 0.005]


def test_a_method_on_the_command_line_changes_the_solver() -> None:
    from evenhand.studies.specs.parsing import parse_method

    spec = Spec.from_toml(TEXT, "text").with_methods(
        [parse_method("qffl:q=1,local.solver=adamw,local.lr=0.003,local.step_schedule={name='step',every=2}")]
    )  # fmt: skip
    (method,) = spec.methods
    local = spec.build_local(method)
    assert isinstance(local, eh.LocalAdamW)
    assert (local.lr, local.betas) == (0.003, (0.8, 0.99))
    assert local.step_schedule == eh.schedules.Step(2)


def test_a_comparison_from_python_mixes_solvers(tmp_path: Path) -> None:
    methods: dict[str, Any] = {
        "adam": eh.FedAvg(),
        "sgd": (eh.FedAvg(), {"solver": "sgd", "lr": 0.05, "momentum": 0.5}),
        "stepped": (eh.FedAvg(), {"step_schedule": eh.schedules.Step(2)}),
    }
    local = eh.LocalAdam(0.01, batch_size=8, schedule=eh.schedules.Cosine(3))
    settings: dict[str, Any] = {"rounds": 2, "loss": "cross_entropy"}
    found = eh.compare(
        network(), ragged(), methods, local=local, seeds=1, references=(), out=tmp_path / "c",
        **settings,
    )  # fmt: skip
    wanted = {
        "adam": local,
        "sgd": eh.LocalSGD(0.05, batch_size=8, momentum=0.5, schedule=eh.schedules.Cosine(3)),
        "stepped": eh.LocalAdam(
            0.01, batch_size=8, schedule=eh.schedules.Cosine(3), step_schedule=eh.schedules.Step(2)
        ),
    }
    for label, solver in wanted.items():
        alone = eh.fit(network(), ragged(), eh.FedAvg(), local=solver, seed=0, **settings)
        trial = found.study.trial(label, seed=0)
        found_losses, wanted_losses = (list(one.score_columns["loss"]) for one in (trial, alone))
        assert found_losses == pytest.approx(wanted_losses, rel=1e-9, nan_ok=True)
    kept = Spec.load(tmp_path / "c" / "seed-0" / "spec.toml")
    assert kept.local["solver"] == "adam"
    assert kept.local["schedule"] == {"name": "cosine", "length": 3}


def test_a_function_is_kept_by_its_name_only_and_refused_as_a_change(tmp_path: Path) -> None:
    def slower(round: int) -> float:
        return 1 / (1 + round)

    local = eh.LocalSGD(0.1, schedule=slower)
    eh.fit(network(), ragged(), eh.FedAvg(), rounds=2, local=local, out=tmp_path / "run")
    kept = Spec.load(tmp_path / "run" / "spec.toml")
    assert kept.local["schedule"].endswith("slower")
    with pytest.raises(ValueError, match="which a spec or message cannot hold"):
        eh.compare(network(), ragged(), {"a": (eh.FedAvg(), {"schedule": slower})}, rounds=1)


def test_step_sizes_of_adam_are_swept(tmp_path: Path) -> None:
    found = eh.sweep(
        network(),
        ragged(),
        eh.FedAvg(),
        {"local.lr": [0.01, 0.03]},
        rule="mean",
        local=eh.LocalAdam(0.01, batch_size=8),
        seeds=1,
        rounds=2,
        loss="cross_entropy",
        validation=0.3,
        references=(),
    )
    assert found.table("sweep") is not None
