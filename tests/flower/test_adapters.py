"""LoRA adapters in a real federation: samples with several inputs, and only adapters travel."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.flower import client_app, server_app
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import trusting

hf = pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")

# peft asks transformers in a way that is going to change
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

WORDS, LENGTH, CLASSES = 40, 6, 3
LOCAL = eh.LocalAdamW(0.01, epochs=1, batch_size=4)


def adapted() -> nn.Module:
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=WORDS, num_labels=CLASSES, hidden_size=8, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    lora = peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=["classifier"])
    module: nn.Module = peft.get_peft_model(hf.BertForSequenceClassification(config), lora)
    return module


def arrays(seed: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    mask = (np.arange(LENGTH) < rng.integers(2, LENGTH + 1, count)[:, None]).astype(np.int64)
    ids = rng.integers(3, WORDS, (count, LENGTH)) * mask
    return {"x": {"input_ids": ids, "attention_mask": mask}, "y": rng.integers(0, CLASSES, count)}


def test_a_federation_trains_adapters_like_its_simulation(tmp_path: Path) -> None:
    module, sizes = adapted(), (7, 12)
    data = [
        ([arrays(seed, n)], [arrays(seed + 10, 5)]) for seed, n in enumerate(sizes)
    ]  # one client each
    held = [eh.Federation.from_arrays(train, test=test) for train, test in data]
    app = client_app(module, lambda config: held[int(config["partition-id"])])
    configs: list[dict[str, Any]] = [
        {"partition-id": i, "state-dir": str(tmp_path / "state"), "policy": trusting(tmp_path)}
        for i in range(len(sizes))
    ]
    grid, found = InProcessGrid(app, configs), list[eh.Result]()
    options: dict[str, Any] = {"rounds": 2, "local": LOCAL, "seed": 3, "eval_every": 2}
    server_app(
        eh.FedAvg(), copy.deepcopy(module), clients=len(sizes), out=tmp_path / "run",
        finished=found.append, bound=None, **options,
    )(grid, grid.contexts[1])  # fmt: skip
    everyone = eh.Federation.from_arrays(
        [train[0] for train, _ in data], test=[test[0] for _, test in data]
    )
    wanted = eh.fit(module, everyone, eh.FedAvg(), engine="loop", **options)
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert set(found[0].state["model"]) == trained
    for key, value in wanted.params.items():
        assert torch.equal(found[0].params[key], value), key
    whole = sum(p.nbytes for p in module.parameters())
    assert 0 < max(map(length, grid.sent)) < whole / 2


def length(message: Any) -> int:
    """Bytes of the arrays in a message."""
    records = message.content.array_records.values() if message.has_content() else ()
    return sum(len(array.data) for record in records for array in record.values())
