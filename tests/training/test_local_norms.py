"""FedBN: BatchNorm's parameters and statistics stay with each client."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand import tree
from evenhand.algorithms.local_norms import OWN, LocalNorms
from evenhand.data.samples import Batch, Samples
from evenhand.engines.simulator import Simulator
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.norms import PureBatchNorm
from evenhand.studies.specs.spec import Spec
from evenhand.tree import Tree
from tests.support.batchnorm import (
    FED,
    ONE,
    SIZES,
    SOLVER,
    apart,
    arrays,
    cnn,
    mlp,
    norm_keys,
    trained,
)  # fmt: skip

LOCAL: dict[str, Any] = {"normalisation": "local"}


# ---- the layer


@pytest.mark.parametrize("shape", [(), (4,), (3, 3), (2, 2, 2)])
@pytest.mark.parametrize("junk", [5.0, torch.inf, torch.nan])
def test_padding_does_not_count(shape: tuple[int, ...], junk: float) -> None:
    torch.manual_seed(0)
    kind = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[len(shape)]
    plain = kind(3).double()
    nn.init.normal_(plain.weight)
    layer = copy.deepcopy(plain)
    layer.__class__ = PureBatchNorm
    for _ in range(3):
        x = torch.randn(5, 3, *shape, dtype=torch.float64).requires_grad_()
        padded = torch.cat([x.detach(), torch.full_like(x[:2], junk).detach()]).requires_grad_()
        layer.rows = torch.tensor([1.0] * 5 + [0.0] * 2)
        wanted, found = plain(x), layer(padded)[:5]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        wanted.pow(3).sum().backward()
        found.pow(3).sum().backward()
        torch.testing.assert_close(padded.grad[:5], x.grad, rtol=0, atol=1e-10)
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(layer.state_dict()[key], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [[1.0], [1.0, 0.0], [0.0, 0.0]])
def test_one_value_per_channel_is_normalised_by_running_statistics(rows: list[float]) -> None:
    layer = nn.BatchNorm1d(3)
    layer.running_mean, layer.running_var = torch.arange(3.0), torch.arange(3.0) + 1
    before = copy.deepcopy(layer.state_dict())
    layer.__class__ = PureBatchNorm
    layer.rows = torch.tensor(rows)
    x = torch.randn(len(rows), 3).requires_grad_()
    wanted = nn.functional.batch_norm(x, before["running_mean"], before["running_var"])
    found = layer(x)
    real = layer.rows > 0  # padding gets any value
    torch.testing.assert_close(found[real], wanted[real])
    found.sum().backward()
    assert bool(x.grad.isfinite().all())
    for key, value in before.items():
        assert torch.equal(layer.state_dict()[key], value)


def test_batches_of_one_sample_train() -> None:
    data = eh.Federation.from_arrays(arrays((1, 5)), test=arrays((2, 2), 1))
    result = eh.fit(
        mlp(), data, eh.FedAvg(), rounds=2, local=eh.LocalSGD(0.05, batch_size=2), **LOCAL
    )
    seen = [own["2.num_batches_tracked"].item() for own in result.personal or []]
    assert seen == [0, 4]  # of five samples in batches of two, the last has one
    assert all(
        bool(value.isfinite().all()) for own in result.personal or [] for value in own.values()
    )


# ---- one client: what torch does


def torch_trained(
    module: nn.Module, solver: eh.LocalSGD, rounds: int, batches: list[list[Tensor]]
) -> nn.Module:
    """A plain module after ``torch.optim.SGD`` in training mode, on each round's batches."""
    twin = copy.deepcopy(module).train()
    x, y = (torch.as_tensor(arrays(ONE)[0][name]) for name in "xy")
    x = x.to(next(twin.parameters()).dtype)
    for chosen in batches[:rounds]:
        step = torch.optim.SGD(
            twin.parameters(), solver.lr, solver.momentum, weight_decay=solver.weight_decay
        )
        for index in chosen:
            step.zero_grad()
            nn.functional.cross_entropy(twin(x[index]), y[index]).backward()
            if solver.clip is not None:
                nn.utils.clip_grad_norm_(twin.parameters(), solver.clip)
            step.step()
    return twin


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 5e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("make", [cnn, mlp])
@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_one_client_trains_as_torch_does(
    make: Any, dtype: torch.dtype, close: float, momentum: float | None, engine: str
) -> None:
    module = make(dtype, momentum=momentum)
    one = eh.Federation.from_arrays(arrays(ONE), test=arrays((4,), 1))
    solver = eh.LocalSGD(0.05, epochs=2, batch_size=4, momentum=0.9, weight_decay=0.01, clip=1.0)
    ids = torch.zeros(1, dtype=torch.int64)
    batches = []
    for round in range(3):
        # the engine's own order of samples, without padding
        found = solver.batches(ids, torch.tensor(ONE), ONE[0], round, 0)
        batches.append(
            [row[valid] for row, valid in zip(found.positions[0], found.valid[0], strict=True)]
        )
    result = eh.fit(
        module, one, eh.FedAvg(), rounds=3, engine=engine, local=solver, normalisation="local"
    )
    expected = torch_trained(module, solver, 3, batches).state_dict()
    assert result.personal is not None
    for key, value in expected.items():
        assert result.personal[0][key].dtype == value.dtype
        torch.testing.assert_close(result.personal[0][key], value, rtol=0, atol=close)


def test_adam_leaves_running_statistics_alone() -> None:
    module = mlp()
    one = eh.Federation.from_arrays(arrays(ONE), test=arrays((4,), 1))
    solver = eh.LocalAdamW(0.01, steps=4, weight_decay=0.1)
    result = eh.fit(module, one, eh.FedAvg(), rounds=1, local=solver, **LOCAL)
    x, y = (torch.as_tensor(arrays(ONE)[0][name]) for name in "xy")
    step = torch.optim.AdamW(module.parameters(), 0.01, weight_decay=0.1)
    for _ in range(4):
        step.zero_grad()
        nn.functional.cross_entropy(module.train()(x), y).backward()
        step.step()
    assert result.personal is not None
    for key, value in module.state_dict().items():
        torch.testing.assert_close(result.personal[0][key], value, rtol=0, atol=1e-9)


# ---- several clients


def trained_alone(module: nn.Module, client: int, steps: int, lr: float) -> dict[str, Tensor]:
    """What plain SGD on all of a client's data gives, with torch."""
    twin = copy.deepcopy(module).train()
    x, y = (torch.as_tensor(arrays(SIZES)[client][name]) for name in "xy")
    step = torch.optim.SGD(twin.parameters(), lr)
    for _ in range(steps):
        step.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        step.step()
    return twin.state_dict()


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_fedavg_averages_everything_but_normalisation(engine: str) -> None:
    module, sizes = cnn(), torch.tensor(SIZES).double()
    result = trained(
        module, eh.FedAvg(), rounds=1, engine=engine, local=eh.LocalSGD(0.1, steps=3), **LOCAL
    )
    alone = [trained_alone(module, client, 3, 0.1) for client in range(3)]
    own = norm_keys(module)
    assert len(own) == 10
    for key, value in module.state_dict().items():
        stacked = torch.stack([each[key] for each in alone]).double()
        mean = torch.einsum("k,k...->...", sizes / sizes.sum(), stacked)
        for client, model in enumerate(result.personal or []):
            wanted = alone[client][key] if key in own else mean
            torch.testing.assert_close(model[key].double(), wanted.double(), rtol=0, atol=1e-12)
        wanted = value if key in own else mean
        torch.testing.assert_close(result.params[key].double(), wanted.double(), rtol=0, atol=1e-12)


METHODS = (
    eh.FedAvg(), eh.QFFL(q=1.0), eh.AFL(), eh.AFL(order="before"), eh.Ditto(), eh.DRFA(),
    eh.FineTuned(), eh.FedMDFG(), eh.EAGLE(), eh.FedCE(), eh.LocalOnly(), eh.Clipped(0.1),
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_engines_agree(method: eh.Algorithm) -> None:
    # batches of 5 do not divide 12 and 17 samples, and vmap pads the smaller clients
    options: dict[str, Any] = {"rounds": 2, "cohort": eh.Uniform(2), "seed": 1}
    options |= {"local": eh.LocalSGD(0.05, batch_size=5)}
    if isinstance(method, eh.DRFA):
        del options["cohort"]
    results = [
        trained(mlp(), method, engine=engine, **LOCAL, **options) for engine in ("loop", "vmap")
    ]
    assert apart(*results) < 1e-12
    assert type(results[0].algorithm) is type(method)
    for one, other in zip(*(result.history_rows for result in results), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        eh.Reweighed(), eh.Reweighed(scope="global"), eh.GroupConstraint(), eh.FCFL(), eh.FedFB(),
        eh.MFairFL(),
    ],
    ids=lambda method: type(method).__name__,
)  # fmt: skip
def test_engines_agree_for_methods_of_groups(method: eh.Algorithm) -> None:
    rng = np.random.default_rng(0)

    def some(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
        return [
            {
                "x": rng.normal(k, 1, (n, 1, 8, 8)),
                "y": np.arange(n) % 2,
                "group": np.arange(n) // 2 % 2,
            }
            for k, n in enumerate(sizes)
        ]

    data = eh.Federation.from_arrays(some((8, 13)), test=some((8, 8)))
    results = [
        eh.fit(
            mlp(),
            data,
            method,
            rounds=2,
            engine=engine,
            local=eh.LocalSGD(0.05, batch_size=5),
            **LOCAL,
        )
        for engine in ("loop", "vmap")
    ]
    assert apart(*results) < 1e-12


def test_a_small_client_trains_as_if_it_were_alone() -> None:
    alone = eh.Federation.from_arrays(arrays(SIZES)[:1], test=arrays((4,), 1))
    one = eh.fit(mlp(), alone, eh.LocalOnly(), rounds=3, local=SOLVER, engine="loop", **LOCAL)
    among = trained(mlp(), eh.LocalOnly(), engine="vmap", **LOCAL)
    assert one.personal is not None
    assert among.personal is not None
    for key, value in one.personal[0].items():
        torch.testing.assert_close(among.personal[0][key], value, rtol=0, atol=1e-12)


def test_a_client_that_never_trained_has_the_first_normalisation() -> None:
    module = cnn()
    result = trained(module, eh.FedAvg(), rounds=1, cohort=eh.Uniform(1), **LOCAL)
    own, first = norm_keys(module), module.state_dict()
    changed = [
        any(not torch.equal(model[key], first[key]) for key in own)
        for model in result.personal or []
    ]
    assert sorted(changed) == [False, False, True]
    for model in result.personal or []:
        assert all(torch.equal(model[key], result.params[key]) for key in first if key not in own)


def test_ditto_without_pull_trains_each_model_with_its_own_normalisation() -> None:
    ditto, alone = (
        trained(mlp(), method, **LOCAL) for method in (eh.Ditto(lam=0.0), eh.LocalOnly())
    )
    for one, other in zip(ditto.personal or [], alone.personal or [], strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    shared = trained(mlp(), eh.FedAvg(), **LOCAL)
    assert all(torch.equal(ditto.params[key], shared.params[key]) for key in shared.params)


def test_a_layer_that_is_used_twice_has_one_normalisation() -> None:
    norm = nn.BatchNorm1d(6)
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), norm, nn.Linear(6, 6), norm, nn.Linear(6, 3)
    ).double()
    result = trained(
        module, eh.FedAvg(), rounds=1, engine="vmap", local=eh.LocalSGD(0.1, steps=3), **LOCAL
    )
    for client, model in enumerate(result.personal or []):
        alone = trained_alone(module, client, 3, 0.1)
        for key in [key for key in alone if key[0] in "24"]:
            torch.testing.assert_close(model[key], alone[key], rtol=0, atol=1e-12)


# ---- messages


def noted(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The names of all tensors in the messages of runs from now on."""
    names: list[set[str]] = []
    exchange = Simulator.exchange

    def listen(self: Simulator, work: Any, task: Task, ids: Tensor, round: int) -> Replies:
        replies = exchange(self, work, task, ids, round)
        for message in (task.shared, task.own, replies.total, replies.each):
            names.append({key for path, _ in tree.items(message) for key in path})
        return replies

    monkeypatch.setattr(Simulator, "exchange", listen)
    return names


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_nothing_of_batchnorm_is_sent(
    monkeypatch: pytest.MonkeyPatch, method: eh.Algorithm
) -> None:
    module, names = mlp(), noted(monkeypatch)
    trained(module, method, rounds=1, local=eh.LocalSGD(0.05), **LOCAL)
    seen = set().union(*names)
    assert "1.weight" in seen
    assert not seen & (norm_keys(module) | {OWN, "statistics"})


def met(method: eh.Algorithm) -> tuple[LocalNorms, Model, Task, Tree, Batch, nn.Module]:
    """A method's client with a normalisation of its own, its data, and its model as torch has
    it."""
    module = mlp()
    model = Model(module, normalisation="local")
    wrapped = LocalNorms(method, model)
    memory = wrapped.memory(model.init())
    memory[OWN] = tree.map(lambda leaf: 1.5 * leaf + 0.25, memory[OWN])
    module.load_state_dict(module.state_dict() | memory[OWN])
    x, y = (torch.as_tensor(arrays(ONE)[0][name]) for name in "xy")
    samples = Samples(x, y, torch.zeros(len(y), dtype=torch.int64))
    data = Batch(samples, torch.arange(len(y)), torch.ones(len(y), dtype=torch.float64))
    lr = torch.tensor(0.1, dtype=torch.float64)
    task = Task({"model": model.init(), "lr": lr}, {"weight": lr / lr, "share": lr / lr})
    return wrapped, model, task, memory, data, module.eval()


def test_qffl_measures_only_what_it_sends() -> None:
    method, model, task, memory, data, module = met(eh.QFFL(q=1.0))
    start = method.start(task, memory)
    end = tree.map(lambda leaf: leaf + 0.01, start)
    reply, kept = method.reply(model, start, end, data, task, memory)
    loss = nn.functional.cross_entropy(module(data.x), data.y).item() + 1e-10
    moved = sum(leaf.numel() for leaf in model.init().values()) * (0.01 / 0.1) ** 2
    assert float(reply.total["weight"]) == pytest.approx(moved + 10 * loss, rel=1e-9)
    for key, value in memory[OWN].items():
        assert torch.equal(kept[OWN][key], value + 0.01)


def test_questions_are_answered_with_the_clients_own_normalisation() -> None:
    method, model, task, memory, data, module = met(eh.AFL(order="before"))
    question = method.question()
    assert question is not None
    loss = nn.functional.cross_entropy(module(data.x), data.y).item()
    assert question.answer(model, data, task, memory).each["loss"].item() == pytest.approx(loss)


def test_a_client_whose_statistics_overflow_keeps_its_own() -> None:
    method, model, task, memory, data, _ = met(eh.FedAvg())
    start = method.start(task, memory)
    end = tree.map(torch.clone, start)
    end["statistics"]["model"]["2.running_var"][0] = torch.inf
    _, kept = method.reply(model, start, end, data, task, memory)
    assert all(torch.equal(kept[OWN][key], value) for key, value in memory[OWN].items())


# ---- results


def test_scores_and_predictions_are_those_of_the_clients_own_models() -> None:
    result = trained(cnn(), eh.FedAvg(), **LOCAL)
    given = arrays((4, 4, 4), 1)
    for client, part in enumerate(given):
        own = result.module(client=client)
        assert result.personal is not None
        for key, value in result.personal[client].items():
            assert torch.equal(own.state_dict()[key], value)
        with torch.no_grad():
            output = own(torch.as_tensor(part["x"]))
        right = (output.argmax(1).numpy() == part["y"]).mean()
        loss = nn.functional.cross_entropy(output, torch.as_tensor(part["y"]))
        row = result.scores.iloc[client]
        assert row["accuracy"] == right
        assert row["loss"] == pytest.approx(float(loss), abs=1e-9)
        found = result.predict(part["x"].astype(np.float64), client=[client] * 4)
        assert (found == output.argmax(1).numpy()).all()
    values = [result.outcomes["value"][4 * k : 4 * k + 4].mean() for k in range(3)]
    assert values == result.scores["accuracy"][:3].tolist()
    assert "shared_accuracy" not in result.scores
    assert "shared_accuracy" in trained(cnn(), eh.Ditto(), rounds=1, **LOCAL).scores


def test_a_resumed_run_ends_like_one_that_was_not_interrupted(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, row: Any) -> None:
        if done == 2:
            raise Stop

    options: dict[str, Any] = {"cohort": eh.Uniform(2), "checkpoint_every": 1, "rounds": 4, **LOCAL}
    whole = trained(mlp(), eh.Ditto(), out=tmp_path / "whole", **options)
    with pytest.raises(Stop):
        trained(mlp(), eh.Ditto(), out=tmp_path / "cut", progress=stop, **options)
    again = trained(mlp(), eh.Ditto(), out=tmp_path / "cut", resume=True, **options)
    assert apart(whole, again) == 0
    assert whole.history_rows == again.history_rows


def test_another_normalisation_does_not_resume(tmp_path: Path) -> None:
    trained(mlp(), eh.FedAvg(), out=tmp_path, rounds=1, **LOCAL)
    with pytest.raises(eh.RunError, match="other settings"):
        trained(mlp(), eh.FedAvg(), out=tmp_path, rounds=1, resume=True, normalisation="frozen")


def test_the_run_directory_says_what_stays_with_clients(tmp_path: Path) -> None:
    trained(mlp(), eh.Ditto(), out=tmp_path, rounds=1, **LOCAL)
    assert 'normalisation = "local"' in (tmp_path / "spec.toml").read_text()
    assert '"normalisation"' in (tmp_path / "about.json").read_text()


@pytest.mark.parametrize("setting", ["local", "frozen"])
def test_runs_trained_together_are_those_trained_alone(setting: str) -> None:
    runs = [eh.Run(eh.QFFL(q=q), seed=seed) for q, seed in ((0.5, 0), (2.0, 1))]
    options: dict[str, Any] = {"rounds": 2, "local": eh.LocalSGD(0.05), "normalisation": setting}
    together = eh.fit_many(mlp(), FED, runs, engine="vmap", **options)
    for run, found in zip(runs, together, strict=True):
        alone = eh.fit(mlp(), FED, run.algorithm, seed=run.seed, engine="vmap", **options)
        assert apart(alone, found) < 1e-15  # F^q may round by its place in memory


def test_local_normalisation_helps_where_features_differ_by_scale() -> None:
    def some(n: int, seed: int) -> list[dict[str, Any]]:
        rng = np.random.default_rng(seed)
        made = []
        for k in range(4):
            y = rng.integers(0, 2, n)
            x = rng.normal(size=(n, 5)) + np.where(y, 1.0, -1.0)[:, None] * np.linspace(0.2, 1, 5)
            made.append({"x": x * 5.0 ** (k - 2) + 20.0 * (k % 2), "y": y})
        return made

    data = eh.Federation.from_arrays(some(60, 0), test=some(60, 1))
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    local = eh.fit(module, data, eh.FedAvg(), rounds=20, **LOCAL)
    group = eh.fit(eh.models.without_batchnorm(module), data, eh.FedAvg(), rounds=20)
    assert local.summary["mean"] > group.summary["mean"] + 0.05


# ---- studies


def test_a_spec_has_the_setting() -> None:
    plain = Spec(rounds=2)
    assert "normalisation" not in plain.to_toml()
    spec = Spec.from_table({"normalisation": "local", "rounds": 2}, "it")
    assert Spec.from_toml(spec.to_toml(), "it") == spec
    assert spec.settings(without=("cohort", "device"))["normalisation"] == "local"
    assert "normalisation" in plain.settings(without=("cohort", "device"))


def test_a_comparison_takes_the_setting_and_keeps_the_clients_models(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 2, "local": eh.LocalSGD(0.05), **LOCAL}
    methods = [eh.FedAvg(), eh.Ditto()]
    eh.compare(mlp(torch.float32), FED, methods, seeds=1, references=(), out=tmp_path, **options)
    study = eh.load(tmp_path)
    alone = eh.fit(mlp(torch.float32), FED, eh.FedAvg(), seed=0, **options)
    read = study.trial(seed=0)
    for one, other in zip(read.personal or [], alone.personal or [], strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    with pytest.raises(ValueError, match="no such layer"):
        eh.compare(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), FED, methods, seeds=1, **options)
