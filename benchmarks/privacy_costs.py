"""Whom differential privacy costs accuracy, and whether fair methods soften it.

    python -m benchmarks.privacy_costs [--only NAME] [--out FILE]
    python -m benchmarks.privacy_costs --tables FILE [--figure FILE]

The first form trains and writes a row per federation, method, protection and seed to FILE; both
print the tables of docs/results/privacy-costs.md. --figure draws them (needs
plotly and kaleido). Data sets are looked for in $EVENHAND_DATA, else in the user's cache directory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import evenhand as eh
from benchmarks.machine import describe
from evenhand.data.plots import looks
from evenhand.page.figures.drawing import TEMPLATE

Row = dict[str, Any]
Clients = list[Row]

DELTA, STEPS = 1e-4, 5
MOST = 30  # images of a writer
# clipped without noise, and with the noise for an epsilon
LEVELS: dict[str, float | None] = {"clipped": None, "8": 8.0, "3": 3.0, "1": 1.0}
PLAIN = "no privacy"


# ---- the federations: the minority's clients come last, and its samples are in group 1


def _federation(train: Clients, test: Clients) -> eh.Federation:
    return eh.Federation.from_arrays(train, test=test)


def rules(seed: int) -> eh.Federation:
    """1,000 clients, 100 of which label by another rule; a linear model can fit both."""
    rng = np.random.default_rng([seed, 1])
    size, clients, few = 10, 1000, 100
    usual, other = rng.normal(size=(2, size))

    def client(minority: bool, count: int) -> Row:
        x = rng.normal(size=(count, size))
        label = (x @ (other if minority else usual) + rng.normal(size=count) / 2 > 0).astype(int)
        features = np.hstack([x, minority * x, np.full((count, 1), minority)])
        return {
            "x": features.astype(np.float32),
            "y": label,
            "group": np.full(count, "minority" if minority else "majority"),
        }

    kinds = [index >= clients - few for index in range(clients)]
    return _federation([client(kind, 20) for kind in kinds], [client(kind, 10) for kind in kinds])


def digits(seed: int) -> eh.Federation:
    """1,797 images dealt to 240 clients, of whom 48 have rotated, noisy ones."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng([seed, 2])
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8)
    clients, few = 240, 48
    train: Clients = []
    test: Clients = []
    for index, rows in enumerate(np.array_split(rng.permutation(len(labels)), clients)):
        minority = index >= clients - few
        x = images[rows]
        if minority:
            x = np.rot90(x, axes=(1, 2)) + rng.normal(0, 0.15, x.shape)
        x = x.reshape(len(rows), -1).astype(np.float32)
        group = np.full(len(rows), "minority" if minority else "majority")
        for part, kept in ((train, slice(0, 4)), (test, slice(4, None))):
            part.append({"x": x[kept], "y": labels[rows][kept], "group": group[kept]})
    return _federation(train, test)


def adult(seed: int) -> eh.Federation:
    """Adult dealt to 1,000 clients: 669 of men and 331 of women, as many as in the data."""
    everyone = eh.datasets.adult(client="sex", group="sex", seed=seed)
    rng = np.random.default_rng([seed, 3])
    parts = {}
    for name, part in (("train", everyone.train), ("test", everyone.test)):
        assert part is not None
        assert part.group is not None
        x = np.asarray(part.x[:], np.float32)
        parts[name] = x, part.y.numpy(), np.array(everyone.group_names)[part.group.numpy()]
    train: Clients = []
    test: Clients = []
    for sex, clients in (("Male", 669), ("Female", 331)):
        for (x, y, group), found in ((parts["train"], train), (parts["test"], test)):
            rows = rng.permutation(np.flatnonzero(group == sex))
            name = "minority" if sex == "Female" else "majority"
            found += [
                {"x": x[own], "y": y[own], "group": np.full(len(own), name)}
                for own in np.array_split(rows, clients)
            ]
    return _federation(train, test)


def writers(seed: int) -> eh.Federation:
    """MNIST by writer: all 289 of the staff and 50 students, whose digits are harder to read;
    at most 30 images of each, 14 x 14."""
    everyone = eh.datasets.mnist_writers(seed=seed)
    rng = np.random.default_rng([seed, 4])
    assert everyone.teams is not None
    team = np.array(everyone.team_names)[everyone.teams.numpy()]
    chosen = [
        *np.flatnonzero(team == "staff"),
        *rng.choice(np.flatnonzero(team == "students"), 50, replace=False),
    ]

    def clients(part: eh.Part | None) -> Clients:
        assert part is not None
        found = []
        for client in chosen:
            x, y, _ = part.client(int(client))
            small = torch.nn.functional.avg_pool2d(x[:MOST].float(), 2).flatten(1)
            y = y[:MOST]
            group = np.full(len(y), "minority" if team[client] == "students" else "majority")
            found.append({"x": small.numpy(), "y": y.numpy(), "group": group})
        return found

    return _federation(clients(everyone.train), clients(everyone.test))


@dataclass(frozen=True)
class Setting:
    """How a federation is trained; the same for every method."""

    make: Callable[[int], eh.Federation]
    classes: int
    rounds: int
    lr: float
    clips: tuple[float, float]  # about the usual length of a step, and less
    share: float  # of the minority among clients: public
    seeds: int

    def methods(self) -> dict[str, eh.Algorithm]:
        """Methods that need only sums, with what privacy needs to know about them."""
        return {
            "FedAvg": eh.FedAvg(),
            "PropFair": eh.PropFair(M=3.0),
            "FAFL": eh.FAFL(alpha=0.3, mu=0.05, lr_eta=0.05, eta0=0.3),
            "q-FFL": eh.QFFL(q=1.0, lipschitz=1 / self.lr),
            "FedMinMax": eh.FedMinMax(lr_mu=0.1),
        }


FEDERATIONS = {
    "rules": Setting(rules, 2, 60, 0.3, (1.0, 0.3), 0.1, 3),
    "digits": Setting(digits, 10, 100, 0.3, (1.0, 0.3), 0.2, 3),
    "adult": Setting(adult, 2, 30, 0.1, (0.2, 0.07), 0.331, 2),
    "writers": Setting(writers, 10, 30, 0.2, (0.3, 0.1), 50 / 339, 2),
}


# ---- training


def runs(name: str, seed: int) -> Iterator[Row]:
    """Train every method with every protection, and yield a row for each."""
    setting = FEDERATIONS[name]
    fed = setting.make(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = torch.nn.Linear(fed.train.x.shape[1], setting.classes)
    for method, algorithm in setting.methods().items():
        for level, clip, protected in protections(algorithm, setting, seed):
            begin = time.process_time()
            result = eh.fit(
                module,
                fed,
                protected,
                rounds=setting.rounds,
                local=eh.LocalSGD(lr=setting.lr, steps=STEPS),
                weights="uniform",
                seed=seed,
                eval_every=setting.rounds,
            )
            row = {"federation": name, "method": method, "clip": clip, "privacy": level}
            if result.privacy is not None:
                row |= {"noise": result.privacy.noise, "noise_length": result.privacy.ratio}
            seconds = time.process_time() - begin
            yield {**row, "seed": seed, **scores(result), "seconds": seconds}


def protections(
    algorithm: eh.Algorithm, setting: Setting, seed: int
) -> Iterator[tuple[str, float, eh.Algorithm]]:
    """The method plain and with every protection; noise follows from the seed, so epsilon is one
    of a simulation."""
    yield PLAIN, np.inf, algorithm
    groups = (1 - setting.share, setting.share)
    for clip in setting.clips:
        for level, epsilon in LEVELS.items():
            yield (
                level,
                clip,
                eh.Private(
                    inner=algorithm,
                    clip=clip,
                    noise=0.0 if epsilon is None else None,
                    epsilon=epsilon,
                    delta=DELTA,
                    loss_cap=3.0,
                    group_shares=groups,
                    secret=seed,
                ),
            )


def scores(result: eh.Result) -> Row:
    """Accuracies in percent: of all samples, of each group's, and of the tenth of clients that is
    served worst."""
    columns = result.score_columns
    by, names = np.array(columns["by"]), np.array(columns["name"])
    accuracy = 100 * np.asarray(columns["accuracy"], float)
    count = np.asarray(columns["count"], float)
    of_clients = by == "client"
    own = np.sort(accuracy[of_clients])
    groups = {
        name: accuracy[(by == "group") & (names == name)][0] for name in ("majority", "minority")
    }
    return {
        "overall": np.average(accuracy[of_clients], weights=count[of_clients]),
        **groups,
        "worst10": own[: max(1, len(own) // 10)].mean(),
    }


# ---- tables and figure


def result_tables(rows: pd.DataFrame) -> Iterator[str]:
    """A table for each federation: means over seeds ± their standard deviation."""
    for name, of_federation in rows.groupby("federation", sort=False):
        clips = FEDERATIONS[str(name)].clips
        columns = [(PLAIN, np.inf), *((level, clip) for clip in clips for level in LEVELS)]
        heads = [
            PLAIN
            if level == PLAIN
            else f"C = {clip:g}, " + ("no noise" if epsilon is None else f"ε = {level}")
            for level, clip in columns
            for epsilon in [LEVELS.get(level)]
        ]
        lines = [f"### {name}", "", "| method | accuracy of | " + " | ".join(heads) + " |"]
        lines.append("|---|---|" + "---|" * len(heads))
        for method, found in of_federation.groupby("method", sort=False):
            for what in ("majority", "minority"):
                parts = [
                    found[(found["privacy"] == level) & (found["clip"] == clip)][what]
                    for level, clip in columns
                ]
                cells = [f"{part.mean():.1f} ± {part.std():.1f}" for part in parts]
                lines.append(f"| {method} | {what} | " + " | ".join(cells) + " |")
        yield "\n".join(lines)


def draw(rows: pd.DataFrame, file: Path) -> None:
    """The minority's accuracy by protection: a panel for each federation and clipping length."""
    from plotly.subplots import make_subplots

    names = list(dict.fromkeys(rows.federation))
    look = looks(list(dict.fromkeys(rows.method)), "FedAvg")
    titles = [f"{name}, C = {FEDERATIONS[name].clips[row]:g}" for row in (0, 1) for name in names]
    figure = make_subplots(
        2, len(names), subplot_titles=titles, vertical_spacing=0.22, horizontal_spacing=0.05
    )
    words = [
        PLAIN,
        *("no noise" if epsilon is None else f"ε = {level}" for level, epsilon in LEVELS.items()),
    ]
    for place, (row, name) in enumerate((row, name) for row in (0, 1) for name in names):
        clip = FEDERATIONS[name].clips[row]
        for method, style in look.items():
            own = rows[(rows.federation == name) & (rows.method == method)]
            parts = [own[own.privacy == PLAIN]]
            parts += [own[(own["privacy"] == level) & (own["clip"] == clip)] for level in LEVELS]
            figure.add_scatter(
                x=words,
                y=[part.minority.mean() for part in parts],
                error_y={
                    "array": [part.minority.std() for part in parts],
                    "thickness": 1,
                    "width": 2,
                },
                name=method,
                legendgroup=method,
                showlegend=place == 0,
                line={"color": style.colour, "dash": style.dash, "width": 1.5},
                marker={"symbol": style.symbol, "size": 6},
                row=row + 1,
                col=names.index(name) + 1,
            )
    figure.update_layout(
        template=TEMPLATE,
        title="Accuracy of the minority, %",
        width=1080,
        height=680,
        legend={"orientation": "h", "x": 0, "y": -0.16},
        margin={"l": 40, "r": 20, "t": 80, "b": 60},
    )
    figure.update_xaxes(tickangle=-40)
    for column, name in enumerate(names, start=1):
        accuracy = rows[rows.federation == name].minority
        middle = (accuracy.max() + accuracy.min()) / 2
        half = max(accuracy.max() - accuracy.min(), 10) / 2 + 2  # points: no panel magnifies noise
        figure.update_yaxes(range=[middle - half, middle + half], col=column)
    figure.write_image(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=FEDERATIONS)
    parser.add_argument("--out", type=Path, default=Path("privacy-costs.csv"))
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.tables is None:
        begin = time.process_time()
        rows = []
        for name in [given.only] if given.only else FEDERATIONS:
            for seed in range(FEDERATIONS[name].seeds):
                rows += list(runs(name, seed))
                print(f"{name}, seed {seed}: {time.process_time() - begin:.0f} s", flush=True)
                pd.DataFrame(rows).to_csv(given.out, index=False, float_format="%.4f")
        print(describe())
    found = pd.read_csv(given.tables or given.out)
    for table in result_tables(found):
        print("\n" + table)
    if given.figure is not None:
        draw(found, given.figure)


if __name__ == "__main__":
    main()
