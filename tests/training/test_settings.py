"""Settings: one value for how a run is trained, checked in one place."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import evenhand as eh
from evenhand.training.settings import Options
from tests.support.federations import network, ragged

ROOT = Path(__file__).parents[2]
OTHER: dict[str, Any] = {
    "loss": "brier",
    "rounds": 7,
    "local": eh.LocalSGD(lr=0.5),
    "cohort": eh.Uniform(2),
    "seed": 5,
    "engine": "loop",
    "weights": "uniform",
    "device": "cpu",
    "eval_every": 3,
    "checkpoint_every": 2,
    "track_weights": True,
    "precision": "bf16",
    "evaluate": "with training",
    "output": lambda returned: returned,
    "normalisation": "frozen",
    "metrics": {"cost": eh.Metric(lambda output, y: y, better="lower")},
    "keep_predictions": True,
}
# other values of these give another run; loss and output are part of what a checkpoint says of the
# model, and metrics and kept predictions change nothing that is trained
IDENTITY = set(OTHER) - {
    *("loss", "output", "metrics", "engine", "device", "checkpoint_every", "keep_predictions")
}


def test_keywords_are_the_fields() -> None:
    assert list(inspect.get_annotations(Options)) == [field.name for field in fields(eh.Settings)]
    assert OTHER.keys() == {field.name for field in fields(eh.Settings)}


@pytest.mark.parametrize(
    ("entry", "without"), [(eh.fit, set()), (eh.fit_many, {"seed"}), (eh.compare, {"seed"})]
)
def test_entry_points_show_every_field_with_its_default(entry: Any, without: set[str]) -> None:
    shown = inspect.signature(entry).parameters
    for field in fields(eh.Settings):
        assert (field.name in shown) is (field.name not in without), field.name
        if field.name in shown:
            assert shown[field.name].default == field.default


@pytest.mark.parametrize("name", OTHER)
def test_every_field_reaches_the_run(name: str) -> None:
    settings = eh.Settings.of(eh.Settings(rounds=2), {name: OTHER[name]})
    assert getattr(settings, name) == OTHER[name]
    expected = replace(eh.Settings(rounds=2), **{name: OTHER[name]})
    assert settings == expected
    changed = settings.identity(eh.FedAvg()) != eh.Settings(rounds=2).identity(eh.FedAvg())
    assert changed is (name in IDENTITY)


def test_the_identity_is_the_one_of_earlier_checkpoints() -> None:
    assert eh.Settings().identity(eh.FedAvg()) == (
        eh.FedAvg(),
        100,
        eh.LocalSGD(lr=0.1, epochs=1, batch_size=32),
        eh.Full(),
        0,
        "data",
        None,
        False,
        "fp32",
        "after training",
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loss": "quantile"}, "unknown loss 'quantile'"),
        ({"rounds": 0}, "rounds must be a whole number >= 1, got 0"),
        ({"local": 0.1}, "local must be a LocalSolver object"),
        ({"cohort": 10}, "cohort must be a Cohort object"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"engine": "fast"}, "unknown engine 'fast'"),
        ({"weights": "equal"}, 'weights must be "data" or "uniform", got .equal.'),
        ({"eval_every": 0}, "eval_every must be a whole number >= 1"),
        ({"checkpoint_every": 0.5}, "checkpoint_every must be a whole number >= 1"),
        ({"precision": "fp8"}, "precision must be"),
        ({"evaluate": "never"}, 'evaluate must be "after training" or "with training"'),
        ({"round": 3}, "unknown keyword 'round'; did you mean 'rounds'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_refused_when_the_value_is_made(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        eh.Settings.of(None, wrong)
    with pytest.raises((ValueError, TypeError), match=message):
        eh.fit(network(), ragged((3, 4)), eh.FedAvg(), **wrong)


def test_none_takes_the_default_solver_and_cohort() -> None:
    assert eh.Settings.of(None, {"local": None, "cohort": None}) == eh.Settings()


def test_a_value_and_keywords_train_alike() -> None:
    settings = eh.Settings(rounds=2, seed=3, engine="loop")
    federation = ragged((3, 4))
    whole = eh.fit(network(), federation, eh.FedAvg(), settings=settings)
    keywords = eh.fit(network(), federation, eh.FedAvg(), rounds=2, seed=3, engine="loop")
    both = eh.fit(network(), federation, eh.FedAvg(), settings=replace(settings, seed=0), seed=3)
    for other in (keywords, both):
        assert all(whole.params[key].equal(other.params[key]) for key in whole.params)


def test_no_other_function_lists_the_settings() -> None:
    """Who passes five or more of them one by one should take the value whole."""
    names = {field.name for field in fields(eh.Settings)} - {"seed", "weights", "device", "loss"}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                listed = {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)} & names
                entry = node.name == "server_app"
                assert len(listed) < 5 or entry, f"{path.name}: {node.name} lists {listed}"
