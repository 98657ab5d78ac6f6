"""Classifiers of ``transformers``, with and without LoRA of ``peft``: small ones with random weights."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import evenhand as eh
from evenhand import tree

pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")
# peft asks transformers in a way that is going to change
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

WORDS, LENGTH, CLASSES = 40, 6, 3
ADAPTED = {
    "bert": ["query", "value"],
    "distilbert": ["q_lin", "v_lin"],
    "vit": ["q_proj", "v_proj"],
    "gpt2": ["c_attn"],
}


@cache
def original(name: str) -> nn.Module:
    """A small network of the real class, in float64 and without dropout."""
    import transformers as hf

    torch.manual_seed(0)
    text: dict[str, Any] = {"vocab_size": WORDS, "num_labels": CLASSES, "pad_token_id": 0}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    module: nn.Module
    if name == "bert":
        bert = hf.BertConfig(**text, **small, **none, intermediate_size=16)
        module = hf.BertForSequenceClassification(bert)
    elif name == "distilbert":
        dropout = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
        distil = hf.DistilBertConfig(**text, dim=8, n_layers=2, n_heads=2, hidden_dim=16, **dropout)
        module = hf.DistilBertForSequenceClassification(distil)
    elif name == "vit":
        vit = hf.ViTConfig(
            **small, **none, intermediate_size=16, image_size=8, patch_size=4, num_labels=CLASSES
        )
        module = hf.ViTForImageClassification(vit)
    else:
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        tokens = {"bos_token_id": 1, "eos_token_id": 2}
        gpt2 = hf.GPT2Config(
            **text, **tokens, n_embd=8, n_layer=2, n_head=2, n_positions=16, **dropout
        )
        module = hf.GPT2ForSequenceClassification(gpt2)
    return module.double()


def network(name: str, lora: bool) -> nn.Module:
    module = copy.deepcopy(original(name))
    if not lora:
        return module
    head = "score" if name == "gpt2" else "classifier"
    torch.manual_seed(1)
    config = peft.LoraConfig(
        r=2, target_modules=ADAPTED[name], modules_to_save=[head], fan_in_fan_out=name == "gpt2"
    )
    adapted: nn.Module = peft.get_peft_model(module, config).double()
    return adapted


def arrays(name: str, seed: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    if name == "vit":
        return {
            "x": {"pixel_values": rng.normal(size=(count, 3, 8, 8)) + y[:, None, None, None]},
            "y": y,
        }
    ids = rng.integers(3, WORDS, (count, LENGTH))
    ids[:, 0] = 3 + y
    mask = (np.arange(LENGTH) < rng.integers(2, LENGTH + 1, count)[:, None]).astype(np.int64)
    return {"x": {"input_ids": ids * mask, "attention_mask": mask}, "y": y}


def federation(name: str, sizes: tuple[int, ...] = (2, 9, 5)) -> eh.Federation:
    parts = [[arrays(name, 10 * part + k, n) for k, n in enumerate(sizes)] for part in (0, 1)]
    return eh.Federation.from_arrays(*parts)


LOCAL = eh.LocalSGD(lr=0.1, epochs=1, batch_size=4)
NETWORKS = [(name, lora) for name in ADAPTED for lora in (False, True)]


@pytest.mark.parametrize(("name", "lora"), NETWORKS)
def test_engines_agree_and_results_do_not_depend_on_chunks(name: str, lora: bool) -> None:
    module, fed = network(name, lora), federation(name)
    loop, whole, single = (
        eh.fit(module, fed, eh.AFL(), rounds=2, local=LOCAL, engine=engine)
        for engine in (eh.Loop(), eh.Vmap(), eh.Vmap(chunk=1))
    )
    for key, value in loop.params.items():
        torch.testing.assert_close(whole.params[key], value, rtol=0, atol=1e-12)
        assert torch.equal(whole.params[key], single.params[key]), key
    assert loop.history["loss"].iloc[-1] == pytest.approx(whole.history["loss"].iloc[-1], abs=1e-12)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(("name", "lora"), NETWORKS)
def test_one_client_takes_the_steps_of_plain_pytorch(name: str, lora: bool, engine: str) -> None:
    module, data = network(name, lora), arrays(name, 0, 7)
    fed = eh.Federation.from_arrays([data])
    found = eh.fit(
        module, fed, eh.FedAvg(), rounds=3, local=eh.LocalSGD(lr=0.2, steps=1), engine=engine
    )
    plain = copy.deepcopy(module)
    trained = [p for p in plain.parameters() if p.requires_grad]
    solver = torch.optim.SGD(trained, lr=0.2)
    inputs = {key: torch.from_numpy(value) for key, value in data["x"].items()}
    for _ in range(3):
        solver.zero_grad()
        logits = plain(**inputs).logits
        nn.functional.cross_entropy(logits, torch.from_numpy(data["y"])).backward()
        solver.step()
    moved = {n: p.detach() for n, p in plain.named_parameters() if p.requires_grad}
    assert moved.keys() == found.state["model"].keys()
    start = dict(module.named_parameters())
    assert any(not torch.equal(moved[key], start[key]) for key in moved)
    for key, value in moved.items():
        torch.testing.assert_close(found.state["model"][key], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_masked_tokens_do_not_count(engine: str) -> None:
    """Whatever stands under the mask, also in a client whose other samples have none."""
    module, data = network("bert", False), arrays("bert", 0, 8)
    hidden = data["x"]["attention_mask"] == 0
    assert hidden.any()
    other = copy.deepcopy(data)
    other["x"]["input_ids"][hidden] = 7
    full = arrays("bert", 1, 8)
    full["x"]["attention_mask"][:] = 1
    options: dict[str, Any] = {"rounds": 1, "local": LOCAL, "engine": engine}
    results = [
        eh.fit(module, eh.Federation.from_arrays([one, full]), eh.FedAvg(), **options)
        for one in (data, other)
    ]
    for key, value in results[0].params.items():
        if "word_embeddings" not in key:
            torch.testing.assert_close(results[1].params[key], value, rtol=0, atol=1e-12)


def test_only_adapters_travel_are_remembered_and_are_stored(tmp_path: Path) -> None:
    module, fed = network("bert", True), federation("bert")
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert 0 < len(trained) < len(list(module.parameters())) / 2
    result = eh.fit(module, fed, eh.Ditto(lam=0.1), rounds=1, local=LOCAL, out=tmp_path / "run")
    assert set(result.state["model"]) == trained
    assert result.personal is not None
    assert len(result.params) == len(result.personal[0]) == len(trained)
    size = sum(value.nbytes for value in tree.leaves(result.state["model"]))
    kept = tmp_path / "run"
    assert (kept / "model.safetensors").stat().st_size < size + 3000
    assert (kept / "personal.safetensors").stat().st_size < fed.clients * (size + 3000)
    again = eh.load(tmp_path / "run").trial()
    for client, own in enumerate(again.personal or []):
        assert all(torch.equal(own[key], value) for key, value in result.personal[client].items())


def test_dropout_trains_on_both_engines() -> None:
    import transformers as hf

    config = hf.BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=CLASSES,
    )  # fmt: skip
    module = hf.BertForSequenceClassification(config)
    for engine in ("loop", "vmap"):
        result = eh.fit(
            module, federation("bert"), eh.FedAvg(), rounds=1, local=LOCAL, engine=engine
        )
        assert np.isfinite(result.history["loss"].iloc[-1])


def test_the_question_whether_code_is_compiled_gets_its_old_answer() -> None:
    eh.fit(network("vit", False), federation("vit"), eh.FedAvg(), rounds=1, local=LOCAL)
    assert not torch.compiler.is_compiling()


def test_a_model_without_trainable_parameters_is_refused_in_one_line() -> None:
    module = network("bert", False).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameters that require gradients") as caught:
        eh.fit(module, federation("bert"), eh.FedAvg(), rounds=1)
    assert "\n" not in str(caught.value)


def test_inputs_that_the_module_does_not_take_are_named() -> None:
    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = network("bert", False)

        def forward(self, input_ids: torch.Tensor, mask: torch.Tensor) -> Any:
            return self.bert(input_ids=input_ids, attention_mask=mask)

    fed = federation("bert")
    with pytest.raises(
        ValueError, match=r"does not accept samples of shape .*attention_mask"
    ) as caught:
        eh.fit(Strict(), fed, eh.FedAvg(), rounds=1)
    assert "\n" not in str(caught.value)
