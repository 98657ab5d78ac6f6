"""FedCE: two rounds by hand, special cases, and the published protocol client by client."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine
from torch import Tensor, nn

import evenhand as eh
from evenhand.algorithms.fedce import cosines_to_others
from tests.support import limits
from tests.support.by_hand import near

both = pytest.mark.parametrize("combination", ["plus", "times"])
LR = 0.001
# three clients whose hinge loss has the slope -u, and what they predict: (sample, label)
UPDATES = ((12.0, 0.0), (0.0, 5.0), (0.0, -16.0))
HELD: tuple[list[tuple[tuple[float, float], int]], ...] = (
    [((2, 1), 1), ((0, 1), -1)],
    [((1.5, 1), -1), ((1, 0), 1)],
    [((0, 1), 1), ((1, 0), -1), ((0, -1), 1), ((-1, 0), 1)],
)


def hinges() -> eh.Federation:
    clients = [{"x": np.array([u]), "y": np.array([1])} for u in UPDATES]
    held = [
        {"x": np.array([x for x, _ in one], dtype=float), "y": np.array([y for _, y in one])}
        for one in HELD
    ]
    return eh.Federation.from_arrays(clients, val=held)


def two_weights() -> nn.Linear:
    module = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    return module


def combined(combination: str, novelty: Sequence[float], error: Sequence[float]) -> list[float]:
    found = [
        d / sum(novelty) + e / sum(error) if combination == "plus" else d * e
        for d, e in zip(novelty, error, strict=True)
    ]
    return [value / sum(found) for value in found]


@both
def test_two_rounds_of_three_clients_by_hand(engine: str, combination: str) -> None:
    # round 1, equal weights. The others' sums are (0, -11), (12, -16), (12, 5), so the cosines are
    # 0, -16/20, -5/13 and the novelties 1, 9/5, 18/13, that is (65, 117, 90)/65; all errors are 1
    a, b, c = (65, 117, 90) if combination == "times" else (467, 623, 542)
    first = combined(combination, [1, 9 / 5, 18 / 13], [1, 1, 1])
    assert first == near([x / (a + b + c) for x in (a, b, c)])

    # the model without 1, 2, 3 points along (0, 5 b - 16 c), (12 a, -16 c) and (12 a, 5 b), that is
    # down, below (3, -2), and right and up: of the held samples 1/2, 2/2 and 1/4 are right
    assert 5 * b - 16 * c < 0 < 12 * a < 16 * c / 1.5
    # with client 1 or 2, the model would have all of their first samples the other way round
    assert 1.5 * 12 * a + 5 * b - 16 * c > 0
    error = [1 - 0.5 / 2, 1 - 1 / 2, 1 - 0.25 / 2]

    # round 2, the same updates. The others' sums now have the weights a, b, c
    cosines = [0, -16 * c / math.hypot(12 * a, 16 * c), -5 * b / math.hypot(12 * a, 5 * b)]
    before = [0, -4 / 5, -5 / 13]
    novelty = [1 - (one + other) / 2 for one, other in zip(cosines, before, strict=True)]
    second = combined(combination, novelty, error)

    found = eh.fit(
        two_weights(),
        hinges(),
        eh.FedCE(combination, part="val"),
        loss="hinge",
        rounds=2,
        local=eh.LocalSGD(lr=LR, steps=1),
        engine=engine,
    )
    total = [one + other for one, other in zip(first, second, strict=True)]
    expected = [LR * sum(w * u[k] for w, u in zip(total, UPDATES, strict=True)) for k in (0, 1)]
    assert found.params["weight"][0].tolist() == near(expected)
    assert found.state["contribution"].tolist() == near(second)
    rows = found.history_rows
    assert rows[0]["cosine"] == near(sum(before) / 3)
    assert rows[1]["cosine"] == near(sum(cosines) / 3)
    assert (rows[0]["error"], rows[1]["error"]) == near((1, sum(error) / 3))
    assert rows[1]["largest_weight"] == near(max(second))
    # 1/2, 1 and 1/4 again, because the answers to the last step are in the state too
    assert found.state["answers"].tolist() == [2, 2, 2]


# ---- the server, with given updates and accuracies


def rounds_of(
    method: eh.FedCE,
    updates: Sequence[dict[int, Any]],
    accuracies: Sequence[dict[int, float]],
    clients: int = 3,
) -> list[dict[str, Tensor]]:
    """The server's states after each round, with the weights it used as "weight".

    Those who train but do not answer are left out of ``accuracies``.
    """
    fed = eh.Federation.from_arrays([limits.samples()[0]] * clients)
    question = method.question("review")
    assert question is not None
    state = method.init({"a": torch.zeros(2).double(), "b": torch.zeros(1).double()}, fed.census())
    found = []
    for sent, answered in zip(updates, accuracies, strict=True):
        rows = torch.tensor([sent[i] for i in sorted(sent)], dtype=torch.float64)
        delta = {"a": rows[:, :2], "b": rows[:, 2:]}
        before = torch.cat([state["model"]["a"], state["model"]["b"]])
        state, _ = method.server(
            state, eh.Replies(torch.tensor(sorted(sent)), {}, {"delta": delta})
        )
        weight = state["used"]
        step = before - torch.cat([state["model"]["a"], state["model"]["b"]])
        assert step.tolist() == near((weight[sorted(sent)] @ rows).tolist())
        values = torch.tensor([answered[i] for i in sorted(answered)], dtype=torch.float64)
        ids = torch.tensor(sorted(answered), dtype=torch.int64)
        state = question.learn(state, eh.Replies(ids, {}, {"accuracy": values}))
        found.append({**state, "weight": weight})
    return found


def assert_weights(states: Sequence[dict[str, Tensor]], expected: Sequence[list[float]]) -> None:
    assert len(states) == len(expected)
    for state, row in zip(states, expected, strict=True):
        assert state["weight"].tolist() == near(row)


def test_with_two_clients_times_weighs_by_the_error() -> None:
    # both cosines are those of the angle between the two updates
    updates = [{0: [3, 0, 1], 1: [1, 1, 0]}, {0: [1, 0, 0], 1: [-2, 5, 1]}] * 2
    states = rounds_of(eh.FedCE("times"), updates, [{0: 1.0, 1: 0.5}] * 4, clients=2)
    # after r rounds the errors are 1 - r/(r + 1) and 1 - r/2/(r + 1), that is 2 : r + 2
    assert_weights(states, [[2 / (r + 4), (r + 2) / (r + 4)] for r in range(4)])


@both
def test_orthogonal_updates_are_equally_new(combination: str) -> None:
    updates = [{0: [5, 0, 0], 1: [0, -1, 0], 2: [0, 0, 0.1]}] * 2
    states = rounds_of(eh.FedCE(combination), updates, [{0: 1.0, 1: 0.5, 2: 0.0}] * 2)
    shares = [0.5 / 2.25, 0.75 / 2.25, 1 / 2.25]
    expected = shares if combination == "times" else [(share + 1 / 3) / 2 for share in shares]
    assert_weights(states, [[1 / 3] * 3, expected])


@both
def test_equal_cosines_and_accuracies_give_equal_weights(combination: str) -> None:
    third = 2 * math.pi / 3
    turned = {i: [math.cos(i * third), math.sin(i * third), 0.5] for i in range(3)}
    states = rounds_of(eh.FedCE(combination), [turned] * 3, [dict.fromkeys(range(3), 0.7)] * 3)
    assert_weights(states, [[1 / 3] * 3] * 3)


@both
def test_an_update_along_the_others_keeps_the_least_novelty(combination: str) -> None:
    updates = [{0: [1, 0, 0], 1: [2, 0, 0], 2: [-1, 0, 0]}]
    (state,) = rounds_of(eh.FedCE(combination), updates, [{}])
    # the others of client 0 are 2 - 1 > 0, those of client 1 cancel, client 2 is against both
    novelty = [1e-6, 1, 2]
    assert state["weight"].tolist() == near(combined(combination, novelty, [1, 1, 1]))
    # nobody moves: no direction, and no model is without a client
    (state,) = rounds_of(eh.FedCE(combination), [{i: [0, 0, 0] for i in range(3)}], [{}])
    assert state["weight"].tolist() == near([1 / 3] * 3)


def test_absent_clients_keep_their_means_and_their_share() -> None:
    # client 1 is at right angles to client 0, then against client 2
    updates = [{0: [1, 0, 0], 1: [0, 1, 0]}, {1: [0, 2, 0], 2: [0, -1, 0]}, {0: [1, 0, 0]}]
    updates.append({0: [0, 1, 0], 1: [0, 2, 0], 2: [3, 0, 0]})
    accuracies = [{0: 1.0, 1: 0.0}, {1: 1.0, 2: 0.5}, {0: 0.5}, {}]
    states = rounds_of(eh.FedCE("times"), updates, accuracies)
    # first: all equal. Second: client 1 has novelty 1 + (0 + 1)/2 and error 1, client 2 has 2 and 1
    one, two = 1.5 / 3.5, 2 / 3.5
    # third: client 0 alone; its answer does not count. Until the fourth it has kept a third, and the
    # others share two thirds; its others' sum is (3 g_2, 2 g_1), and it moves along (0, 1)
    g_0, g_1, g_2 = 1 / 3, 2 / 3 * one, 2 / 3 * two
    assert states[2]["contribution"].tolist() == near([g_0, g_1, g_2])
    cosines = [
        2 * g_1 / math.hypot(2 * g_1, 3 * g_2),
        g_0 / math.hypot(g_0, 3 * g_2),
        0.0,
    ]
    novelty = [1 - cosines[0] / 2, 1 - (0 - 1 + cosines[1]) / 3, 1 - (-1 + 0) / 2]
    error = [1 - 1 / 2, 1 - (0 + 1) / 3, 1 - 0.5 / 2]
    expected: list[list[float]] = [
        [0.5, 0.5, 0],
        [0, one, two],
        [1, 0, 0],
        combined("times", novelty, error),
    ]
    assert_weights(states, expected)
    assert states[-1]["contribution"].tolist() == near(expected[-1])
    assert states[-1]["rounds"].tolist() == [2, 3, 2]
    assert states[-1]["answers"].tolist() == [1, 2, 1]


def test_answers_only_count_for_those_whose_updates_did() -> None:
    method = eh.FedCE()
    sent = {0: [1, 0, 0], 1: [0, 1, 0]}
    # the update of client 2 got lost, and client 1 does not answer
    (state,) = rounds_of(method, [sent], [{0: 0.5, 2: 1.0}])
    assert state["answers"].tolist() == [1, 0, 0]
    assert state["accuracy"].tolist() == [0.5, 0, 0]
    # once answered, the question is not asked again if a round fails; nor of a single client
    question = method.question("review")
    assert question is not None
    for now in (state, {**state, "used": torch.tensor([0.0, 1.0, 0.0])}):
        survey = question.ask(now)
        assert survey is not None
        assert not survey.needed


@pytest.mark.parametrize("seed", range(3))
def test_scipy_finds_the_same_cosines(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, weight = generator.normal(size=(4, 9)), generator.uniform(size=4)
    others = [np.delete(weight, i) @ np.delete(rows, i, axis=0) for i in range(4)]
    found = cosines_to_others(torch.tensor(rows), torch.tensor(weight))
    assert found.tolist() == near([1 - cosine(rows[i], others[i]) for i in range(4)])


# ---- whole runs


def as_vector(model: nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def literally(combination: str, rounds: int) -> dict[str, Tensor]:
    """The published protocol with full steps: clients measure the model without their last one at
    the beginning of a round, keep the mean and send it with their update."""
    server, clients = limits.module(), len(limits.SIZES)
    coefficients = np.full(clients, 1 / clients)
    last: list[np.ndarray] = [np.zeros(0)] * clients
    measured: list[list[float]] = [[0.0] for _ in range(clients)]
    cosines: list[list[float]] = [[] for _ in range(clients)]
    for number in range(rounds):
        theta, trained = as_vector(server), []
        for i, (client, loss) in enumerate(
            zip(limits.samples(), limits.client_losses(server), strict=True)
        ):
            if number:
                without = copy.deepcopy(server)
                rest = (theta - coefficients[i] * last[i]) / (1 - coefficients[i])
                nn.utils.vector_to_parameters(torch.tensor(rest), without.parameters())
                guess = without(torch.from_numpy(client["x"])).argmax(1).numpy()
                measured[i].append(float((guess == client["y"]).mean()))
            slopes = torch.autograd.grad(loss, list(server.parameters()))
            slope = np.concatenate([part.numpy().ravel() for part in slopes])
            trained.append(theta - limits.LR * slope)
        moves = [model - theta for model in trained]
        for i in range(clients):
            others = sum(coefficients[j] * moves[j] for j in range(clients) if j != i)
            cosines[i].append(1 - cosine(moves[i], others))
        novelty = [1 - float(np.mean(values)) for values in cosines]
        error = [1 - float(np.mean(values)) for values in measured]
        coefficients = np.array(combined(combination, novelty, error))
        last = trained
        new = torch.tensor(theta + coefficients @ np.array(moves))
        nn.utils.vector_to_parameters(new, server.parameters())
    return {name: tensor.detach() for name, tensor in server.state_dict().items()}


@both
def test_asking_after_the_step_gives_what_the_published_protocol_computes(
    engine: str, combination: str
) -> None:
    found = limits.train(eh.FedCE(combination), engine, rounds=8).params
    limits.assert_same(found, literally(combination, 8))


@both
@pytest.mark.parametrize("fed", [limits.copies(), limits.copies(counts=(1, 1, 1))])
def test_clients_with_the_same_data_are_fedavg_with_uniform_weights(
    engine: str, combination: str, fed: eh.Federation
) -> None:
    # all local data at once: batches differ between clients
    for local in (limits.FULL_STEP, eh.LocalSGD(lr=0.2, steps=3, momentum=0.5, weight_decay=0.01)):
        settings: dict[str, Any] = {"fed": fed, "local": local, "rounds": 6}
        found = limits.train(eh.FedCE(combination), engine, **settings)
        expected = limits.train(eh.FedAvg(), engine, weights="uniform", **settings)
        limits.assert_same(found.params, expected.params)


def test_one_client_is_fedavg(engine: str) -> None:
    alone = eh.Federation.from_arrays([limits.samples()[2]])
    found = limits.train(eh.FedCE(), engine, alone)
    limits.assert_same(found.params, limits.train(eh.FedAvg(), engine, alone).params)
    assert found.state["answers"].tolist() == [0]


def test_every_setting_makes_a_difference() -> None:
    held = limits.samples()
    fed = eh.Federation.from_arrays(held, val=[held[1], held[2], held[3], held[0]])
    settings: dict[str, Any] = {"fed": fed, "rounds": 8, "local": limits.MINI_BATCHES}
    found = [
        limits.train(method, weights="uniform", **settings).params
        for method in (eh.FedAvg(), eh.FedCE(), eh.FedCE("times"), eh.FedCE(part="val"))
    ]
    for i, one in enumerate(found):
        assert all(limits.distance(one, other) > 1e-4 for other in found[:i])


def test_base_weights_do_not_matter(engine: str) -> None:
    found = [
        limits.train(eh.FedCE(), engine, weights=weights).params for weights in ("data", "uniform")
    ]
    limits.assert_identical(*found)


def test_clients_that_join_get_an_equal_share() -> None:
    method = eh.FedCE()
    samples = limits.samples()
    before, after = (
        method.init({"a": torch.zeros(3)}, eh.Federation.from_arrays(clients).census())
        for clients in (samples[:2], samples)
    )
    shares = torch.tensor([0.8, 0.2], dtype=torch.float64)
    joined = method.join({**before, "contribution": shares}, before, after)
    assert joined["contribution"].tolist() == near([0.4, 0.1, 0.25, 0.25])
    assert joined["rounds"].tolist() == [0, 0, 0, 0]


def test_validation_data_must_exist() -> None:
    message = 'FedCE asks clients about their val data, but client 0 has none.*part="train"'
    with pytest.raises(ValueError, match=message):
        limits.train(eh.FedCE(part="val"))


def test_regression_is_refused() -> None:
    fed = eh.Federation.from_arrays([{"x": np.ones((2, 2)), "y": np.ones(2)}] * 2)
    with pytest.raises(ValueError, match="by their accuracy, so it needs a classifier"):
        eh.fit(two_weights(), fed, eh.FedCE(), loss="mse", rounds=1, local=limits.FULL_STEP)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"combination": "sum"}, 'combination must be "plus" or "times"'),
        ({"part": "test"}, 'part must be "train" or "val"'),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.FedCE(**settings)
