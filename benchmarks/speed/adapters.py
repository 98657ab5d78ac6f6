"""Milliseconds of a round of LoRA adapters (rank 8) on frozen transformers, beside a plain loop.

BERT-tiny (2 layers of 128, 64 tokens) and ViT-small (12 layers of 384; 224 pixels, on a CPU 64), 10
and 50 clients, two local steps with batches of 8. The weights are random: speed does not depend on
them. The plain loop copies the adapters alone, as a careful user does, takes the clients one after
another and multiplies matrices in the same precision.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenhand as eh
from benchmarks.machine import seconds
from benchmarks.speed import floors, peers
from benchmarks.speed.figures import Figure, Options
from benchmarks.speed.ours import run_rounds
from evenhand import Nested

BATCH, STEPS, LR, CLASSES, RANK = 8, 2, 0.01, 4, 8
TOKENS, WORDS = 64, 30_522
BARS = {10: 2.0, 50: 2.0}  # on a GPU, against the plain loop


class Case(NamedTuple):
    """A network with adapters, and samples for it."""

    name: str
    module: nn.Module
    x: dict[str, Tensor]


class Logits(nn.Module):
    """The network as a function from its inputs to logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.module(**x).logits
        return logits


class PlainLoop:
    """Loads the shared adapters into the network, trains them, and adds up the results."""

    def __init__(self, module: nn.Module, device: torch.device, tf32: bool = False) -> None:
        self.module, self.tf32 = module.to(device).train(), tf32
        self.adapters = [p for p in self.module.parameters() if p.requires_grad]
        self.shared = [p.detach().clone() for p in self.adapters]
        self.device = device

    def round(self, clients: list[list[tuple[dict[str, Tensor], Tensor]]]) -> float:
        """Seconds of a round; ``clients`` has every client's batches."""
        matmul = torch.backends.cuda.matmul
        before, matmul.allow_tf32 = matmul.allow_tf32, self.tf32
        try:
            return seconds(lambda: self._round(clients), self.device)
        finally:
            matmul.allow_tf32 = before

    def _round(self, clients: list[list[tuple[dict[str, Tensor], Tensor]]]) -> None:
        total = [torch.zeros_like(p) for p in self.shared]
        for batches in clients:
            with torch.no_grad():
                for own, shared in zip(self.adapters, self.shared, strict=True):
                    own.copy_(shared)
            optimiser = torch.optim.SGD(self.adapters, lr=LR)
            for x, y in batches:
                optimiser.zero_grad()
                F.cross_entropy(self.module(**x).logits, y).backward()
                optimiser.step()
            for sum_, own in zip(total, self.adapters, strict=True):
                sum_ += own.detach() / len(clients)
        self.shared = total


def adapters(options: Options) -> Iterator[Figure]:
    """Two networks, 10 and 50 clients."""
    if not (peers.have("transformers") and peers.have("peft")):
        return
    for clients, least in BARS.items():
        for case in (_bert(clients), _vit(clients, 224 if options.cuda else 64)):
            yield from _measured(case, clients, least if options.cuda else None, options)


def _measured(case: Case, clients: int, least: float | None, options: Options) -> Iterator[Figure]:
    samples = clients * STEPS * BATCH
    y = torch.randint(CLASSES, (samples,), generator=torch.Generator().manual_seed(0))
    offsets = torch.linspace(0, samples, clients + 1).long()
    fed = eh.Federation(eh.Part(Nested(case.x), y, offsets))
    placed = {name: values.to(options.device) for name, values in case.x.items()}
    of_peer = [
        [
            ({name: values[at : at + BATCH] for name, values in placed.items()},
             y[at : at + BATCH].to(options.device))
            for at in range(client * STEPS * BATCH, (client + 1) * STEPS * BATCH, BATCH)
        ]
        for client in range(clients)
    ]  # fmt: skip
    few = {name: values[:BATCH] for name, values in case.x.items()}
    operations = floors.operations_of_step(Logits(copy.deepcopy(case.module)), few)
    size = 4 * sum(p.numel() for p in case.module.parameters() if p.requires_grad)
    local: Any = eh.LocalSGD(lr=LR, steps=STEPS, batch_size=BATCH)
    for precision in [p for p in options.precisions if p != "bf16"]:
        loop = PlainLoop(copy.deepcopy(case.module), options.device, precision == "tf32")
        turn = peers.Turns(lambda loop=loop: [loop.round(of_peer)], options.device)
        ours = run_rounds(
            case.module,
            fed,
            eh.FedAvg(),
            options,
            warm_up=3 if options.quick or not options.cuda else 6,
            measured=3 if options.quick or not options.cuda else 12,
            between=[turn.take] if options.peers else (),
            local=local,
            precision=precision,
        )
        figure = Figure(
            f"{case.name}, {clients} clients x {BATCH}, {precision}",
            "ms a round",
            1e3 * ours.median,
            floor=1e3 * floors.least(
                clients * size * (3 * STEPS + 2), clients * STEPS * operations,
                options.device, precision,
            ),
            memory=ours.memory,
            warm_up=ours.warm_up,
        )  # fmt: skip
        found = turn.median
        theirs = None if found is None else 1e3 * found
        yield replace(figure, peer="plain loop", theirs=theirs, least=least)


def _bert(clients: int) -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        num_labels=CLASSES,
    )  # fmt: skip
    module = _adapted(BertForSequenceClassification(config), ["query", "value"])
    count = clients * STEPS * BATCH
    words = torch.randint(1, WORDS, (count, TOKENS))
    mask = (torch.arange(TOKENS) < torch.randint(TOKENS // 2, TOKENS + 1, (count, 1))).long()
    name = f"BERT-tiny + LoRA, {TOKENS} tokens"
    return Case(name, module, {"input_ids": words * mask, "attention_mask": mask})


def _vit(clients: int, side: int) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, image_size=side, patch_size=16,
        num_labels=CLASSES,
    )  # fmt: skip
    module = _adapted(ViTForImageClassification(config), ["q_proj", "v_proj"])
    pixels = torch.randn(clients * STEPS * BATCH, 3, side, side)
    return Case(f"ViT-small + LoRA, {side} pixels", module, {"pixel_values": pixels})


def _adapted(module: nn.Module, layers: list[str]) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    found = [name for name, _ in module.named_modules() if name.split(".")[-1] in layers]
    if not found:  # names of an earlier version of transformers
        layers = ["query", "value"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft about transformers
        adapted: nn.Module = get_peft_model(
            module, LoraConfig(r=RANK, target_modules=layers, modules_to_save=["classifier"])
        )
    return adapted
