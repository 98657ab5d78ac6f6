"""Lies about data: what a registered node says of its samples, and of how a model fares on them.

Eight clients with the patients of four hospitals; the last one, with 4.8 % of the data, lies,
through Flower's real types. A lie has held when the run is done, the worst honest client's accuracy
is near that of a run without the lie, numbers over clients are in range, and the log names the
liar.

    python -m benchmarks.torture.lies_about_data            the table of docs/results/reliability.md
    python -m benchmarks.torture.lies_about_data --only census  lies whose name has these words
"""

from __future__ import annotations

import logging
import math
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from flwr.app import Message
from torch import nn

import evenhand as eh
import evenhand.flower
from benchmarks.machine import describe
from benchmarks.torture import Figure
from evenhand.flower import client_app, records, server_app
from evenhand.messages import Reply
from tests.support.flower_grid import InProcessGrid

SIZES = (104, 103, 117, 118, 98, 80, 80, 35)  # the liar has the last, 4.8 %
LIAR = len(SIZES) - 1
DEADLINE = 0.5
Told = dict[str, Any]


@dataclass(frozen=True)
class Lie:
    """What a node says that is not true.

    Args:
        census: changes what it reports: (about, counts by part), in place.
        evaluation: changes its evaluation, in place.
        flipped: it trains on labels that are the wrong way round.
        group: all its samples are of this group, where it is not empty.
        silent: it reports, and then says nothing.
        named: whether the server can know, and must name it.
        approved: what the operator has approved beforehand, as arguments of Admission.
        near: what the worst honest client may lose. A cap bounds a lie about the number of samples
            and does not undo it: of eight clients, one with five times the median has 42 % of the
            weight.
    """

    name: str
    census: Callable[[Told, Told], object] = lambda about, counts: None
    evaluation: Callable[[Told], object] = lambda tally: None
    flipped: bool = False
    silent: bool = False
    named: bool = True
    group: str = ""
    approved: dict[str, Any] = field(default_factory=dict)
    near: float = 0.05
    methods: tuple[eh.Algorithm, ...] = (eh.FedAvg(),)


def _claim(samples: int) -> Callable[[Told, Told], object]:
    def change(about: Told, counts: Told) -> None:
        for part in ("train", "test"):
            counts[part] = torch.full_like(counts[part], samples // len(counts[part]))

    return change


def _groups(*names: str) -> Callable[[Told, Told], object]:
    def change(about: Told, counts: Told) -> None:
        about["groups"] = list(names)
        for part in ("train", "val", "test"):
            counts[part] = torch.zeros(len(names), dtype=torch.int64)
            if part != "val":
                counts[part][0] = 30

    return change


def _say(**values: Any) -> Callable[[Told, Told], object]:
    return lambda about, counts: about.update(values)


def _put(name: str, value: float, cell: int | None = None) -> Callable[[Told], object]:
    """An entry of the evaluation, or one cell of it, as the liar likes it."""

    def change(tally: Told) -> None:
        if name in tally and cell is None:
            tally[name] = torch.full_like(tally[name], value)
        elif name in tally:
            tally[name] = tally[name].clone()
            tally[name].view(-1)[cell] = value

    return change


def _times(name: str, factor: float) -> Callable[[Told], object]:
    return lambda tally: tally.update({name: tally[name] * factor} if name in tally else {})


ALL = (eh.FedAvg(), eh.AFL(), eh.FAFL(), eh.QFFL(), eh.FedMinMax())
LIES = (
    Lie("nothing", named=False),
    Lie("census: 10^7 samples, labels flipped", _claim(10**7), flipped=True, methods=ALL, near=0.2),
    Lie(
        "the same, at most 120 samples approved",
        _claim(10**7),
        flipped=True,
        approved={"samples": 120},
        near=0.1,
        methods=ALL,
    ),
    Lie("census: 2^28 samples", _claim(2**28)),
    Lie("census: 50,000 groups", _groups(*map(str, range(50_000)))),
    Lie("census: an invented group", group="x", flipped=True, methods=(eh.FedMinMax(),), near=0.2),
    Lie(
        "the same, groups approved",
        group="x",
        flipped=True,
        approved={"groups": ("female", "male")},
        methods=(eh.FedMinMax(),),
    ),
    Lie("census: another's name", _say(name="client 0")),
    Lie("census: another shape", _say(x_shape=[7])),
    Lie("census: other classes", _say(labels=["no", "yes"])),
    Lie("census: a formula for a name", _say(name="=cmd|' /C calc'!A0"), named=False),
    Lie("evaluation: -5 correct", evaluation=_put("correct", -5.0)),
    Lie("evaluation: loss NaN", evaluation=_put("loss", math.nan)),
    Lie("evaluation: 4e9 in a histogram", evaluation=_put("client_accuracies", 4e9, 3)),
    Lie("evaluation: -4 clients", evaluation=_put("clients", -4.0)),
    Lie("evaluation: accuracy 1e300", evaluation=_put("client_accuracy", 1e300)),
    Lie("evaluation: 1000 x correct", evaluation=_times("correct", 1000.0)),
    Lie("silence after the census", silent=True),
)


@dataclass
class Outcome:
    """What a run with a liar came to."""

    worst: float = 0.0  # accuracy of the honest client that fares worst
    ended: str = ""  # the error that ended it
    odd: str = ""  # a number that cannot be
    named: bool = False
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)

    def held(self, honest: float, lie: Lie) -> bool:
        return (
            not (self.ended or self.odd)
            and self.worst >= honest - lie.near
            and (self.named or not lie.named)
        )


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def try_lie(
    lie: Lie, method: eh.Algorithm, seed: int = 0, rounds: int = 10, **options: Any
) -> Outcome:
    """One run with the liar; the others' accuracy is computed here, with the model handed out."""
    clients = _patients(seed)
    data = [_alone(clients, i, lie) for i in range(len(SIZES))]
    if lie.approved:
        options["admission"] = eh.flower.Admission(**lie.approved)
    module = nn.Linear(clients.train.x.shape[1], 2)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()
    found: list[eh.Result] = []
    listener, outcome = _Listener(), Outcome()
    log = logging.getLogger("evenhand")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        configs = [
            {"partition-id": i, "name": f"client {i}", "state-dir": f"{folder}/{i}"}
            for i in range(len(SIZES))
        ]
        app = client_app(module, lambda config: data[int(config["partition-id"])])
        grid = InProcessGrid(app, configs, lambda node, reply: [_told(lie, node, reply, grid)])
        server = server_app(
            method,
            module,
            **{
                "clients": len(SIZES) - 1,
                "out": Path(folder) / "run",
                "rounds": rounds,
                "eval_every": 5,
                "local": eh.LocalSGD(lr=0.1, epochs=1, batch_size=16),
                "seed": seed,
                "deadline": DEADLINE,
                "patience": 5.0,
                "finished": found.append,
                **options,
            },
        )
        log.addHandler(listener)
        begun = time.monotonic()
        try:
            server(grid, grid.contexts[1])
        except (eh.EvenhandError, ValueError, ArithmeticError, OSError, MemoryError) as error:
            outcome.ended = f"{type(error).__name__}: {str(error).splitlines()[0]}"[:120]
        finally:
            log.removeHandler(listener)
        outcome.seconds = time.monotonic() - begun
    outcome.lines = listener.lines
    liar = (f"client {LIAR}", f"node {LIAR + 1} ", f"node {LIAR + 1}:")
    outcome.named = any(word in line for line in listener.lines for word in liar)
    if found:
        outcome.worst = _worst_honest(module, found[0], clients)
        outcome.odd = _odd(found[0])
    return outcome


def _told(lie: Lie, node: int, message: Message, grid: InProcessGrid) -> Message:
    """The liar's message in place of an honest one."""
    if node != LIAR + 1 or not message.has_content() or "about" not in message.content:
        return message
    reply, about = records.read_reply(message.content)
    if "work" not in about:
        counts = dict(reply.each)
        lie.census(about, counts)
        grid.down = {node} if lie.silent else set()
        message.content = records.reply_content(Reply({}, counts), about)
    elif about["work"] == "evaluate":
        tally = dict(reply.total)
        lie.evaluation(tally)
        claimed: Told = {}
        counts = {"test": tally["count"], "train": tally["count"], "val": tally["count"]}
        lie.census(claimed, counts)
        if counts["test"].shape == tally["count"].shape and lie.census is not Lie.census:
            tally["count"] = counts["test"].double()
        message.content = records.reply_content(Reply(tally, reply.each), about)
    return message


def _worst_honest(module: nn.Module, result: eh.Result, clients: eh.Federation) -> float:
    module.load_state_dict(result.params)
    rates = []
    for client in range(len(SIZES) - 1):
        x, y, _ = clients.test.client(client)  # type: ignore[union-attr]
        rates.append(float((module(x).argmax(1) == y).double().mean()))
    return min(rates)


def _odd(result: eh.Result) -> str:
    """A number over clients or samples that cannot be."""
    for row in result.history_rows:
        for name in ("mean", "worst", "best10", "worst10"):
            if name in row and not 0 <= row[name] <= 1:
                return f"{name} {row[name]:g}"
        if "loss" in row and not 0 <= row["loss"] < 100:
            return f"loss {row['loss']:g}"
    for value in result.score_columns["accuracy"]:
        if not 0 <= value <= 1:
            return f"accuracy {value:g}"
    return ""


def _patients(seed: int) -> eh.Federation:
    """Made-up patients of eight hospitals, whose labels depend on their features in ways that are
    alike."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=12)

    def patients(size: int, own: Any) -> dict[str, Any]:
        x = rng.normal(size=(size, 12)).astype(np.float32)
        y = (x @ (common + own) + 2.0 * rng.normal(size=size) > 0).astype(np.int64)
        return {"x": x, "y": y, "group": rng.choice(["female", "male"], size, p=[0.3, 0.7])}

    slopes = [0.7 * rng.normal(size=12) for _ in SIZES]
    train = [patients(size, own) for size, own in zip(SIZES, slopes, strict=True)]
    return eh.Federation.from_arrays(train, test=[patients(100, own) for own in slopes])


def _alone(clients: eh.Federation, client: int, lie: Lie) -> eh.Federation:
    def arrays(part: Any) -> dict[str, Any]:
        x, y, group = part.client(client)
        names = np.array(clients.group_names)
        return {"x": x.numpy(), "y": y.numpy(), "group": names[group.numpy()]}

    train, test = arrays(clients.train), arrays(clients.test)
    if lie.flipped and client == LIAR:
        train["y"] = 1 - train["y"]
    for part in (train, test) if lie.group and client == LIAR else ():
        part["group"] = [lie.group] * len(part["y"])
    return eh.Federation.from_arrays([train], test=[test])


def figures(seconds: float, seed: int) -> list[Figure]:
    """Each lie to each method that it is for, until the time is over."""
    end, found, honest = time.monotonic() + seconds, [], dict[str, float]()
    for lie in LIES:
        tried = held = 0
        for method in lie.methods:
            if time.monotonic() > end:
                break
            label = type(method).__name__
            if label not in honest:
                honest[label] = try_lie(LIES[0], method, seed).worst
            tried += 1
            held += try_lie(lie, method, seed).held(honest[label], lie)
        if tried:
            found.append(Figure(lie.name, tried, held))
    return found


@click.command()
@click.option("--only", default="", help="Lies whose name has these words.")
@click.option("--seed", default=0, show_default=True)
def main(only: str, seed: int) -> None:
    """Each lie, what the run came to, and what it cost."""
    click.echo(describe())
    for lie in LIES:
        if only not in lie.name:
            continue
        for method in lie.methods:
            got = try_lie(lie, method, seed)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            named = "named" if got.named else "-"
            end = got.ended or got.odd or "done"
            click.echo(
                f"{lie.name:38} {type(method).__name__:10} worst {got.worst:.3f} {named:6}"
                f" {got.seconds:6.1f} s {peak:6.0f} MB  {end}"
            )


if __name__ == "__main__":
    main()
