"""Seconds of a round in a real federation: evenhand's FedAvg beside Flower's own, on the same
nodes.

    python -m benchmarks.federation [--rounds 6] [--turns 2] [--nodes 4] [--json FILE] [--check]
                                    [--masked] [--policy] [--hidden 200]
                                    [--only 'torch.optim|masked']

One SuperLink and four SuperNodes, real processes with TLS and node keys on this machine, serve all
runs; the runs take turns. A network of 22,210 parameters, 500 samples a node, one epoch of batches
of 32. A round is the time from one sending of training tasks to the next, as either server sees it;
the first round is left out. Compared are rounds with the same exchanges: training alone, and
training followed by evaluation. --check fails where evenhand's rounds take more than 1.10 times
those of Flower's FedAvg with a client that uses torch.optim, as its users write it; beside it,
without a bar, stands one that makes its steps by hand. With --masked, rounds with masked sums are
timed, too; their evaluation is in the message that trains, and the bars are 1.15 in strict mode and
1.40 with the message that opens the sum. --policy gives every node the policy file of a new
project, so that it also counts and limits what it answers; audit files, the server's journal and,
with masked sums, signed keys are always on. --hidden 9009 makes a network of a million parameters.
Processor time of a message is that of all
processes at the nodes in a run by the number of its messages, of every kind.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.federation.problem import HIDDEN, TESTED, network, read_data, write_data
from benchmarks.machine import describe
from evenhand.flower import Loopback
from evenhand.flower.project.policy import policy

MOST_RATIO = 1.10
LEAST_ACCURACY = 0.3  # of the last model: both sides must have trained; guessing gives 0.1
ROOT = Path(__file__).parents[2]
PROJECT = """
[project]
name = "{side}"
version = "0.1.0"

[tool.flwr.app]
publisher = "benchmarks"

[tool.flwr.app.components]
serverapp = "{side}.server_app:app"
clientapp = "{side}.client_app:app"

[tool.flwr.app.config]
rounds = 1
clients = 1
evaluate = false
by-hand = false
secure = ""
stamps = ""
out = ""
"""


class Contestant(NamedTuple):
    """One row of the table."""

    name: str
    side: str  # the module with its apps
    evaluate: bool
    by_hand: bool = False
    secure: str = ""  # mode of masked sums
    most: float | None = None  # times Flower's round that is allowed


CONTESTANTS = (
    Contestant("Flower's FedAvg, torch.optim", "theirs", False),
    Contestant("Flower's FedAvg, steps by hand", "theirs", False, by_hand=True),
    Contestant("evenhand's FedAvg", "ours", False, most=MOST_RATIO),
    Contestant("Flower's FedAvg, torch.optim", "theirs", True),
    Contestant("evenhand's FedAvg", "ours", True, most=MOST_RATIO),
)
MASKED = tuple(
    Contestant(f"masked sums, {mode}", "masked", evaluate, secure=mode, most=most)
    for evaluate in (False, True)
    for mode, most in (("strict", 1.15), ("recover", 1.40))
)


def write_app(place: Path, side: str) -> Path:
    """A Flower app whose two sides are those of a module here."""
    app = place / f"{side}-app"
    (app / side).mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT.format(side=side))
    (app / side / "__init__.py").touch()
    for end in ("client", "server"):
        module = f"{side}_{end}" if side == "masked" else side
        (app / side / f"{end}_app.py").write_text(
            f"from benchmarks.federation.{module} import {end}\n\napp = {end}\n"
        )
    return app


def run(
    federation: Loopback, app: Path, contestant: Contestant, rounds: int, nodes: int, out: Path
) -> dict[str, Any]:
    """Seconds of each round but the first and the last, bytes of tensors in messages, and a node's
    processor time for a message."""
    out.mkdir()
    config: dict[str, str | int | float | bool] = {
        "rounds": rounds,
        "clients": nodes,
        "evaluate": contestant.evaluate,
    }
    config |= {"by-hand": contestant.by_hand, "secure": contestant.secure}
    config |= {"stamps": str(out / "stamps.json"), "out": str(out)}
    before = _processor_time(federation)
    started = federation.run(app, config)
    status = started.wait(timeout=120 * rounds)
    if status != "finished:completed":
        raise RuntimeError(f"the run of {contestant.name} is {status}:\n{started.log()}")
    spent = _processor_time(federation) - before
    rows = json.loads((out / "stamps.json").read_text(encoding="utf-8"))
    sent, received = ([row for row in rows if row["what"] == what] for what in ("sent", "received"))
    trained = [row for row in sent if row["kind"] == "train"]
    evaluated = [row for row in sent if row["kind"] == "evaluate"]
    if (
        len(trained) != rounds
        or any(row["messages"] != nodes for row in trained)
        or len(evaluated) < contestant.evaluate * rounds * (not contestant.secure)
    ):
        raise RuntimeError(f"the run of {contestant.name} has missed messages: {rows}")
    accuracy = _accuracy(
        torch.load(out / "model.pt", weights_only=True),
        [Path(path) for path in federation.data or ()],
    )
    if accuracy < LEAST_ACCURACY:
        raise RuntimeError(
            f"{contestant.name} has not trained: accuracy {accuracy:.2f} after {rounds} rounds"
        )
    replies = [row for row in received if row["kind"] == "train"]
    return {
        "rounds": [later["at"] - row["at"] for row, later in itertools.pairwise(trained)][1:],
        "sent": _mean_size(trained),
        "received": _mean_size(replies),
        "processor": spent / sum(row["messages"] for row in sent),
        "accuracy": accuracy,
    }


def _mean_size(rows: list[dict[str, Any]]) -> float:
    return sum(row["bytes"] for row in rows) / sum(row["messages"] for row in rows)


def _processor_time(federation: Loopback) -> float:
    """Seconds that the nodes' processes, and those that these have started and that have ended,
    have computed."""
    ticks, running = 0, {pid for node in federation.nodes for pid in node.pids()}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            # also those that have ended, and nobody has asked how
            if int(path.parent.name) in running or int(fields[1]) in running:
                # user, system, and both of children that have been asked
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _accuracy(params: dict[str, torch.Tensor], files: list[Path]) -> float:
    model = network()
    model.load_state_dict(params)
    right = 0
    for path in files:
        x, y = map(torch.from_numpy, read_data(str(path), "test"))
        right += int((model(x).argmax(1) == y).sum())
    return right / (len(files) * TESTED)


def measure(
    contestants: tuple[Contestant, ...], rounds: int, turns: int, nodes: int, limited: bool
) -> list[dict[str, Any]]:
    """A row for each contestant: the median over all turns."""
    found: list[list[dict[str, Any]]] = [[] for _ in contestants]
    with tempfile.TemporaryDirectory(prefix="evenhand-federation-") as kept:
        place = Path(kept)
        files = [place / f"node-{node}.npz" for node in range(nodes)]
        for node, path in enumerate(files):
            write_data(path, node)
        apps = {side: write_app(place, side) for side in ("theirs", "ours", "masked")}
        limits = place / "policy.toml"
        limits.write_text(policy(), encoding="utf-8")
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with Loopback(
            place / "federation", nodes, data=files, env={"PYTHONPATH": path}, cwd=place,
            policy=limits if limited else None,
        ) as federation:  # fmt: skip
            for turn in range(turns):
                for i, contestant in enumerate(contestants):
                    out = place / f"out-{turn}-{i}"
                    found[i].append(
                        run(federation, apps[contestant.side], contestant, rounds, nodes, out)
                    )
                    times = ", ".join(f"{seconds:.1f}" for seconds in found[i][-1]["rounds"])
                    print(
                        f"{contestant.name}{' with evaluation' if contestant.evaluate else ''}:"
                        f" {times} s",
                        file=sys.stderr,
                    )
    rows = []
    for contestant, runs in zip(contestants, found, strict=True):
        medians = {
            name: statistics.median(run[name] for run in runs)
            for name in ("sent", "received", "processor", "accuracy")
        }
        every = sorted(seconds for run in runs for seconds in run["rounds"])
        rows.append(
            {**contestant._asdict(), "round": statistics.median(every), "rounds": every, **medians}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=6,
        help="of each run, at least three; the first and the last are not timed",
    )
    parser.add_argument("--turns", type=int, default=2, help="runs of each")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a ratio is above its bar")
    parser.add_argument("--masked", action="store_true", help="time masked sums, too")
    parser.add_argument("--policy", action="store_true", help="give every node a policy file")
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="rows whose name matches; keep torch.optim, to which the others are compared",
    )
    parser.add_argument("--hidden", type=int, default=200, help="units of the hidden layer")
    arguments = parser.parse_args()
    if arguments.rounds < 3:
        parser.error("--rounds must be at least 3: the first and the last are not timed")
    if arguments.hidden != HIDDEN:  # every process reads it when it starts
        os.environ["BENCHMARK_HIDDEN"] = str(arguments.hidden)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.federation", *sys.argv[1:]])
    contestants = tuple(
        one
        for one in CONTESTANTS + (MASKED if arguments.masked else ())
        if re.search(arguments.only, one.name)
    )
    rows = measure(
        contestants, arguments.rounds, arguments.turns, arguments.nodes, arguments.policy
    )
    machine = f"{describe()}, flwr {version('flwr')}"
    print(
        f"`python -m benchmarks.federation {' '.join(sys.argv[1:])}`\n\n{machine},"
        f" {arguments.nodes} nodes\n"
    )
    print(
        "| a round of | | s | from - to | times Flower's | bar | CPU s of a message | bytes of"
        " tensors in a task | in a reply |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for row in rows:
        reference = next(
            other
            for other in rows
            if other["evaluate"] == row["evaluate"] and other["side"] == "theirs"
        )
        ratio = row["round"] / reference["round"]
        if row["most"] is not None:
            ratios.append(ratio / row["most"])
        exchanges = "training, then evaluation" if row["evaluate"] else "training"
        span = f"{row['rounds'][0]:.1f} - {row['rounds'][-1]:.1f}"
        cells = (
            exchanges,
            row["name"],
            f"{row['round']:.1f}",
            span,
            f"{ratio:.2f}",
            "" if row["most"] is None else f"≤ {row['most']:.2f}",
            f"{row['processor']:.2f}",
        )
        print(f"| {' | '.join(cells)} | {row['sent']:,.0f} | {row['received']:,.0f} |")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": machine, "nodes": arguments.nodes, "rows": rows}, indent=1)
        )
    if arguments.check and max(ratios) > 1:
        sys.exit("not reached: a row takes more times Flower's round than its bar allows")


if __name__ == "__main__":
    main()
