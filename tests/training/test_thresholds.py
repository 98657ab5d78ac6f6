"""Thresholds of a trained model: the histograms they come from, its predictions, and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.metrics.calibration import EDGES
from evenhand.metrics.threshold_search import find_thresholds

PARTS = {"train": 400, "val": 300, "test": 500}


def samples(size: int, seed: int) -> dict[str, Any]:
    """Two groups with different base rates; the last feature helps with one of them only."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, size)
    y = (rng.random(size) < 0.3 + 0.3 * group).astype(np.int64)
    x = rng.normal(size=(size, 3)) + np.stack([y, 0.5 * group, y * group], 1)
    return {"x": x, "y": y, "group": np.array(["men", "women"])[group]}


def dealt(clients: int, *parts: str) -> eh.Federation:
    """The same samples, divided over some number of clients."""
    given: dict[str, Any] = {}
    for seed, part in enumerate(PARTS):
        whole = samples(PARTS[part], seed)
        rows = np.array_split(np.random.default_rng(9).permutation(PARTS[part]), clients)
        given[part] = [{key: value[some] for key, value in whole.items()} for some in rows]
    given = {part: given[part] if part in parts else None for part in PARTS}
    return eh.Federation.from_arrays(given["train"], given["test"], given["val"])


def module(outputs: int = 1) -> torch.nn.Module:
    found = torch.nn.Linear(3, outputs).double()
    with torch.no_grad():
        found.weight.copy_(torch.linspace(-0.3, 0.9, 3 * outputs).reshape(outputs, 3))
        found.bias.fill_(-0.4)
    return found


def untrained(federation: eh.Federation, method: eh.Algorithm | None = None, **given: Any) -> Any:
    """A run whose model stays as it was, so that it does not depend on the clients."""
    options = {"loss": "brier", **given}
    local = eh.LocalSGD(lr=1e-300)
    return eh.fit(module(), federation, method or eh.FedAvg(), rounds=1, local=local, **options)


def score(part: str) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return module()(torch.from_numpy(whole(part)["x"])).sigmoid().flatten().numpy()


def whole(part: str) -> dict[str, Any]:
    return samples(PARTS[part], list(PARTS).index(part))


def histogram(part: str) -> np.ndarray[Any, Any]:
    """(2, 2, BINS) counts of one split by group and label, from scores computed here."""
    data, counts = whole(part), np.zeros((2, 2, len(EDGES) + 1), np.int64)
    place = np.searchsorted(EDGES, score(part), side="right")
    np.add.at(counts, ((data["group"] == "women").astype(int), data["y"], place), 1)
    return counts


@pytest.mark.parametrize("parts", [("train", "val", "test"), ("train", "test"), ("train",)])
def test_found_on_validation_data_else_on_training_data(parts: tuple[str, ...]) -> None:
    result = untrained(dealt(4, *parts))
    found = result.thresholds("demographic parity", 0.02)
    used = "val" if "val" in parts else "train"
    judged = "test" if "test" in parts else "train"
    words = {"val": "validation", "train": "training", "test": "test"}
    assert found == find_thresholds(
        histogram(used),
        histogram(judged),
        ["men", "women"],
        "demographic parity",
        0.02,
        found_on=words[used],
        judged_on=words[judged],
    )
    assert found.effect_rows[0]["before"] == pytest.approx(
        float(((score(judged) > 0.5) == whole(judged)["y"]).mean())
    )
    first = next(found.sentences())
    assert first.endswith(f"found on {words[used]} data, judged on {words[judged]} data.")


@pytest.mark.parametrize("notion", ["equalised odds", "equal opportunity", "demographic parity"])
def test_one_two_and_ten_clients_give_the_same_thresholds(notion: str) -> None:
    one, two, ten = (
        untrained(dealt(clients, *PARTS)).thresholds(notion, 0.01) for clients in (1, 2, 10)
    )
    assert one == two == ten


def test_thresholds_by_client_treat_clients_as_groups() -> None:
    result = untrained(dealt(3, *PARTS))
    found = result.thresholds("equal opportunity", by="client")
    assert found.names == ("0", "1", "2")
    assert found.gap < 1e-8
    hist = result.scored["validation"].sum(1)
    assert found.rules == find_thresholds(hist, hist, found.names, "equal opportunity").rules


def test_predictions_use_the_thresholds_of_the_group() -> None:
    result = untrained(dealt(2, *PARTS))
    data = whole("test")
    plain = (score("test") > 0.5).astype(int)
    assert result.predict(data["x"]).tolist() == plain.tolist()
    found = result.thresholds("accuracy")
    fair = result.using(found)
    limit = np.where(data["group"] == "men", found.rules[0][0][1], found.rules[1][0][1])
    expected = (score("test") >= limit).astype(int)
    assert fair.predict(data["x"], group=data["group"]).tolist() == expected.tolist()
    assert expected.tolist() != plain.tolist()
    assert found.effect_rows[0]["after"] == pytest.approx(float((expected == data["y"]).mean()))
    with pytest.raises(ValueError, match="differ by group: give the group"):
        fair.predict(data["x"])
    assert fair.using(None).predict(data["x"]).tolist() == plain.tolist()
    assert result.decision is None


def test_randomised_predictions_have_the_rates_that_the_effect_states() -> None:
    fair = untrained(dealt(2, *PARTS))
    fair = fair.using(fair.thresholds("equalised odds"))
    data = whole("test")
    assert any(len(steps) > 1 for steps in fair.decision.rules)
    drawn = [fair.predict(data["x"], group=data["group"], seed=seed) for seed in range(200)]
    accuracy = float(np.mean([one == data["y"] for one in drawn]))
    assert accuracy == pytest.approx(fair.decision.effect_rows[0]["after"], abs=0.005)


def test_a_common_threshold_needs_no_group() -> None:
    result = untrained(dealt(2, *PARTS))
    found = result.thresholds("demographic parity", 0.5, common=True)
    limit = found.rules[0][0][1]
    chosen = result.using(found).predict(whole("test")["x"])
    assert chosen.tolist() == (score("test") >= limit).astype(int).tolist()


def test_two_outputs_are_scored_by_their_difference() -> None:
    federation = dealt(2, *PARTS)
    result = eh.fit(module(2), federation, eh.FedAvg(), rounds=2, local=eh.LocalSGD(lr=0.1))
    net, x = module(2), torch.from_numpy(whole("test")["x"])
    net.load_state_dict(result.params)
    with torch.no_grad():
        chance, label = net(x).softmax(1)[:, 1].numpy(), net(x).argmax(1)
    assert result.predict(x).tolist() == label.tolist()
    found = result.thresholds("accuracy")
    limits = np.where(whole("test")["group"] == "men", *(steps[0][1] for steps in found.rules))
    chosen = result.using(found).predict(x, group=whole("test")["group"])
    assert chosen.tolist() == (chance >= limits).astype(int).tolist()


def test_personal_models_predict_for_their_own_client() -> None:
    federation = dealt(3, *PARTS)
    local = eh.LocalSGD(lr=0.5, epochs=3)
    result = eh.fit(module(), federation, eh.Ditto(), rounds=2, local=local, loss="brier")
    part = federation.test
    assert result.personal is not None
    found = result.predict(part.x, client=part.owners.numpy())
    assert (found == part.y.numpy()).tolist() == (result.values == 1).tolist()
    assert found[:0].tolist() == result.predict(part.x[:0], client=[]).tolist()
    with pytest.raises(ValueError, match="each client has its own model"):
        result.predict(part.x)


def test_the_engines_find_the_same_thresholds() -> None:
    loop, vmap = (
        untrained(dealt(3, "train", "test"), engine=engine).thresholds("equal opportunity", 0.02)
        for engine in ("loop", "vmap")
    )
    assert loop == vmap


def constant(*, bias: tuple[float, float]) -> torch.nn.Module:
    """A model with the same two outputs for every sample."""
    found = torch.nn.Linear(3, 2).double()
    with torch.no_grad():
        found.weight.zero_()
        found.bias.copy_(torch.tensor(bias))
    return found


@pytest.mark.parametrize("bias", [(1.0, 1.0), (1e-17, 0.0)])
def test_a_score_of_one_half_is_a_no_before_after_and_in_predictions(
    bias: tuple[float, float],
) -> None:
    federation, local = dealt(2, *PARTS), eh.LocalSGD(lr=1e-300)
    result = eh.fit(constant(bias=bias), federation, eh.FedAvg(), rounds=1, local=local)
    y = whole("test")["y"]
    found = result.thresholds("demographic parity", common=True)
    assert found.rules == (((1.0, 0.5),),) * 2
    everyone = found.effect_rows[0]
    assert everyone["before"] == everyone["after"] == pytest.approx((y == 0).mean())
    assert everyone["before"] == pytest.approx(result.values.mean())
    assert not result.predict(whole("test")["x"]).any()
    assert not result.using(found).predict(whole("test")["x"]).any()


def test_a_score_just_above_one_half_is_a_yes() -> None:
    federation, local = dealt(2, *PARTS), eh.LocalSGD(lr=1e-300)
    result = eh.fit(constant(bias=(0.0, 1e-17)), federation, eh.FedAvg(), rounds=1, local=local)
    found = result.thresholds("demographic parity", common=True)
    assert found.effect_rows[0]["before"] == pytest.approx(whole("test")["y"].mean())
    assert result.using(found).predict(whole("test")["x"]).all()


def test_the_most_accurate_common_threshold_needs_no_groups_in_the_data() -> None:
    rows = [
        {key: value for key, value in samples(200, seed).items() if key != "group"}
        for seed in range(2)
    ]
    result = untrained(eh.Federation.from_arrays(rows, test=rows))
    found = result.thresholds("accuracy", common=True)
    assert found.names == ("everyone",)
    y = np.concatenate([row["y"] for row in rows])
    x = np.concatenate([row["x"] for row in rows])
    accuracy = (result.using(found).predict(x) == y).mean()
    assert accuracy == pytest.approx(found.effect_rows[0]["after"])
    assert accuracy >= found.effect_rows[0]["before"]


# ---- refusals


def test_wrong_arguments_are_refused_at_once() -> None:
    result = untrained(dealt(2, *PARTS))
    with pytest.raises(ValueError, match='by must be "group" or "client", got \'hospital\''):
        result.thresholds(by="hospital")
    with pytest.raises(ValueError, match="common must be true or false, got 'yes'"):
        result.thresholds(common="yes")
    with pytest.raises(TypeError, match=r"thresholds must be a Thresholds object .* got str"):
        result.using("hello")


def test_a_model_without_scores_is_refused() -> None:
    result = untrained(dealt(2, *PARTS))
    fair = result.using(result.thresholds("accuracy"))
    lost = {name: torch.full_like(value, torch.nan) for name, value in result.params.items()}
    data = whole("test")
    with pytest.raises(ValueError, match=r"no score \(NaN\) for 500 of 500 samples"):
        dataclasses.replace(fair, params=lost).predict(data["x"], group=data["group"])
    none = {on: np.zeros_like(counts) for on, counts in result.scored.items()}
    tally = {**result.tally, "scored": np.zeros_like(result.tally["scored"])}
    broken = dataclasses.replace(result, scored=none, tally=tally)
    with pytest.raises(ValueError, match=r"the model gives no scores \(NaN\)"):
        broken.thresholds()


def test_a_regression_has_no_thresholds() -> None:
    rows = [{"x": np.eye(3), "y": np.array([0.5, 1.5, 2.5]), "group": ["a", "b", "a"]}]
    federation = eh.Federation.from_arrays(rows, test=rows)
    result = eh.fit(module(), federation, eh.FedAvg(), rounds=1, loss="mse")
    with pytest.raises(ValueError, match="thresholds are for classifiers; this run is a regr"):
        result.thresholds()
    with pytest.raises(ValueError, match="predict_proba is for classifiers"):
        result.predict_proba(np.eye(3))


def test_three_classes_are_refused_but_predicted() -> None:
    rows = [{"x": np.eye(3), "y": np.array([0, 1, 2]), "group": ["a", "b", "a"]}]
    federation = eh.Federation.from_arrays(rows, test=rows)
    result = eh.fit(module(3), federation, eh.FedAvg(), rounds=1)
    assert result.scored == {}
    with pytest.raises(ValueError, match="thresholds are for two classes; this run has 3"):
        result.thresholds()
    net = module(3)
    net.load_state_dict(result.params)
    expected = net(torch.eye(3, dtype=torch.float64)).argmax(1).tolist()
    assert result.predict(np.eye(3)).tolist() == expected


def test_data_without_groups_are_refused_by_group_but_not_by_client() -> None:
    rows = [
        {key: value for key, value in samples(200, seed).items() if key != "group"}
        for seed in range(2)
    ]
    result = untrained(eh.Federation.from_arrays(rows, test=rows))
    with pytest.raises(ValueError, match="thresholds by group need groups"):
        result.thresholds()
    assert result.thresholds("demographic parity", by="client").names == ("0", "1")


def test_a_group_that_only_the_test_data_have_keeps_one_half() -> None:
    train, test = [samples(300, 0)], [samples(300, 1)]
    test[0]["group"] = np.where(np.arange(300) < 30, "other", test[0]["group"])
    result = untrained(eh.Federation.from_arrays(train, test=test))
    found = result.thresholds("demographic parity")
    assert found.names == ("men", "other", "women")
    assert found.rules[1] == ((1.0, 0.5),)
    assert "Group other has 0 training samples" in found.notes[0]
