"""Milliseconds of one local step of all clients of a round: convolutional and recurrent models,
beside a plain loop and pfl.

A round has many local steps, so that a step is what counts; what happens once a round (start,
reply, averaging) is divided among them. Rounds of evenhand and of its peers alternate in one
process; medians.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

import evenhand as eh
from benchmarks.speed import floors, peers
from benchmarks.speed.figures import Figure, Options
from benchmarks.speed.ours import federation_of, images, run_rounds
from evenhand.models import CNN, CharLSTM, ResNet18

LR = 0.01


class PlainCharLSTM(nn.Module):
    """CharLSTM as one writes it with torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(80, 8), nn.LSTM(8, 256, 2, batch_first=True)
        self.last = nn.Linear(256, 80)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.lstm(self.embedding(x))[0][:, -1])
        return scores


class Case(NamedTuple):
    """A model, its data, and the bars against a plain loop and pfl."""

    name: str
    build: Callable[[], nn.Module]
    clients: int
    batch: int
    steps: int  # of evenhand in a round
    plain_steps: int  # of the plain loop between two rounds
    least: float
    data: Callable[[int], tuple[Tensor, Tensor]]
    plain: Callable[[], nn.Module] | None = None  # the peer's model, where it is another one
    pfl: bool = False
    limit: float | None = None  # ms a step with rounded products (tf32, bf16)
    last: bool = False  # whether the plain loop has channels last in memory, which is faster


def _digits(count: int) -> tuple[Tensor, Tensor]:
    return images(count, (1, 28, 28), 62)


def _colours(count: int) -> tuple[Tensor, Tensor]:
    return images(count, (3, 32, 32), 10)


def _text(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 80, (count, 80), generator=generator), torch.randint(
        0, 80, (count,), generator=generator
    )


def _small() -> CNN:
    return CNN(channels=(8, 16), hidden=(64,))


def femnist(options: Options) -> Iterator[Figure]:
    """The FEMNIST network for 10 and 100 clients, batches of 32."""
    for clients, least in ((10, 18.0), (100, 28.0)):
        name = f"FEMNIST CNN, {clients} clients x 32"
        yield from measure(
            Case(name, CNN, clients, 32, 50, 10 if clients == 10 else 3, least, _digits), options
        )


def charlstm(options: Options) -> Iterator[Figure]:
    """The Shakespeare network for 31 clients, batches of 10 texts of 80 characters, and for 20
    clients, batches of 64; on a CPU for 10 clients, batches of 10, never slower."""
    cases = ((31, 10, 20, 8.0, None), (20, 64, 10, 8.0, 12.0))
    for clients, batch, steps, least, limit in cases if options.cuda else ((10, 10, 2, 1.0, None),):
        name = f"CharLSTM 2 x 256, {clients} clients x {batch} x 80"
        yield from measure(
            Case(
                name, CharLSTM, clients, batch, steps, 2, least, _text, PlainCharLSTM, limit=limit
            ),
            options,
        )


def resnet(options: Options) -> Iterator[Figure]:
    """ResNet-18 with group normalisation for 10 clients, batches of 64, with either stem."""
    for stem, least in (("imagenet", 15.0), ("cifar", 4.0)):
        name = f"ResNet-18, {stem} stem, 10 clients x 64"
        build = partial(ResNet18, stem=stem)
        yield from measure(Case(name, build, 10, 64, 10, 2, least, _colours, last=True), options)


def cnn(options: Options) -> Iterator[Figure]:
    """A small and a larger convolutional network for 10 clients, batches of 32, on a CPU."""
    yield from measure(
        Case("CNN 8/16, dense 64, 10 clients x 32", _small, 10, 32, 5, 5, 2.0, _digits, pfl=True),
        options,
    )
    yield from measure(
        Case("CNN 32/64, dense 128, 10 clients x 32", CNN, 10, 32, 5, 5, 1.4, _digits, pfl=True),
        options,
    )


def measure(case: Case, options: Options) -> Iterator[Figure]:
    """Evenhand in every precision, each beside its peers."""
    torch.manual_seed(0)
    batches = max(case.steps if not options.cuda else 10, case.plain_steps)
    fed = federation_of(*case.data(case.clients * case.batch * batches), case.clients)
    module = case.build()
    order = torch.channels_last if case.last else torch.contiguous_format
    plain = copy.deepcopy((case.plain or (lambda: module))()).to(memory_format=order)
    loop = peers.PlainLoop(plain, LR, options.device)

    def batches_of(client: int) -> list[tuple[Tensor, Tensor]]:
        x, y = (values.to(options.device) for values in fed.train.client(client)[:2])
        x = x.contiguous(memory_format=order) if case.last else x
        return list(zip(x.split(case.batch), y.split(case.batch), strict=True))[: case.plain_steps]

    of_peer = [batches_of(client) for client in range(case.clients)]
    pfl = None
    if case.pfl and options.peers and peers.have("pfl"):
        pfl = peers.Pfl(
            module, fed, cohort=case.clients, lr=LR, batch=case.batch, device=options.device
        )
    local = eh.LocalSGD(lr=LR, steps=case.steps, batch_size=case.batch)
    warm_up, measured = (3, 5) if options.quick else (4, 12)
    for precision in options.precisions:
        turns = [peers.Turns(lambda: [loop.round(of_peer)], options.device)]
        if pfl is not None:
            turns.append(peers.Turns(lambda: pfl.rounds(1), options.device))

        ours = run_rounds(
            module,
            fed,
            eh.FedAvg(),
            options,
            warm_up=warm_up,
            measured=measured,
            between=[peer.take for peer in turns] if options.peers else (),
            local=local,
            precision=precision,
        )
        floor = floors.of_round(
            module, fed.train.x[: case.batch], case.clients, case.steps, options.device, precision
        )
        figure = Figure(
            f"{case.name}, {precision}",
            "ms a step",
            1e3 * ours.median / case.steps,
            floor=1e3 * floor / case.steps,
            memory=ours.memory,
            warm_up=ours.warm_up,
        )
        for peer, turn, steps in zip(
            ("plain loop", "pfl"), turns, (case.plain_steps, batches), strict=False
        ):
            yield replace(
                figure,
                peer=peer,
                theirs=None if turn.median is None else 1e3 * turn.median / steps,
                least=case.least,
                limit=None if precision == "fp32" else case.limit,
            )
