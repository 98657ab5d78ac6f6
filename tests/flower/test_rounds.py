"""Every method through Flower's messages and apps: what the simulator's loop gives, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

import evenhand as eh
from evenhand.algorithm import visible
from evenhand.flower import records
from evenhand.messages import Reply
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import SETTINGS, SIZES, Setting, flat

Arrived = list[tuple[str, Reply]]  # kinds of work and replies


# a word in what a method says its server sees, and what the keys of such numbers contain
PART_OF_KEY = {"loss": "loss", "predictions": "own_", "accuracy": "accuracy", "gap": "gap"}


def watched(setting: Setting) -> Arrived:
    """All replies that will reach the server."""
    arrived: Arrived = []

    def watch(node: int, reply: Any) -> list[Any]:
        found, about = records.read_reply(reply.content)
        arrived.append((str(about.get("work", "census")), found))
        return [reply]

    setting.grid.spoil = watch
    return arrived


def assert_shows_what_it_says(
    method: eh.Algorithm, federation: eh.Federation, arrived: Arrived
) -> None:
    """What arrives of a single client in training and questions is what the method says, and nothing
    else."""
    seen = visible(method, federation.census())
    each = [reply.each for kind, reply in arrived if kind in ("train", "survey")]
    trees = {key for found in each for key, value in found.items() if isinstance(value, dict)}
    # the server has sent weight and share itself
    numbers = {key for found in each for key in found} - trees - {"weight", "share"}
    assert bool(trees) == any("update" in what for what in seen)
    said = {part for word, part in PART_OF_KEY.items() if any(word in what for what in seen)}
    assert {part for part in PART_OF_KEY.values() if any(part in key for key in numbers)} == said
    assert all(any(part in key for part in said) for key in numbers)
    reported = [reply for kind, reply in arrived if kind == "census"]
    assert all(set(reply.each) == {"train", "val", "test"} for reply in reported)
    assert len(reported) == federation.clients


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_what_the_simulator_gives_to_the_bit(
    method: str, tmp_path: Path
) -> None:
    """With some clients in each round; with all of them see test_join.py."""
    federation, module = ragged(SIZES), network(torch.float64)
    settings = {**SETTINGS, "rounds": 3, "cohort": eh.Uniform(3)}
    reference = eh.fit(module, federation, METHODS[method], engine="loop", **settings)
    setting = Setting(tmp_path, federation, module)
    arrived = watched(setting)
    result = setting.run(METHODS[method], **settings)
    for key, value in flat(reference).items():
        assert torch.equal(flat(result)[key], value), key
    assert [row["answered"] for row in result.history_rows] == [
        row["answered"] for row in reference.history_rows
    ]
    for name in ("count", "accuracy"):  # of personal models too, which are on the nodes alone
        assert result.score_columns[name].tolist() == pytest.approx(
            reference.score_columns[name].tolist(), nan_ok=True
        ), name
    assert result.personal is None
    assert_shows_what_it_says(METHODS[method], federation, arrived)


@pytest.mark.parametrize(
    "method", ["fedavg", "afl", "gifair", "gifair_per", "gifair_exact", "finetuned"]
)
def test_without_teams_messages_show_what_the_method_says_too(method: str, tmp_path: Path) -> None:
    """GIFAIR's server then sees each client's loss in place of a team's."""
    federation = ragged(SIZES[:4], teams=False)
    setting = Setting(tmp_path, federation, network())
    arrived = watched(setting)
    setting.run(METHODS[method], rounds=2, by_client=False)
    assert_shows_what_it_says(METHODS[method], federation, arrived)
    assert not any(reply.each for kind, reply in arrived if kind == "evaluate")


@pytest.mark.parametrize("method", ["fedavg", "afl", "ditto", "gifair_per"])
def test_float32_agrees_within_a_millionth(method: str, tmp_path: Path) -> None:
    federation, module = ragged(SIZES), network(torch.float32)
    reference = eh.fit(module, federation, METHODS[method], rounds=3, engine="vmap", **SETTINGS)
    result = Setting(tmp_path, federation, module).run(METHODS[method], rounds=3)
    for key, value in reference.params.items():
        torch.testing.assert_close(result.params[key], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["qffl", "afl"])
def test_weights_over_rounds_are_the_simulators_where_clients_are_seen(
    method: str, tmp_path: Path
) -> None:
    federation, module = ragged(SIZES), network(torch.float64)
    tracked = {"track_weights": True, "eval_every": 2}
    reference = eh.fit(
        module, federation, METHODS[method], rounds=5, engine="loop", **SETTINGS | tracked
    )
    setting = Setting(tmp_path, federation, module)
    result = setting.run(METHODS[method], **tracked)
    assert result.weight_rounds == reference.weight_rounds == [2, 4, 5]
    np.testing.assert_allclose(result.weight_history, reference.weight_history, rtol=1e-12)
    with pytest.raises(ValueError, match="track_weights needs by_client=True"):
        setting.run(METHODS[method], by_client=False, track_weights=True)


@pytest.mark.parametrize(("method", "exchanges"), [("fedavg", 3), ("ditto", 3), ("finetuned", 4)])
def test_the_last_model_is_evaluated_once_unless_clients_go_on_from_it(
    method: str, exchanges: int, tmp_path: Path
) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network(torch.float64))
    setting.run(METHODS[method], rounds=3, by_client=False, eval_every=1)
    asked = [
        message for message in setting.grid.sent if message.metadata.message_type == "evaluate"
    ]
    assert len(asked) == exchanges * len(SIZES)


@pytest.mark.parametrize(("method", "asks"), [("fedmgda", False), ("fedavg", True), ("afl", True)])
def test_training_data_are_evaluated_only_where_the_method_can_tell_weights(
    method: str, asks: bool, tmp_path: Path
) -> None:
    """FedMGDA+ sees updates, of which reports tell, and has no weights to explain."""
    setting = Setting(tmp_path, ragged(SIZES[:3]), network())
    setting.run(METHODS[method], rounds=1)
    work = [
        json.loads(message.content["about"]["how"])
        for message in setting.grid.sent
        if message.metadata.message_type == "evaluate"
    ]
    assert any(asked["part"] == "train" for asked in work) == asks


@pytest.mark.parametrize("method", ["fedavg", "ditto", "afl"])
def test_without_leave_the_server_sees_sums_alone(method: str, tmp_path: Path) -> None:
    federation, module = ragged(SIZES), network(torch.float64)
    reference = eh.fit(module, federation, METHODS[method], rounds=4, engine="loop", **SETTINGS)
    setting = Setting(tmp_path, federation, module)
    arrived: list[tuple[str, set[str]]] = []
    setting.grid.spoil = lambda node, reply: arrived.append(kind_and_each(reply)) or [reply]
    result = setting.run(METHODS[method], rounds=4, by_client=False)
    # its server looks at each client's loss
    assert {kind for kind, each in arrived if each} == ({"train"} if method == "afl" else set())
    assert result.score_columns["by"] == ["everyone", *["group"] * 3]
    groups = {row["name"]: row["accuracy"] for row in reference.score_rows if row["by"] == "group"}
    assert {
        row["name"]: row["accuracy"] for row in result.score_rows if row["by"] == "group"
    } == pytest.approx(groups)
    assert result.summary == pytest.approx(reference.summary, abs=6e-4)
    for mine, theirs in zip(result.history_rows, reference.history_rows, strict=True):
        assert {name: mine.get(name) for name in ("mean", "std", "loss")} == pytest.approx(
            {name: theirs.get(name) for name in ("mean", "std", "loss")}
        )


def kind_and_each(reply: Any) -> tuple[str, set[str]]:
    """The kind of work that a reply is about, and the names of what it shows of a single client."""
    if reply.has_error() or "about" not in reply.content or "work" not in reply.content["about"]:
        return "", set()
    found, about = records.read_reply(reply.content)
    return str(about["work"]), set(found.each)


def test_an_evaluation_that_some_miss_is_about_the_others_and_weights_are_about_all_or_none(
    tmp_path: Path,
) -> None:
    federation, module = ragged(SIZES), network(torch.float64)
    setting = Setting(tmp_path, federation, module)

    def lose(node: int, reply: Any) -> list[Any]:
        kind, _ = kind_and_each(reply)
        return [] if kind == "evaluate" and node == 2 else [reply]

    setting.grid.spoil = lose
    result = setting.run(METHODS["afl"], rounds=2, deadline=0.3)
    assert result.score_columns["count"].tolist()[:5] == [
        *[int(federation.test.sizes[0]), 0],
        *federation.test.sizes.tolist()[2:],
    ]
    assert result.certificate is None
    setting.grid.spoil = lambda node, reply: (
        [] if kind_and_each(reply)[0] == "evaluate" else [reply]
    )
    with pytest.raises(eh.RunError, match="no client answered the last evaluation"):
        setting.run(METHODS["fedavg"], rounds=2, deadline=0.3, out=tmp_path / "other")


def test_a_client_that_counts_other_samples_than_it_told_of_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation, module = ragged(SIZES), network(torch.float64)
    setting = Setting(tmp_path, federation, module)

    def more(node: int, reply: Any) -> list[Any]:
        if kind_and_each(reply)[0] == "evaluate" and node == 2:
            found, about = records.read_reply(reply.content)
            found.each["count"][0] += 1
            reply.content = records.reply_content(found, about)
        return [reply]

    setting.grid.spoil = more
    result = setting.run(METHODS["fedavg"], rounds=1)
    assert result.score_columns["count"].tolist()[:5] == [
        *[int(federation.test.sizes[0]), 0],
        *federation.test.sizes.tolist()[2:],
    ]
    assert "client 1: not what the node reported at the start: each/count; skipped" in caplog.text
