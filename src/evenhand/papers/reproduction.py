"""Run experiments of papers and look at what came out: ``eh.reproduce`` and the command behind
it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.errors import SpecError
from evenhand.papers.availability import MISSING, Data, data_for, variant
from evenhand.papers.experiment import Part, experiments, find_parts
from evenhand.papers.outcome import Outcome
from evenhand.papers.results import Result, committed, file_name, identity_of, read_result
from evenhand.papers.running import Watch, prepare, run
from evenhand.papers.tables import show
from evenhand.studies.specs.spec import Spec
from evenhand.training.fit import Progress

if TYPE_CHECKING:
    import pandas as pd

OUT = Path("runs") / "reproduce"
RESULTS = "results"  # in OUT


@dataclass(frozen=True)
class Reproduction:
    """Published numbers beside ours; prints itself."""

    outcomes: tuple[Outcome, ...]

    def table(self) -> pd.DataFrame:
        """A row per published number."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """A row per published number: published, ours, difference, interval, verdict."""
        return [
            {
                "experiment": outcome.part.title,
                "budget": outcome.part.budget,
                "row": line.published.row,
                "metric": line.published.metric,
                "unit": line.published.unit,
                "published": line.published.mean,
                "published_std": line.published.std,
                "ours": line.mean,
                "std": line.std,
                "difference": line.difference,
                "low": line.low,
                "high": line.high,
                "verdict": line.verdict,
            }
            for outcome in self.outcomes
            for line in outcome.lines
        ]

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=130, force_jupyter=False)
        with console.capture() as captured:
            for outcome in self.outcomes:
                show(console, outcome)
        return captured.get()


def reproduce(
    *names: str,
    quick: bool = False,
    out: str | Path = OUT,
    device: str = "auto",
    again: bool = False,
) -> Reproduction:
    """Run a paper's experiments and compare the published numbers with ours.

    Args:
        names: "fafl-table1", "propfair-table6:shakespeare", a paper ("gifair"), or "all".
        quick: with a smaller budget, which two CPU cores finish in minutes.
        out: directory for runs and results; experiments with a result there are not repeated.
        again: repeat experiments that have a result.
    """
    parts = find_parts(names)
    if not parts:
        raise SpecError('name an experiment, such as "fedminmax-table1"')
    return Reproduction(tuple(outcomes(parts, Path(out), quick=quick, device=device, again=again)))


@contextmanager
def _silent(spec: Spec) -> Iterator[Callable[..., Progress]]:
    yield lambda *given, **named: lambda done, row: None


def outcomes(
    parts: Iterable[Part],
    out: Path = OUT,
    *,
    results: Path | None = None,
    quick: bool = False,
    device: str = "auto",
    again: bool = False,
    watch: Watch = _silent,
    before: Callable[[Part], None] = lambda part: None,
) -> Iterator[Outcome]:
    """Run parts one after another; what each gave, as it comes.

    Args:
        results: the folder of result files; by default one in ``out``.
        before: called with each part that is about to be run.
    """
    folder = results or out / RESULTS
    for part in parts:
        experiment, home = experiments()[part.experiment], find_parts([part.home])[0]
        data = data_for(home)
        if data.kind == MISSING:
            yield Outcome(experiment, part, missing=_missing(home, data))
            continue
        job = variant(home, quick)
        path = folder / file_name(job.title, job.budget)
        known = read_result(path) if path.exists() and not again else None
        if known is None or known.identity != identity_of(job):
            before(job)
            place = out / f"{path.stem}.{identity_of(job)[:8]}"
            if again and place.exists():
                shutil.rmtree(place)
            known = run(prepare(job, device), place, watch, _command(job, device))
            known.write(folder)
        yield Outcome(experiment, _seen_as(part, job), known)


def found(
    parts: Iterable[Part], folders: Sequence[Path] = (), quick: bool | None = None
) -> list[Outcome]:
    """What is known of parts without running anything: from folders of results, then from those
    that come with the package; the paper's budget before a smaller one.

    Args:
        quick: results with a smaller budget alone, or those with the paper's; None takes either.
    """
    shipped = committed()
    return [_known(part, folders, shipped, quick) for part in parts]


def _known(
    part: Part, folders: Sequence[Path], shipped: Mapping[str, Result], quick: bool | None
) -> Outcome:
    experiment, home = experiments()[part.experiment], find_parts([part.home])[0]
    budgets = ("paper", "quick") if quick is None else ("quick",) if quick else ("paper",)
    for budget in budgets if home.smaller else ("paper",):
        name = file_name(home.title, budget)
        paths = [folder / name for folder in folders if (folder / name).exists()]
        result = read_result(paths[0]) if paths else shipped.get(name)
        if result is None:
            continue
        run_as = home.substituted() if result.note_of_data(home) else home
        run_as = run_as.quick() if budget == "quick" else run_as
        if run_as.judged == "nothing" and quick is None:
            continue  # it shows that the command works, no more
        return Outcome(experiment, _seen_as(part, run_as), result)
    data = data_for(home)
    why = _missing(home, data) if data.kind == MISSING else f"it takes {home.time}"
    return Outcome(experiment, part, missing=why)


def _missing(part: Part, data: Data) -> str:
    return f"the data {part.spec['data']['name']} are missing; {data.about}"


def _seen_as(part: Part, job: Part) -> Part:
    """The part that was asked for, with how it was run."""
    if part.title == job.title:
        return job
    taken = ("rows", "spec", "note", "budget", "seeds", "judged")
    return replace(part, **{name: getattr(job, name) for name in taken})


def _command(part: Part, device: str) -> str:
    quick = ["--quick"] if part.budget == "quick" else []
    where = [] if device == "auto" else ["--device", device]
    return shlex.join(["evenhand", "reproduce", part.title, *quick, *where])
