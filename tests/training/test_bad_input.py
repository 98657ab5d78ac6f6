"""What a user gets wrong is refused in one line before training; a client that diverges is left
out, named and counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenhand as eh

INF, NAN = float("inf"), float("nan")
ENGINES = [
    pytest.param("loop", id="loop"),
    pytest.param("vmap", id="vmap"),
    pytest.param(eh.Vmap(chunk=2), id="chunks of 2"),
]


def clients(count: int = 4, **changes: Any) -> list[dict[str, Any]]:
    """Small clients with two classes; ``changes`` are functions of a client's number of samples, or
    values."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        rows = 6 + i
        client = {"x": rng.normal(size=(rows, 3)).astype(np.float32), "y": np.arange(rows) % 2}
        made.append(
            client
            | {key: value(rows) if callable(value) else value for key, value in changes.items()}
        )
    return made


def federation(count: int = 4, **changes: Any) -> eh.Federation:
    return eh.Federation.from_arrays(clients(count, **changes))


def changed(index: int, key: str, value: Any) -> list[dict[str, Any]]:
    """The usual clients with one entry of one client replaced (removed where the value is None)."""
    made = clients()
    if value is None:
        del made[index][key]
    else:
        made[index][key] = value
    return made


def poisoned(key: str, value: float) -> list[dict[str, Any]]:
    made = clients()
    made[2][key] = made[2][key].astype(np.float32)
    made[2][key][4, ...] = value
    return (
        made if key == "x" else [client | {"y": client["y"].astype(np.float32)} for client in made]
    )


def grouped(rows: int) -> list[str]:
    return ["a", "b", *["a"] * (rows - 2)]


def linear(outputs: int = 2, inputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


def refused(call: Callable[[], Any], pattern: str) -> None:
    """The call raises a ValueError or TypeError with one line that matches ``pattern``."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message, message
    assert re.search(pattern, message), message


def fit_refused(
    pattern: str, module: Any = None, data: Any = None, algorithm: Any = None, **arguments: Any
) -> None:
    """eh.fit raises so before the first round is over."""
    rounds_done: list[int] = []
    arguments = {
        "rounds": 2,
        "local": eh.LocalSGD(lr=0.1, batch_size=4),
        "progress": lambda done, row: rounds_done.append(done),
        **arguments,
    }
    module, algorithm = module or linear(), algorithm or eh.FedAvg()
    refused(lambda: eh.fit(module, data or federation(), algorithm, **arguments), pattern)
    assert not rounds_done


# ---- data

from_arrays = eh.Federation.from_arrays

DATA = {
    "no clients": (lambda: from_arrays([]), r"at least one client"),
    "an empty client": (
        lambda: from_arrays([*clients(2), {"x": np.zeros((0, 3)), "y": []}]),
        r"client 2 has no training samples; leave it out",
    ),
    "a NaN feature": (
        lambda: from_arrays(poisoned("x", NAN)),
        r"client 2 .*train x.*not finite.*row 4.*(fill|remove)",
    ),
    "an infinite feature": (
        lambda: from_arrays(poisoned("x", INF)),
        r"client 2 .*train x.*not finite.*row 4.*(fill|remove)",
    ),
    "a NaN label": (
        lambda: from_arrays(poisoned("y", NAN)),
        r"client 2 .*train y.*not finite.*row 4",
    ),
    "a NaN feature in test data": (
        lambda: from_arrays(
            clients(2), test=[None, {"x": np.full((1, 3), np.nan, dtype=np.float32), "y": [0]}]
        ),
        r"client 1 .*test x.*not finite.*row 0",
    ),
    "features of another shape": (
        lambda: from_arrays(changed(3, "x", np.zeros((9, 5), np.float32))),
        r"client 3.*\[5\].*client 0.*\[3\].*same",
    ),
    "labels of another shape": (
        lambda: from_arrays(changed(3, "y", np.zeros((9, 2), int))),
        r"client 3.* y .*\[2\].*client 0.*\[\].*same",
    ),
    "float and integer features": (
        lambda: from_arrays(changed(1, "x", np.zeros((7, 3), int))),
        r"client 1.* x .*int64.*float32",
    ),
    "float and integer labels": (
        lambda: from_arrays(changed(1, "y", np.zeros(7))),
        r"client 1.* y .*float64.*int64",
    ),
    "x and y of different length": (
        lambda: from_arrays(changed(1, "y", [0, 1])),
        r"client 1.*x has shape \[7, 3\] and y \[2\].*rows",
    ),
    "no labels": (
        lambda: from_arrays(changed(1, "y", None)),
        r"client 1 has no 'y' in its train data",
    ),
    "an unknown key": (
        lambda: from_arrays(changed(1, "labels", [0])),
        r"client 1.*unknown key 'labels'; allowed: .*y",
    ),
    "text for numbers": (lambda: from_arrays([{"x": [["red"]], "y": [0]}]), r"client 0.*numbers"),
    "ragged rows": (
        lambda: from_arrays([{"x": [[1.0, 2.0], [1.0]], "y": [0, 1]}]),
        r"client 0.*arrays of numbers",
    ),
    "group missing for one client": (
        lambda: from_arrays([*clients(2, group=grouped), clients(1)[0]]),
        r"client 2 has no group in its train data.*all samples a group, or none",
    ),
    "group of another length": (
        lambda: from_arrays(clients(group=["a"])),
        r"client 0.*group has 1 entries for 6 samples",
    ),
    "one group for a whole client": (
        lambda: from_arrays(clients(group=3)),
        r"client 0.*group.*(sample|entries)",
    ),
    "group in training data alone": (
        lambda: from_arrays(clients(group=grouped), test=clients()),
        r"group.*test|test.*group",
    ),
    "team for some clients only": (
        lambda: from_arrays([clients(1, team="a")[0], clients(1)[0]]),
        r"client 1 has no team.*all clients a team, or none",
    ),
    "duplicate names": (
        lambda: from_arrays([c | {"name": "bob"} for c in clients(2)]),
        r"names must differ; 'bob' is used 2 times",
    ),
    "test data for another number of clients": (
        lambda: from_arrays(clients(4), test=clients(3)),
        r"test has 3 entries for 4 clients.*one per client",
    ),
    "val data for another number of clients": (
        lambda: from_arrays(clients(4), val=clients(5)),
        r"val has 5 entries for 4 clients.*one per client",
    ),
    "test samples of another shape": (
        lambda: from_arrays(clients(2), test=[None, {"x": np.zeros((1, 4), np.float32), "y": [0]}]),
        r"client 1.*test x.*\[4\].*\[3\]",
    ),
    "a missing group label": (
        lambda: from_arrays([{"x": [[0.0]], "y": [0], "group": [None]}]),
        r"label is missing.*'unknown'",
    ),
    "pairs instead of mappings": (
        lambda: from_arrays([(np.zeros((2, 3)), [0, 1])]),
        r"client 0.*(mapping|dict)",
    ),
    "a mapping of clients": (
        lambda: from_arrays({"bob": clients(1)[0]}),
        r"(list|sequence|mapping|dict)",
    ),
}


@pytest.mark.parametrize(("call", "pattern"), DATA.values(), ids=DATA)
def test_wrong_data_are_refused_in_one_line_that_names_the_client(
    call: Callable[[], Any], pattern: str
) -> None:
    refused(call, pattern)


X, Y, OFFSETS = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 2, 4])

PARTS = {
    "offsets that do not reach the end": (
        lambda: eh.Part(X, Y, torch.tensor([0, 2, 3])),
        r"offsets.*number of samples, 4",
    ),
    "offsets that fall": (lambda: eh.Part(X, Y, torch.tensor([0, 5, 4])), r"offsets must rise"),
    "offsets of another type": (lambda: eh.Part(X, Y, torch.tensor([0.0, 4.0])), r"offsets.*int64"),
    "too few labels": (lambda: eh.Part(X, Y[:3], OFFSETS), r"x has 4 samples"),
    "an empty client": (
        lambda: eh.Federation(eh.Part(X, Y, torch.tensor([0, 0, 4]))),
        r"client 0 has no training samples",
    ),
    "test for other clients": (
        lambda: eh.Federation(eh.Part(X, Y, OFFSETS), test=eh.Part(X, Y, torch.tensor([0, 4]))),
        r"test data are for 1 clients.*2",
    ),
    "teams for other clients": (
        lambda: eh.Federation(eh.Part(X, Y, OFFSETS), teams=torch.tensor([0])),
        r"teams.*one entry per client \(2\)",
    ),
    "names for other clients": (
        lambda: eh.Federation(eh.Part(X, Y, OFFSETS), names=("a",)),
        r"names.*one entry per client \(2\), got 1",
    ),
    "duplicate names": (
        lambda: eh.Federation(eh.Part(X, Y, OFFSETS), names=("bob", "bob")),
        r"'bob'",
    ),
    "a team without a name": (
        lambda: eh.Federation(
            eh.Part(X, Y, OFFSETS), teams=torch.tensor([0, 1]), team_names=("a",)
        ),
        r"team code 1\b",
    ),
    "a negative team": (
        lambda: eh.Federation(
            eh.Part(X, Y, OFFSETS), teams=torch.tensor([0, -1]), team_names=("a",)
        ),
        r"team code -1\b",
    ),
    "a group without a name": (
        lambda: eh.Federation(
            eh.Part(X, Y, OFFSETS, torch.tensor([0, 0, 0, 3])), group_names=("a",)
        ),
        r"group code 3 has no name",
    ),
    "a negative group": (
        lambda: eh.Federation(
            eh.Part(X, Y, OFFSETS, torch.tensor([0, 0, 0, -1])), group_names=("a",)
        ),
        r"group code -1\b",
    ),
    "arrays that are no tensors": (
        lambda: eh.Federation(eh.Part(X.numpy(), Y.numpy(), OFFSETS)),
        r"Tensor",
    ),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "pattern"), PARTS.values(), ids=PARTS)
def test_wrong_flat_arrays_are_refused_when_the_federation_is_built(
    call: Callable[[], Any], pattern: str
) -> None:
    refused(call, pattern)


# ---- settings

SETTINGS = {
    "negative lr": (lambda: eh.LocalSGD(lr=-0.1), r"lr must be .*got -0\.1"),
    "zero lr": (lambda: eh.LocalSGD(lr=0), r"lr must be .*got 0"),
    "NaN lr": (lambda: eh.LocalSGD(lr=NAN), r"lr must be .*finite.*got nan"),
    "text lr": (lambda: eh.LocalSGD(lr="0.1"), r"\blr\b.*'0\.1'"),  # type: ignore[arg-type]
    "no lr": (lambda: eh.LocalSGD(lr=None), r"\blr\b.*None"),  # type: ignore[arg-type]
    "epochs and steps": (
        lambda: eh.LocalSGD(lr=0.1, epochs=1, steps=2),
        r"epochs or steps, not both.*epochs=1, steps=2",
    ),
    "no epochs": (
        lambda: eh.LocalSGD(lr=0.1, epochs=0),
        r"epochs must be a whole number >= 1, got 0",
    ),
    "half an epoch": (
        lambda: eh.LocalSGD(lr=0.1, epochs=0.5),
        r"epochs must be a whole number >= 1, got 0\.5",
    ),  # type: ignore[arg-type]
    "no steps": (
        lambda: eh.LocalSGD(lr=0.1, steps=-1),
        r"steps must be a whole number >= 1, got -1",
    ),
    "empty batches": (
        lambda: eh.LocalSGD(lr=0.1, batch_size=0),
        r"batch_size must be a whole number >= 1, got 0",
    ),
    "momentum 1": (
        lambda: eh.LocalSGD(lr=0.1, momentum=1),
        r"momentum must be in \[0, 1\), got 1; 0 is plain SGD",
    ),
    "text momentum": (lambda: eh.LocalSGD(lr=0.1, momentum="high"), r"momentum\b.*'high'"),  # type: ignore[arg-type]
    "negative weight decay": (
        lambda: eh.LocalSGD(lr=0.1, weight_decay=-1e-4),
        r"weight_decay must be .*>= 0, got -0\.0001",
    ),
    "growing step size": (
        lambda: eh.LocalSGD(lr=0.1, decay=1.1),
        r"decay must be in \(0, 1\], got 1\.1; 1 keeps",
    ),
    "unknown keyword": (lambda: eh.LocalSGD(lr=0.1, epoch=1), r"'epoch'"),  # type: ignore[call-arg]
    "negative q": (lambda: eh.QFFL(q=-0.5), r"\bq must be .*>= 0, got -0\.5; 0 gives FedAvg"),
    "NaN q": (lambda: eh.QFFL(q=NAN), r"\bq must be .*got nan"),
    "infinite q": (lambda: eh.QFFL(q=INF), r"\bq must be .*got inf"),
    "text q": (lambda: eh.QFFL(q="two"), r"\bq\b.*'two'"),  # type: ignore[arg-type]
    "unknown keyword of a method": (lambda: eh.QFFL(power=2), r"QFFL.*'power'"),  # type: ignore[call-arg]
    "keyword for a method without any": (lambda: eh.FedAvg(q=2), r"FedAvg.*'q'"),  # type: ignore[call-arg]
    "M 0": (lambda: eh.PropFair(M=0), r"\bM must be .*> 0, got 0; choose it above the losses"),
    "negative M": (lambda: eh.PropFair(M=-1), r"\bM must be .*> 0, got -1"),
    "infinite M": (lambda: eh.PropFair(M=INF), r"\bM must be .*got inf"),
    "epsilon 0": (lambda: eh.PropFair(epsilon=0), r"epsilon must be .*> 0, got 0"),
    "alpha 0": (
        lambda: eh.FAFL(alpha=0),
        r"alpha must be in \(0, 1\], got 0(\.0)?; 1 gives the plain average",
    ),
    "alpha above 1": (lambda: eh.FAFL(alpha=1.5), r"alpha must be in \(0, 1\], got 1\.5"),
    "one client's alpha below 0": (
        lambda: eh.FAFL(alpha=[0.5, -0.2]),
        r"alpha must be in \(0, 1\], got -0\.2",
    ),
    "text alpha": (lambda: eh.FAFL(alpha="0.3"), r"alpha\b.*'0\.3'"),
    "no alpha": (lambda: eh.FAFL(alpha=None), r"alpha\b.*None"),  # type: ignore[arg-type]
    "negative mu": (lambda: eh.FAFL(mu=-0.1), r"\bmu must be .*>= 0, got -0\.1"),
    "negative lr_eta": (lambda: eh.FAFL(lr_eta=-1), r"lr_eta must be .*got -1"),
    "NaN eta0": (lambda: eh.FAFL(eta0=NAN), r"eta0 must be .*got nan"),
    "text eta0": (lambda: eh.FAFL(eta0="low"), r"eta0\b.*'low'"),  # type: ignore[arg-type]
    "strength 1": (
        lambda: eh.GIFAIR(strength=1),
        r"strength must be in \[0, 1\), got 1; 0 gives FedAvg",
    ),
    "negative strength": (
        lambda: eh.GIFAIR(strength=-0.1),
        r"strength must be in \[0, 1\), got -0\.1",
    ),
    "text strength": (lambda: eh.GIFAIR(strength="full"), r"strength\b.*'full'"),  # type: ignore[arg-type]
    "text for a switch": (lambda: eh.GIFAIR(personal="no"), r"personal\b.*'no'"),  # type: ignore[arg-type]
    "negative lam": (lambda: eh.Ditto(lam=-1), r"lam must be .*>= 0, got -1"),
    "infinite lam": (lambda: eh.Ditto(lam=INF), r"lam must be .*got inf"),
    "negative lr_lambda": (lambda: eh.AFL(lr_lambda=-1), r"lr_lambda must be .*got -1"),
    "an output": (
        lambda: eh.AFL(output="average"),  # type: ignore[call-arg]
        r"^AFL has no output; for the mean of its models, use Averaged\(AFL\(\.\.\.\)\)$",
    ),
    "negative lr_mu": (lambda: eh.FedMinMax(lr_mu=-1), r"lr_mu must be .*got -1"),
    "floor 1": (lambda: eh.FedMinMax(floor=1), r"floor must be in \[0, .*got 1"),
    "no clients per round": (lambda: eh.Uniform(0), r"clients per round.*>= 1, got 0"),
    "half a client per round": (
        lambda: eh.Proportional(0.5),
        r"clients per round.*whole number.*got 0\.5",
    ),  # type: ignore[arg-type]
    "empty chunks": (lambda: eh.Vmap(chunk=0), r"chunk must be .*>= 1, got 0"),
    "half chunks": (lambda: eh.Vmap(chunk=2.5), r"chunk must be .*got 2\.5"),  # type: ignore[arg-type]
    "no workers": (lambda: eh.Loop(workers=0), r"workers must be .*>= 1, got 0"),
}


@pytest.mark.parametrize(("call", "pattern"), SETTINGS.values(), ids=SETTINGS)
def test_a_setting_out_of_range_is_refused_where_it_is_made(
    call: Callable[[], Any], pattern: str
) -> None:
    refused(call, pattern)


def test_numbers_of_numpy_are_numbers() -> None:
    fed = federation()
    local = eh.LocalSGD(lr=np.float32(0.5), steps=np.int64(2))  # type: ignore[arg-type]
    got = eh.fit(
        linear(),
        fed,
        eh.QFFL(q=np.float32(1)),
        rounds=np.int64(2),
        seed=np.int64(3),
        local=local,
        cohort=eh.Uniform(np.int64(2)),
    )
    want = eh.fit(
        linear(),
        fed,
        eh.QFFL(q=1),
        rounds=2,
        seed=3,
        local=eh.LocalSGD(lr=0.5, steps=2),
        cohort=eh.Uniform(2),
    )
    assert torch.equal(got.params["weight"], want.params["weight"])


def test_a_level_of_numpy_is_a_level() -> None:
    assert eh.FAFL(alpha=np.float32(0.5)) == eh.FAFL(alpha=0.5)


# ---- what does not fit together


def tokens() -> eh.Federation:
    return eh.Federation.from_arrays(
        [{"x": [[0], [1], [7]], "y": [0, 1, 1]}, {"x": [[0], [2]], "y": [0, 1]}]
    )


def labelled(*labels: Any) -> eh.Federation:
    return eh.Federation.from_arrays(
        [{"x": np.zeros((len(labels), 3), np.float32), "y": np.array(labels)} for _ in range(2)]
    )


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        return [x], self.layer(x)


class Pooled(Pair):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x).mean(0, keepdim=True)


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "a label past the outputs": (
        {"data": labelled(0, 1, 2, 5)},
        r"label 5 is out of range.*2 outputs.*0\.\.1; widen|label 5.*renumber",
    ),
    "a negative label": ({"data": labelled(0, 1, 0, -1)}, r"label -1 is out of range.*0\.\.1"),
    "a label past the outputs in test data": (
        {
            "data": eh.Federation.from_arrays(
                clients(2), test=[None, {"x": np.zeros((3, 3), np.float32), "y": [0, 1, 9]}]
            )
        },
        r"label 9 is out of range",
    ),
    "one output for cross-entropy": (
        {"module": linear(1)},
        r"cross_entropy.*\(batch, classes\), got \[2, 1\].*one output per class",
    ),
    "one output and three classes for hinge": (
        {"module": linear(1), "loss": "hinge", "data": labelled(0, 1, 2)},
        r"hinge.*0/1.*found 0\.\.2",
    ),
    "one output and three classes for brier": (
        {"module": linear(1), "loss": "brier", "data": labelled(0, 1, 2)},
        r"brier.*0/1.*found 0\.\.2",
    ),
    "two outputs for one target": ({"loss": "mse"}, r"mse.*2 numbers per sample, but y has 1"),
    "fractions as classes": (
        {"data": labelled(0.0, 0.5)},
        r'cross_entropy.*fractions such as 0\.5.*loss="mse"',
    ),
    "float labels": (
        {"data": labelled(0.0, 1.0)},
        r"cross_entropy needs integer labels.*float64.*int64",
    ),
    "one-hot labels": (
        {"data": labelled([0, 1], [1, 0])},
        r"cross_entropy needs one label per sample.*\[2\]",
    ),
    "samples the module cannot take": (
        {"module": linear(inputs=5)},
        r"module does not accept samples of shape \[3\]",
    ),
    "integer features": (
        {"data": eh.Federation.from_arrays([{"x": np.zeros((3, 3), int), "y": [0, 1, 0]}])},
        r"does not accept.*int64.*convert it to float",
    ),
    "a module that gives a tuple": (
        {"module": Pair()},
        r"must return a tensor, got a tuple of list; pass output=",
    ),
    "a module that pools its batch": (
        {"module": Pooled()},
        r"one row per sample, got \[1, 2\] for 2 samples",
    ),
    "no module": ({"module": "mlp"}, r"module must be a torch\.nn\.Module, got str"),
    "features too large for float32": (
        {
            "module": nn.Linear(1, 2),
            "data": eh.Federation.from_arrays([{"x": np.array([[1e300], [1.0]]), "y": [0, 1]}]),
        },
        r"too large for the module's torch\.float32",
    ),
    "a module class": ({"module": nn.Linear}, r"module must be a torch\.nn\.Module, got .*Linear"),
    "BatchNorm": (
        {"module": nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))},
        r"layer '1' \(BatchNorm1d\) is in training mode.*normalisation=.*without_batchnorm",
    ),
    "BatchNorm inside a block": (
        {
            "module": nn.Sequential(
                nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4)), nn.Linear(4, 2)
            )
        },
        r"layer '0\.1' \(SyncBatchNorm\) is in training mode",
    ),
    "InstanceNorm with statistics": (
        {"module": nn.Sequential(nn.Linear(3, 2), nn.InstanceNorm1d(2, track_running_stats=True))},
        r"layer '1' \(InstanceNorm1d\).*track_running_stats=False",
    ),
    "lazy layers": ({"module": nn.LazyLinear(2)}, r"lazy.*call it once on a sample"),
    "lazy BatchNorm": (
        {"module": nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))},
        r"layer '1' \(LazyBatchNorm1d\) is in training mode",
    ),
    "no parameters": ({"module": nn.Flatten()}, r"no parameters that require gradients"),
    "frozen parameters": (
        {"module": linear().requires_grad_(False)},
        r"no parameters that require gradients",
    ),
    "two dtypes": (
        {"module": nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).double())},
        r"one floating-point dtype; convert with module\.float",
    ),
    "a parameter that is not finite": (
        {
            "module": nn.Sequential(
                nn.Linear(3, 2), nn.Linear(2, 2).apply(lambda m: nn.init.constant_(m.bias, NAN))
            )
        },
        r"parameter '1\.bias'.*not finite",
    ),
    "a loss that reduces": (
        {"loss": nn.CrossEntropyLoss()},
        r"one value per sample, shape \[2\], got \[\] .*do not reduce over samples",
    ),
    "a loss class": ({"loss": nn.CrossEntropyLoss}, r"the loss (fails|must)"),
    "an unknown loss": (
        {"loss": "crossentropy"},
        r"unknown loss 'crossentropy'; choose from cross_entropy, .*mse",
    ),
    "no loss": ({"loss": None}, r"unknown loss None; choose from cross_entropy"),
    "a list of losses": ({"loss": ["mse"]}, r"unknown loss \['mse'\]|loss.*\['mse'\]"),
    "a loss that raises": (
        {"loss": lambda output, target: output.no_such_thing},
        r"the loss fails on outputs \[2, 2\] and labels \[2\]",
    ),
    "a loss without a gradient, one by one": (
        {
            "loss": (
                lambda output, target: F.cross_entropy(output, target, reduction="none").detach()
            ),
            "engine": "loop",
        },
        r"loss.*(gradient|depend)",
    ),
    "a loss without a gradient, stacked": (
        {
            "loss": (
                lambda output, target: F.cross_entropy(output, target, reduction="none").detach()
            ),
            "engine": "vmap",
        },
        r"loss.*(gradient|depend)",
    ),
    "a method's class": (
        {"algorithm": eh.FedAvg},
        r"Algorithm object .*got .*FedAvg.*did you mean FedAvg\(\)\?",
    ),
    "a method's name": (
        {"algorithm": "fedavg"},
        r"Algorithm object such as FedAvg\(\), got str 'fedavg'",
    ),
    "FedMinMax without groups": (
        {"algorithm": eh.FedMinMax()},
        r"FedMinMax needs a group for every training sample; name a column",
    ),
    "a floor for too many groups": (
        {"algorithm": eh.FedMinMax(floor=0.6), "data": federation(group=grouped)},
        r"floor 0\.6 for 2 groups.*at most 0\.5",
    ),
    "GIFAIR with one team": (
        {"algorithm": eh.GIFAIR(), "data": federation(team="all")},
        r"GIFAIR compares teams.*needs at least two, but the federation has 1",
    ),
    "alpha for another number of clients": (
        {"algorithm": eh.FAFL(alpha=[0.5, 0.5, 1.0])},
        r"alpha has 3 entries for 4 clients",
    ),
    "more clients per round than clients": (
        {"cohort": eh.Uniform(5)},
        r"5 clients per round, but the federation has 4; .*Full\(\)",
    ),
    "more distinct draws than clients": (
        {"cohort": eh.Proportional(5, replacement=False)},
        r"5 clients per round, but the federation has 4",
    ),
    "a number for a cohort": ({"cohort": 2}, r"cohort.*\b2\b"),
    "a cohort class": ({"cohort": eh.Full}, r"cohort.*Full"),
    "a number for the local solver": ({"local": 0.1}, r"local.*0\.1"),
    "the local solver's class": ({"local": eh.LocalSGD}, r"local\b.*LocalSGD"),
    "a list for a federation": ({"data": clients()}, r"[Ff]ederation.*list"),
    "no rounds": ({"rounds": 0}, r"rounds must be a whole number >= 1, got 0"),
    "rounds as a float": ({"rounds": 10.0}, r"rounds must be a whole number >= 1, got 10\.0"),
    "a negative seed": ({"seed": -1}, r"seed must be a whole number >= 0, got -1"),
    "a seed of more than 64 bits": ({"seed": 2**64}, r"seed must be .*got 18446744073709551616"),
    "no seed": ({"seed": None}, r"seed must be a whole number >= 0, got None"),
    "evaluation every 0 rounds": (
        {"eval_every": 0},
        r"eval_every must be a whole number >= 1, got 0",
    ),
    "checkpoints without a directory": (
        {"checkpoint_every": 2},
        r"checkpoint_every need a directory for checkpoints; pass out",
    ),
    "resuming without a directory": (
        {"resume": True},
        r"resume .*need a directory for checkpoints; pass out",
    ),
    "an unknown engine": ({"engine": "gpu"}, r'unknown engine \'gpu\'; use "auto", "loop", "vmap"'),
    "an engine's class": ({"engine": eh.Vmap}, r"unknown engine .*Vmap"),
    "unknown weights": ({"weights": "size"}, r'weights must be "data" or "uniform", got \'size\''),
    "an unknown device": ({"device": "gpu"}, r"device.*'?gpu'?"),
    "a device that is not there": ({"device": "cuda:99"}, r"device.*cuda:99|cuda:99.*(not|no)"),
    "progress that cannot be called": ({"progress": True}, r"progress.*True"),
    "an unknown keyword": ({"lr": 0.1}, r"'lr'"),
}


@pytest.mark.parametrize(("arguments", "pattern"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_together_is_refused_before_training(
    arguments: dict[str, Any], pattern: str
) -> None:
    fit_refused(pattern, **arguments)


def test_alpha_below_a_clients_weight_is_warned_of_in_one_line_that_names_it() -> None:
    names = [c | {"name": f"bob{i}"} for i, c in enumerate(clients())]
    with pytest.warns(
        UserWarning,
        match=(
            r"alpha of client bob0 \(0\.1\).*weight \(0\.2\).*does not change the exact objective"
        ),
    ) as caught:
        eh.fit(linear(), eh.Federation.from_arrays(names), eh.FAFL(alpha=0.1), rounds=1)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)


def test_alpha_at_or_above_every_weight_is_not_warned_of() -> None:
    # a warning would be an error here
    eh.fit(linear(), federation(), eh.FAFL(alpha=0.35), rounds=1)


def test_an_error_inside_a_client_is_one_line_that_names_client_round_and_stage() -> None:
    def fails_on_three(output: Tensor, target: Tensor) -> Tensor:
        if len(target) == 3:
            raise RuntimeError("first line\nsecond line")
        return F.cross_entropy(output, target, reduction="none")

    fed = eh.Federation.from_arrays(
        [{"x": np.zeros((n, 3), np.float32), "y": [0] * n, "name": f"bob{n}"} for n in (4, 3)]
    )
    with pytest.raises(
        eh.ClientError, match=r"client bob3, round 1, train \(training\): first line"
    ) as caught:
        eh.fit(
            linear(),
            fed,
            eh.FedAvg(),
            loss=fails_on_three,
            engine="loop",
            rounds=1,
            local=eh.LocalSGD(lr=0.1),
        )
    assert "\n" not in str(caught.value)


# ---- a client that diverges

BAD = 2  # which of the clients a to e
LR, STEPS = 0.3, 3
LOCAL = eh.LocalSGD(lr=LR, steps=STEPS)


def five_clients(bad: tuple[int, ...] = (BAD,)) -> eh.Federation:
    """Clients a to e of different size in float64; the bad ones' values are finite, but the second
    local step is not.

    A bad client has both labels for the same huge sample, so that no model fits it and its first
    step is huge.
    """
    rng = np.random.default_rng(1)
    made = []
    for i in range(5):
        x, rows = rng.normal(size=(4 + 3 * i, 3)), np.arange(4 + 3 * i)
        made.append(
            {
                "x": np.full_like(x, 1e200) if i in bad else x,
                "y": rows % 2 if i in bad else (x[:, 0] > 0) * 1,
                "name": "abcde"[i],
            }
        )
    # ordinary: scores stay finite
    tests = [{"x": rng.normal(size=(3, 3)), "y": [0, 1, 0]} for _ in range(5)]
    return eh.Federation.from_arrays(made, test=tests)


def double_linear() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(3, 2).double()


def vector(params: dict[str, Tensor]) -> Tensor:
    return torch.cat([params["weight"].flatten(), params["bias"]])


def descend(
    start: Tensor, x: Tensor, y: Tensor, lam: float = 0.0, anchor: Tensor | None = None
) -> Tensor:
    """Plain gradient descent on one client's mean cross-entropy, plus lam/2 |v - anchor|^2, by
    hand."""
    v = start
    for _ in range(STEPS):
        v = v.detach().requires_grad_()
        value = F.cross_entropy(x @ v[:6].reshape(2, 3).T + v[6:], y)
        if anchor is not None:
            value = value + lam / 2 * ((v - anchor) ** 2).sum()
        v = v - LR * torch.autograd.grad(value, v)[0]
    return v.detach()


def averaged(theta: Tensor, fed: eh.Federation, who: list[int]) -> Tensor:
    """FedAvg's next model from these clients alone."""
    sizes = fed.train.sizes[who].double()
    moved = torch.stack([descend(theta, *fed.train.client(i)[:2]) for i in who])
    return (moved * (sizes / sizes.sum())[:, None]).sum(0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_diverges_is_left_out_counted_and_named_and_the_others_train_without_it(
    engine: Any,
) -> None:
    fed, module = five_clients(), double_linear()
    result = eh.fit(module, fed, eh.FedAvg(), rounds=3, local=LOCAL, engine=engine, eval_every=1)
    theta = vector(dict(module.state_dict()))
    for _ in range(3):
        theta = averaged(theta, fed, [0, 1, 3, 4])
    torch.testing.assert_close(vector(result.params), theta, rtol=1e-12, atol=1e-12)
    assert [
        (row["asked"], row["answered"], row["left_out"], row["void"]) for row in result.history_rows
    ] == [(5, 4, "c", False)] * 3
    assert list(result.history["left_out"]) == ["c"] * 3
    assert all(np.isfinite(row["loss"]) for row in result.history_rows + result.score_rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_diverges_keeps_its_memory_as_it_was(engine: Any) -> None:
    fed, module, lam = five_clients(), double_linear(), 0.5
    result = eh.fit(module, fed, eh.Ditto(lam=lam), rounds=3, local=LOCAL, engine=engine)
    first = vector(dict(module.state_dict()))
    theta, personal = first, [first] * 5
    for _ in range(3):
        for i in (0, 1, 3, 4):
            personal[i] = descend(personal[i], *fed.train.client(i)[:2], lam, theta)
        theta = averaged(theta, fed, [0, 1, 3, 4])
    assert result.personal is not None
    assert torch.equal(vector(result.personal[BAD]), first)
    for i in (0, 1, 3, 4):
        torch.testing.assert_close(vector(result.personal[i]), personal[i], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(vector(result.params), theta, rtol=1e-12, atol=1e-12)
    assert [row["left_out"] for row in result.history_rows] == ["c"] * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_diverges_later_keeps_the_memory_of_its_last_good_round(engine: Any) -> None:
    # the root is not a number once an output passes 2
    def breaks_above_two(output: Tensor, target: Tensor) -> Tensor:
        error = (output.squeeze(-1) - target) ** 2
        return error + torch.where(target > 50, 1e-9, 0.0) * torch.sqrt(
            torch.where(target > 50, 2 - output.squeeze(-1), 1.0)
        )

    torch.manual_seed(0)
    module = nn.Linear(1, 1).double()
    rows = [
        {"x": np.ones((4, 1)), "y": np.full(4, target), "name": name}
        for name, target in (("calm", 1.0), ("wild", 99.0), ("low", -40.0))
    ]
    fed = eh.Federation.from_arrays(rows)

    def run(rounds: int) -> eh.Result:
        return eh.fit(
            module,
            fed,
            eh.Ditto(lam=0.1),
            loss=breaks_above_two,
            rounds=rounds,
            local=eh.LocalSGD(lr=0.003, steps=1),
            engine=engine,
        )

    result = run(12)
    left_out = [row["left_out"] for row in result.history_rows]
    good = left_out.index("wild")  # rounds that went well
    assert 0 < good < 11
    assert set(left_out[:good]) == {""}
    assert set(left_out[good:]) == {"wild"}
    before = run(good)
    assert result.personal is not None
    assert before.personal is not None
    assert torch.equal(vector(result.personal[1]), vector(before.personal[1]))
    assert not torch.equal(vector(result.personal[1]), vector(dict(module.state_dict())))
    assert not torch.equal(vector(result.personal[0]), vector(before.personal[0]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_is_not_finite_leaves_its_client_out(engine: Any) -> None:
    def infinite_for_label_1(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="none") * torch.where(
            target == 1, INF, 1.0
        )

    rng = np.random.default_rng(0)
    fed = eh.Federation.from_arrays(
        [
            {"x": rng.normal(size=(4, 3)), "y": [label] * 4, "name": n}
            for n, label in (("a", 0), ("b", 1), ("c", 0))
        ]
    )
    module = double_linear()
    result = eh.fit(
        module, fed, eh.FedAvg(), loss=infinite_for_label_1, rounds=2, local=LOCAL, engine=engine
    )
    theta = vector(dict(module.state_dict()))
    for _ in range(2):
        theta = averaged(theta, fed, [0, 2])
    torch.testing.assert_close(vector(result.params), theta, rtol=1e-12, atol=1e-12)
    assert [row["left_out"] for row in result.history_rows] == ["b", "b"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_in_which_nobody_is_left_is_void_and_the_run_goes_on(engine: Any) -> None:
    fed, module = five_clients(bad=(0, BAD)), double_linear()
    result = eh.fit(
        module,
        fed,
        eh.FedAvg(),
        rounds=12,
        local=LOCAL,
        cohort=eh.Uniform(1),
        engine=engine,
        seed=5,
    )
    theta, void = vector(dict(module.state_dict())), []
    for round, row in enumerate(result.history_rows):
        drawn = eh.Uniform(1).draw(fed.census(), 5, round).ids.tolist()
        void.append(drawn[0] in (0, BAD))
        theta = theta if void[-1] else averaged(theta, fed, drawn)
        assert (row["asked"], row["answered"], row["void"]) == (1, int(not void[-1]), void[-1])
        assert row["left_out"] == ("abcde"[drawn[0]] if void[-1] else "")
    assert 0 < sum(void) < 12
    torch.testing.assert_close(vector(result.params), theta, rtol=1e-12, atol=1e-12)


METHODS = [
    eh.FedAvg(), eh.PropFair(), eh.QFFL(), eh.AFL(), eh.Averaged(eh.AFL()), eh.FAFL(alpha=0.5), eh.FedMinMax(),
    eh.Averaged(eh.FedMinMax()), eh.GIFAIR(), eh.GIFAIR(personal=True), eh.Ditto(),
]  # fmt: skip


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("algorithm", METHODS, ids=repr)
def test_with_every_client_bad_every_round_is_void_and_no_method_changes_its_state(
    algorithm: eh.Algorithm, engine: str
) -> None:
    rng = np.random.default_rng(0)
    data = [
        {"x": np.full((4, 3), 1e200), "y": [0, 1, 0, 1], "group": [0, 1, 0, 1], "name": name}
        for name in "abc"
    ]
    tests = [{"x": rng.normal(size=(2, 3)), "y": [0, 1], "group": [0, 1]} for _ in data]
    module, fed = double_linear(), eh.Federation.from_arrays(data, test=tests)
    result = eh.fit(module, fed, algorithm, rounds=2, local=LOCAL, engine=engine)
    assert [(row["answered"], row["left_out"], row["void"]) for row in result.history_rows] == [
        (0, "a, b, c", True)
    ] * 2
    assert torch.equal(vector(result.params), vector(dict(module.state_dict())))
    for model in result.personal or []:
        assert torch.equal(vector(model), vector(dict(module.state_dict())))
    first = algorithm.init(
        {key: value.detach() for key, value in module.named_parameters()}, fed.census()
    )
    assert eh.tree.flatten(result.state).keys() == eh.tree.flatten(first).keys()
    for key, value in eh.tree.flatten(first).items():
        assert torch.equal(eh.tree.flatten(result.state)[key], value), key


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_token_outside_the_vocabulary_names_the_client_that_has_it(engine: str) -> None:
    module = nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(eh.ClientError, match=r"client 0.*round 1.*index out of range"):
        eh.fit(module, tokens(), eh.FedAvg(), rounds=1, engine=engine)


def test_names_with_blanks_can_be_told_apart_among_those_left_out() -> None:
    data = [
        {"x": np.full((2, 3), 1e200), "y": [0, 1], "name": name} for name in ("ward 1", "ward 2")
    ]
    tests = [{"x": np.ones((1, 3)), "y": [0]} for _ in data]
    result = eh.fit(
        double_linear(),
        eh.Federation.from_arrays(data, test=tests),
        eh.FedAvg(),
        rounds=1,
        local=LOCAL,
    )
    assert result.history_rows[0]["left_out"] != "ward 1 ward 2"
    assert all(name in result.history_rows[0]["left_out"] for name in ("ward 1", "ward 2"))
