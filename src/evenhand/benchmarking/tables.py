"""The benchmark as tables: rows for files, and what a terminal shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from evenhand.benchmarking.standing import GROUP, HEADINGS, Standing, gap_names
from evenhand.benchmarking.summary import COUNTED, Score
from evenhand.metrics.spread import tenth
from evenhand.metrics.uncertainty import Interval

TO = "\u2013"  # between the ends of an interval
OUTSIDE = (
    "With few samples clients look more different than they are; intervals allow for that, so a"
    " number can fall outside its own."
)
MARKS = {1: "↑", 0: "", -1: "↓"}


def result_rows(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """A row per federation and method: metrics with intervals, gains over FedAvg and over
    local-only training, ranks, gaps between groups, what was chosen and what it cost."""
    rows = []
    for one in standings:
        for label in one.labels:
            record = one.records[label]
            row: dict[str, Any] = {"federation": one.federation, "method": label}
            for name, found in one.rows[label].items():
                row |= _ends(name, found)
            for what, against in (("fedavg", one.to_fedavg), ("alone", one.to_alone)):
                for name, found_against in against.get(label, {}).items():
                    row |= _ends(f"{name}_over_{what}", found_against.interval)
                    row[f"{name}_over_{what}_verdict"] = found_against.verdict
            row |= {f"rank_{name}": ranks[label] for name, ranks in one.ranks.items()}
            for column, gap in gap_names(one.gaps.get(label, {})).items():
                row[column.replace(" ", "_").replace("-", "_")] = gap.value
            row |= {
                "settings": " ".join(f"{key}={value}" for key, value in record.settings.items()),
                "at_edge": " ".join(record.at_edge),
                "tried": record.tried,
                "rule": record.rule,
                "rounds": record.rounds,
                "seeds": len(record.seeds),
                "clients": len(record.clients),
                "test_samples": sum(map(sum, record.cells)),
                "seconds": record.seconds,
                "numbers_down": record.down,
                "numbers_up": record.up,
                "device": record.device,
                "torch": record.versions.get("torch", ""),
                "evenhand": record.versions.get("evenhand", ""),
                "date": record.date,
            }
            rows.append(row)
    return rows


def _ends(name: str, found: Interval) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def client_rows(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """A row per federation, method, seed and client: its test samples, and how many were right."""
    return [
        {
            "federation": one.federation,
            "method": label,
            "seed": seed,
            "client": client,
            "samples": sum(cells),
            "right": right,
        }
        for one in standings
        for label, record in one.records.items()
        for seed in record.seeds
        for client, cells, right in zip(
            record.clients, record.cells, record.right_by_client(seed), strict=True
        )
    ]


def score_rows(found: Sequence[Score]) -> list[dict[str, Any]]:
    """A row per method: wins, ties and losses, ranks and costs over all federations."""
    return [
        {
            "method": score.label,
            "personal": score.personal,
            "federations": score.federations,
            **{
                f"{name}_{what}": score.counts.get(name, (0, 0, 0))[place]
                for name in COUNTED
                for place, what in enumerate(("wins", "ties", "losses"))
            },
            **{f"mean_rank_{name}": rank for name, rank in score.ranks.items()},
            "seconds_over_fedavg": score.seconds,
            "numbers_over_fedavg": score.numbers,
            "at_edge": score.edges,
            "diverged": score.diverged,
        }
        for score in found
    ]


class Shown:
    """The benchmark in a terminal."""

    def __init__(
        self,
        standings: Sequence[Standing],
        found: Sequence[Score],
        sentences: Sequence[str],
        titles: Mapping[str, str],
    ) -> None:
        self.standings, self.found = standings, found
        self.sentences, self.titles = sentences, titles

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.sentences
        yield ""
        for one in self.standings:
            yield _federation(one, self.titles.get(one.federation, one.federation))
            if one.diverged:
                yield f"Diverged and excluded: {', '.join(one.diverged)}."
        if self.found:
            yield _summary(self.found)
            yield (
                "↑ ↓: significantly better or worse than FedAvg. Rank: by the worst 10 %, 1 + the"
                " number of methods that are significantly better. Wins, ties, losses: federations"
                " where a method is significantly better than FedAvg, not different,"
                f" significantly worse. {OUTSIDE}"
            )


def _federation(one: Standing, title: str) -> Table:
    names = shown_numbers(one)
    record = next(iter(one.records.values()))
    table = Table(
        box=box.SIMPLE,
        title=f"{title}: test accuracy over {len(record.clients)} clients, %",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for heading in (*(HEADINGS[name] for name in names), "rank", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    ranks = one.ranks["worst10"]
    order = sorted(one.labels, key=lambda label: (ranks[label], -one.rows[label]["worst10"].value))
    for label in order:
        marks = {
            name: MARKS[against.verdict] for name, against in one.to_fedavg.get(label, {}).items()
        }
        seconds = one.records[label].seconds
        table.add_row(
            label,
            *(_number(one.rows[label][name], marks.get(name, "")) for name in names),
            str(ranks[label]),
            "-" if seconds is None else f"{seconds:.1f}",
        )
    return table


def shown_numbers(one: Standing) -> list[str]:
    """The numbers of a federation's table. The worst 10 % of fewer than twenty clients are the
    worst client."""
    few = tenth(len(next(iter(one.records.values())).clients)) == 1
    return [
        name for name in HEADINGS if (name != GROUP or one.grouped) and (name != "min" or not few)
    ]


def _number(found: Interval, mark: str) -> str:
    return f"{100 * found.value:.1f}{mark} [{100 * found.low:.1f}{TO}{100 * found.high:.1f}]"


def _summary(found: Sequence[Score]) -> Table:
    table = Table(box=box.SIMPLE, title="Against FedAvg: wins, ties, losses", title_justify="left")
    table.add_column("method")
    for name in COUNTED:
        table.add_column(HEADINGS[name], justify="right")
    for heading in ("mean rank, worst 10 %", "time", "numbers sent"):
        table.add_column(heading, justify="right")
    for score in found:
        table.add_row(
            score.label,
            *(counted(score, name) for name in COUNTED),
            f"{score.ranks['worst10']:.1f}" if score.ranks else "-",
            times(score.seconds),
            times(score.numbers),
        )
    return table


def counted(score: Score, name: str) -> str:
    """Wins, ties and losses; nothing where no federation has the number."""
    return " / ".join(map(str, score.counts[name])) if name in score.counts else "-"


def times(ratio: float) -> str:
    """A cost against FedAvg's."""
    return "-" if math.isnan(ratio) else f"x {ratio:.2g}" if ratio < 10 else f"x {ratio:.0f}"
