"""Samples with several inputs: from arrays and torch datasets to the module that takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.data.nested import Nested

SIZES = (3, 8, 5)


class Mixed(nn.Module):
    """Takes numbers and tokens; the last two inputs are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.out = nn.Linear(3 + 4 + 2, 2)

    def forward(self, numbers: Tensor, text: dict[str, Tensor], pair: tuple[Tensor, Tensor]) -> Any:
        words = self.words(text["ids"]) * text["mask"][..., None]
        return self.out(torch.cat([numbers, words.mean(-2), torch.stack(pair, -1)], -1))


class Side(nn.Module):
    """The same network on one array."""

    def __init__(self, twin: Mixed) -> None:
        super().__init__()
        self.twin = twin

    def forward(self, x: Tensor) -> Any:
        ids, mask = x[:, 3:8].long(), x[:, 8:13]
        return self.twin(x[:, :3], {"ids": ids, "mask": mask}, (x[:, 13], x[:, 14]))


def client(seed: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "x": {
            "numbers": rng.normal(size=(count, 3)),
            "text": {"ids": rng.integers(0, 9, (count, 5)), "mask": rng.integers(0, 2, (count, 5))},
            "pair": (rng.normal(size=count), rng.normal(size=count)),
        },
        "y": rng.integers(0, 2, count),
    }


def flat(one: dict[str, Any]) -> dict[str, Any]:
    x = one["x"]
    parts = [x["numbers"], x["text"]["ids"], x["text"]["mask"], np.stack(x["pair"], 1)]
    return {"x": np.concatenate(parts, 1), "y": one["y"]}


CLIENTS = [client(seed, count) for seed, count in enumerate(SIZES)]
TESTS = [client(10 + seed, 4) for seed in range(len(SIZES))]
LOCAL = eh.LocalSGD(lr=0.2, epochs=2, batch_size=3)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_nested_inputs_train_as_the_same_numbers_in_one_array(engine: str) -> None:
    torch.manual_seed(0)
    twin = Mixed().double()
    several = eh.Federation.from_arrays(CLIENTS, TESTS)
    one = eh.Federation.from_arrays([flat(c) for c in CLIENTS], [flat(c) for c in TESTS])
    options: dict[str, Any] = {"rounds": 3, "local": LOCAL, "engine": engine}
    found = eh.fit(twin, several, eh.AFL(), **options)
    wanted = eh.fit(Side(twin), one, eh.AFL(), **options)
    for name, value in found.params.items():
        torch.testing.assert_close(value, wanted.params[f"twin.{name}"], rtol=0, atol=1e-12)
    assert found.scores["loss"].tolist() == pytest.approx(wanted.scores["loss"].tolist(), abs=1e-12)


def test_engines_agree_to_the_bit_on_several_inputs() -> None:
    fed = eh.Federation.from_arrays(CLIENTS, TESTS)
    results = [
        eh.fit(Mixed().double(), fed, eh.FedAvg(), rounds=2, local=LOCAL, engine=engine, seed=1)
        for engine in (eh.Vmap(chunk=1), eh.Vmap(chunk=2), eh.Vmap())
        if torch.manual_seed(0)
    ]
    for other in results[1:]:
        assert all(torch.equal(other.params[k], v) for k, v in results[0].params.items())


def test_a_dict_goes_to_the_module_whole_if_it_takes_one_argument() -> None:
    class Whole(nn.Linear):
        def forward(self, batch: dict[str, Tensor]) -> Any:  # type: ignore[override]
            return super().forward(batch["a"] + batch["b"])

    rng = np.random.default_rng(0)
    fed = eh.Federation.from_arrays(
        [{"x": {"a": rng.normal(size=(4, 3)), "b": rng.normal(size=(4, 3))}, "y": [0, 1, 1, 0]}]
    )
    assert len(eh.fit(Whole(3, 2), fed, eh.FedAvg(), rounds=1).history) == 1


def test_a_tuple_of_arrays_is_several_inputs_but_a_list_of_samples_is_one() -> None:
    a, b = torch.zeros(4, 2), torch.ones(4, 3)
    both = eh.Federation.from_arrays([{"x": (a, b), "y": [0, 1, 1, 0]}])
    assert [list(v.shape) for v in both.train.x[:]] == [[4, 2], [4, 3]]
    for x in (list(a), tuple(a)):
        alone = eh.Federation.from_arrays([{"x": np.stack(x), "y": [0, 1, 1, 0]}])
        same = eh.Federation.from_arrays([{"x": [row.tolist() for row in x], "y": [0, 1, 1, 0]}])
        assert isinstance(alone.train.x, Tensor)
        assert torch.equal(alone.train.x.double(), same.train.x.double())


def test_items_that_are_dicts_or_lists_become_inputs() -> None:
    class Items(torch.utils.data.Dataset[Any]):
        def __init__(self, kind: str) -> None:
            self.kind = kind

        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> Any:
            ids, mask = torch.tensor([number, 1]), torch.tensor([1.0, 0.5])
            if self.kind == "dict":
                return {"ids": ids, "mask": mask, "labels": number % 2, "sex": "fm"[number % 2]}
            return [[ids, mask], number % 2]

    sites = ["A", "A", "B", "B", "A", "B"]
    named = eh.Federation.from_torch(Items("dict"), sites, {"test": 0}, group="sex")
    listed = eh.Federation.from_torch(Items("list"), sites, {"test": 0})
    assert named.train.x[:]["ids"].tolist() == listed.train.x[:][0].tolist()
    assert named.train.x[:]["mask"].dtype == torch.float32
    assert named.group_names == ("f", "m")
    assert named.train.y.tolist() == listed.train.y.tolist()


def test_splits_shares_and_fingerprints_keep_all_inputs() -> None:
    fed = eh.Federation.from_arrays(CLIENTS)
    held = fed.with_validation(0.4)
    rows = {tuple(row.tolist()) for row in fed.train.x[:]["numbers"]}
    parts = [held.parts[name].x[:]["numbers"] for name in ("train", "val")]
    assert {tuple(row.tolist()) for part in parts for row in part} == rows
    assert fed.fingerprint() == eh.Federation.from_arrays(CLIENTS).fingerprint()
    other = [dict(CLIENTS[0]), *CLIENTS[1:]]
    text = CLIENTS[0]["x"]["text"]
    other[0]["x"] = {**CLIENTS[0]["x"], "text": {**text, "mask": 1 - text["mask"]}}
    assert eh.Federation.from_arrays(other).fingerprint() != fed.fingerprint()


def test_a_form_travels_as_text_and_gives_zeros() -> None:
    fed = eh.Federation.from_arrays(CLIENTS)
    form = fed.form
    zeros = form.zeros(2).x
    assert isinstance(zeros, Nested)
    assert zeros.form == form.inputs
    assert {k: list(v.shape) for k, v in zeros.arrays().items()} == {
        "numbers": [2, 3],
        "text.ids": [2, 5],
        "text.mask": [2, 5],
        "pair.0": [2],
        "pair.1": [2],
    }


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"a": np.zeros((2, 1)), "b": np.zeros((3, 1))}, "train data, input 'b' has 3 rows"),
        ({}, "x has no inputs"),
        ({"a": np.array([["x"], ["y"]])}, "arrays of numbers"),
        ({"a": np.array([[1.0], [np.inf]])}, "train x that is not finite"),
    ],
)
def test_bad_inputs_are_refused_in_one_line(x: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        eh.Federation.from_arrays([{"x": x, "y": [0, 1]}])
    assert "\n" not in str(caught.value)


def test_clients_need_the_same_inputs() -> None:
    first = {"x": {"a": np.zeros((2, 1))}, "y": [0, 1]}
    second = {"x": {"b": np.zeros((2, 1))}, "y": [0, 1]}
    with pytest.raises(ValueError, match="all clients need the same"):
        eh.Federation.from_arrays([first, second])


def test_several_inputs_on_flower_give_the_simulators_bits(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from tests.support.flower_nodes import FAST, Setting

    torch.manual_seed(0)
    module, fed = Mixed().double(), eh.Federation.from_arrays(CLIENTS, TESTS)
    held = [eh.Federation.from_arrays([c], [t]) for c, t in zip(CLIENTS, TESTS, strict=True)]
    result = Setting(tmp_path, fed, module, held).run(eh.QFFL(q=1.0), rounds=2, **FAST)
    reference = eh.fit(module, fed, eh.QFFL(q=1.0), rounds=2, engine="loop", **FAST)
    for name, value in reference.params.items():
        assert torch.equal(result.params[name], value), name
