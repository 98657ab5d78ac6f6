"""A picture of the benchmark for documents: gains over FedAvg, methods x federations, as SVG."""

from __future__ import annotations

from evenhand.benchmarking.entry import Benchmark
from evenhand.benchmarking.standing import HEADINGS, Standing
from evenhand.page.markup import text

CELL, NAME, HEAD, ROW = 92, 124, 62, 24  # widths of a column and of names, heights
PAPER, INK, SOFT, RULE = "#ffffff", "#1c2026", "#565d67", "#dfe2e7"
BETTER, WORSE = "#8cc5ae", "#e8b48f"


def picture(found: Benchmark, name: str = "worst10") -> str:
    """Gains over FedAvg in one metric, coloured if significant."""
    there = [one for one in found.standings if any(name in row for row in one.rows.values())]
    width, height = NAME + CELL * len(there) + 8, HEAD + ROW * (len(found.scores) + 1) + 30
    drawn = [_row("fedavg", [f"{100 * one.rows['fedavg'][name].value:.1f} %" for one in there], 0)]
    for place, score in enumerate(found.scores, start=1):
        drawn += [_box(one, score.label, name, x, place) for x, one in enumerate(there)]
        told = [_told(one, score.label, name) for one in there]
        drawn.append(_row(score.label, told, place))
    for x, one in enumerate(there):
        words = found.titles.get(one.federation, one.federation).split(" ")
        lines = [" ".join(words[:2]), " ".join(words[2:])] if len(words) > 2 else words
        drawn += [
            f'<text x="{NAME + CELL * (x + 0.5):.0f}" y="{28 + 15 * line}" text-anchor="middle"'
            f' font-weight="600">{text(word)}</text>'
            for line, word in enumerate(lines)
        ]
    caption = (
        f"Gain over an equally tuned FedAvg in points of accuracy ({HEADINGS[name]});"
        " coloured: significant."
    )
    title = f"Gains over FedAvg, {HEADINGS[name]}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="system-ui, sans-serif" font-size="13" fill="{INK}"'
        f' role="img"><title>{text(title)}</title>'
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>{"".join(drawn)}'
        f'<text x="8" y="{height - 8}" font-size="12" fill="{SOFT}">{text(caption)}</text></svg>\n'
    )


def _row(label: str, told: list[str], place: int) -> str:
    y = HEAD + ROW * place
    line = f'<path d="M8 {y}H{NAME + CELL * len(told)}" stroke="{RULE}"/>'
    cells = "".join(
        f'<text x="{NAME + CELL * (x + 0.5):.0f}" y="{y + 17}" text-anchor="middle">{one}</text>'
        for x, one in enumerate(told)
    )
    return f'{line}<text x="8" y="{y + 17}">{text(label)}</text>{cells}'


def _told(one: Standing, label: str, name: str) -> str:
    against = one.to_fedavg.get(label, {}).get(name)
    return "" if against is None else f"{100 * against.interval.value:+.1f}"


def _box(one: Standing, label: str, name: str, x: int, place: int) -> str:
    against = one.to_fedavg.get(label, {}).get(name)
    if against is None or not against.verdict:
        return ""
    return (
        f'<rect x="{NAME + CELL * x + 4}" y="{HEAD + ROW * place + 2}" width="{CELL - 8}"'
        f' height="{ROW - 4}" rx="3" fill="{BETTER if against.verdict > 0 else WORSE}"/>'
    )
