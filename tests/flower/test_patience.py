"""What a server does when nobody is there, when what it is asked for cannot be, and when it is
started again."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import torch
from flwr.app import Message
from torch import nn

import evenhand as eh
from evenhand.errors import RunError
from evenhand.flower import client_app, server_app
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import SETTINGS, Setting, flat, one_client

SIZES = (9, 7, 12)


class Leaving(InProcessGrid):
    """All nodes leave after some messages, and come back when somebody has looked for them some
    times."""

    leave_after, looks = 10**9, 0

    def get_node_ids(self) -> list[int]:
        if len(self.sent) < self.leave_after:
            return super().get_node_ids()
        self.looks -= 1
        return [] if self.looks >= 0 else super().get_node_ids()


def leaving(directory: Path, after: int, looks: int) -> Setting:
    setting = Setting(directory, ragged(SIZES), network())
    setting.grid.__class__ = Leaving
    setting.grid.leave_after, setting.grid.looks = after, looks  # type: ignore[attr-defined]
    return setting


def test_a_round_waits_for_nodes_that_are_all_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Setting(tmp_path / "whole", ragged(SIZES), network()).run(METHODS["fedavg"], rounds=3)
    # census, round 1, and gone
    result = leaving(tmp_path / "left", after=6, looks=4).run(METHODS["fedavg"], rounds=3)
    assert "no client has a node any more; round 2 waits up to 600 s for one" in caplog.text
    assert [row["void"] for row in result.history_rows] == [False] * 3
    for key, value in flat(whole).items():
        assert torch.equal(flat(result)[key], value)


def test_where_nobody_comes_back_no_round_is_used_up(tmp_path: Path) -> None:
    setting = leaving(tmp_path, after=6, looks=10**9)
    with pytest.raises(
        RunError,
        match=(
            r"no client came back within 0\.5 s; start the run again, it resumes after its last"
            r" round"
        ),
    ):
        setting.run(METHODS["fedavg"], rounds=3, patience=0.5)
    setting.grid.looks = 0  # type: ignore[attr-defined]
    result = setting.run(METHODS["fedavg"], rounds=3)
    whole = Setting(tmp_path / "whole", ragged(SIZES), network()).run(METHODS["fedavg"], rounds=3)
    for key, value in flat(whole).items():
        assert torch.equal(flat(result)[key], value)


def test_a_run_in_which_nobody_ever_answers_does_not_complete(tmp_path: Path) -> None:
    def mute(node: int, reply: Message) -> list[Message]:
        trained = (
            reply.has_content()
            and "about" in reply.content
            and reply.content["about"].get("work") == "train"
        )
        if trained:
            reply.content["about"]["round"] = 99  # type: ignore[index]
        return [reply]

    with pytest.raises(
        RunError, match="no client answered in any round, for the reasons logged above"
    ):
        Setting(tmp_path, ragged(SIZES), network(), spoil=mute).run(METHODS["fedavg"], rounds=2)


def test_a_model_that_starts_at_random_can_be_resumed(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    setting.grid.app = client_app(
        build, lambda config: one_client(setting.federation, int(config["partition-id"]))
    )
    found: list[eh.Result] = []
    before = torch.random.get_rng_state()
    for _ in range(2):
        app = server_app(
            eh.Ditto(),
            build,
            clients=3,
            out=tmp_path / "run",
            rounds=2,
            finished=found.append,
            **SETTINGS,
        )
        app(setting.grid, setting.grid.contexts[1])
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(SETTINGS["seed"])
        expected = eh.fit(
            build(), setting.federation, eh.Ditto(), rounds=2, engine="loop", **SETTINGS
        )
    for result in found:
        for key, value in flat(expected).items():
            assert torch.equal(flat(result)[key], value)
        assert result.summary["mean"] == pytest.approx(
            expected.summary["mean"]
        )  # of clients' own models, which begin where the module does


def test_a_refused_run_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.run(METHODS["fedavg"], rounds=1)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    sent = len(setting.grid.sent)
    with pytest.raises(
        RunError, match=r"was started with other settings \(seed\); use another directory"
    ):
        setting.run(METHODS["fedavg"], rounds=1, seed=9)
    assert {
        path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    } == before
    assert len(setting.grid.sent) == sent


def test_a_node_that_cannot_take_part_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.contexts[2].node_config["share"] = "nonsense"
    message = (
        "only 2 of 3 nodes registered within 0.7 s; 1 cannot take part, see above and"
        " their logs; start the others"
    )
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError, match=message):
        setting.run(METHODS["fedavg"], rounds=1, patience=0.7)
    assert caplog.text.count("node 2 cannot take part") == 1


def test_rounds_are_told_in_the_servers_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        Setting(tmp_path, ragged(SIZES), network()).run(METHODS["fedavg"], rounds=2)
    assert "round 2 of 2: 3 of 3 clients have answered" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        ({"clients": 0}, ValueError, "clients must be a whole number >= 1"),
        ({"clients": "4"}, ValueError, "clients must be a whole number >= 1"),
        ({"clients": 1.5}, ValueError, "clients must be a whole number >= 1"),
        ({"rounds": -1}, ValueError, "rounds must be a whole number >= 1"),
        ({"eval_every": 0}, ValueError, "eval_every must be a whole number >= 1"),
        ({"seed": -1}, ValueError, "seed must be a whole number >= 0"),
        ({"evaluate": "sometimes"}, ValueError, "evaluate must be"),
        ({"weights": "equal"}, ValueError, "weights must be"),
        ({"loss": "cross_entropi"}, ValueError, "unknown loss 'cross_entropi'"),
        ({"loss": nn.functional.cross_entropy}, TypeError, "loss must be the name of a loss"),
        ({"track_weights": True}, ValueError, "track_weights needs by_client=True"),
        (
            {"keep_predictions": True},
            ValueError,
            "server_app takes no keep_predictions: the samples",
        ),
        ({"engine": "loop"}, TypeError, "server_app takes no engine"),
        ({"device": "cpu"}, TypeError, "server_app takes no device"),
        ({"precision": "bf16"}, TypeError, "server_app takes no precision"),
        ({"checkpoint_every": 5}, TypeError, "server_app takes no checkpoint_every"),
        ({"settings": eh.Settings(device="cpu")}, TypeError, "server_app takes no device"),
        ({"eval_evry": 5}, TypeError, "eval_evry"),
        ({"deadline": -1}, ValueError, "deadline must be"),
        ({"patience": 0}, ValueError, "patience must be"),
        ({"limit": "1GB"}, ValueError, "limit must be a whole number >= 1"),
        ({"cohort": 3}, TypeError, "cohort must be a Cohort"),
        ({"local": 0.1}, TypeError, "local must be a LocalSolver"),
        ({"finished": "x"}, TypeError, "finished must be a function"),
        ({"out": None}, TypeError, "out must be the path of a directory"),
        ({"model": None}, TypeError, "model must be a torch module"),
        ({"algorithm": "qffl"}, TypeError, "algorithm must be an Algorithm object such as FedAvg"),
        ({"algorithm": eh.QFFL}, TypeError, r"the class QFFL; did you mean QFFL\(\)"),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0] if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused_when_the_app_is_made(
    wrong: dict[str, Any], kind: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {
        "algorithm": eh.FedAvg(),
        "model": network(),
        "clients": 3,
        "out": "run",
    }
    with pytest.raises(kind, match=message):
        server_app(**given | wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": None}, "model must be a torch module"),
        ({"load_data": {}}, "load_data must be a function"),
        ({"algorithm": "qffl"}, "algorithm must be an Algorithm"),
    ],
    ids=["model", "load_data", "algorithm"],
)
def test_a_clients_app_is_checked_too(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        client_app(**{"model": network(), "load_data": dict} | wrong)


def test_the_keywords_of_a_server_and_their_defaults_are_shown() -> None:
    shown = inspect.signature(server_app).parameters
    assert list(shown)[:2] == ["algorithm", "model"]
    defaults = {
        "rounds": 100,
        "loss": "cross_entropy",
        "local": eh.LocalSGD(lr=0.1, epochs=1, batch_size=32),
        "cohort": eh.Full(),
        "seed": 0,
        "output": None,
        "normalisation": None,
        "metrics": None,
        "callbacks": (),
        "weights": "data",
        "eval_every": None,
        "evaluate": "after training",
        "track_weights": False,
        "deadline": 600.0,
        "patience": 600.0,
        "limit": 1 << 30,
        "by_client": False,
        "bound": 3.0,
        "admission": None,
        "quorum": 1.0,
        "grace": 30.0,
        "finished": None,
        "columns": None,
        "secure": None,
    }
    assert {name: shown[name].default for name in defaults} == defaults
    assert shown.keys() == {"algorithm", "model", "clients", "out", "settings", *defaults}


def test_settings_as_a_value_are_the_same_as_keywords(tmp_path: Path) -> None:
    found: list[eh.Result] = []
    value = eh.Settings(rounds=2, **SETTINGS)
    for name, given in (("value", {"settings": value}), ("keywords", {"rounds": 2, **SETTINGS})):
        setting = Setting(tmp_path / name, ragged(SIZES), network())
        app = server_app(
            eh.AFL(),
            network(),
            clients=3,
            out=tmp_path / name / "run",
            finished=found.append,
            **given,
        )
        app(setting.grid, setting.grid.contexts[1])
    one, other = map(flat, found)
    assert all(torch.equal(one[key], other[key]) for key in one)
    specs = [(tmp_path / name / "run" / "spec.toml").read_text() for name in ("value", "keywords")]
    assert specs[0] == specs[1]
