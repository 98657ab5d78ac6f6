"""Checks that compare a run with the same run: repeated, resumed, and on other engines."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import Any

import torch

from evenhand.cohort import Proportional, Uniform
from evenhand.engines import Loop, Vmap
from evenhand.testing.compare import CLOSE, difference, everything, expect, expect_alike
from evenhand.testing.subject import SEED, WHOLE, Subject
from evenhand.training.result import Result

CLOSE32 = 1e-4  # in float32


def the_same_seed_gives_the_same_bits(subject: Subject) -> None:
    """A second run with the same arguments has the same models, state, history and scores."""
    _expect_same_bits(subject.fit(), subject.usual)


def another_seed_gives_another_run(subject: Subject) -> None:
    """Other cohorts and batches give another model: nothing fixes its own random numbers."""
    other = subject.fit(cohort=subject.some, seed=SEED + 1)
    expect(
        bool(difference(everything(other), everything(subject.partial))),
        "two seeds give the same models and state",
    )


def a_resumed_run_ends_with_the_same_bits(subject: Subject) -> None:
    """A run that is interrupted after its first round and resumed ends like an uninterrupted
    one."""

    def stop(done: int, row: dict[str, Any]) -> None:
        raise InterruptedError

    with tempfile.TemporaryDirectory() as directory:
        kept: dict[str, Any] = {"cohort": subject.some, "out": directory, "checkpoint_every": 1}
        with suppress(InterruptedError):
            subject.fit(progress=stop, **kept)
        _expect_same_bits(subject.fit(resume=True, **kept), subject.partial)


def evaluating_more_often_changes_no_bit(subject: Subject) -> None:
    """A run that is evaluated after every round ends like one that is evaluated once."""
    expect_alike(everything(subject.fit(eval_every=1)), everything(subject.usual))


def a_shorter_run_is_the_beginning_of_a_longer_one(subject: Subject) -> None:
    """The first round does not depend on how many follow."""
    witness = subject.observed.witness
    # a review may change the state after the server's step
    states = witness.answers("review.learn") or [state for state, _ in witness.answers("server")]
    expect_alike(
        subject.fit(local=WHOLE, rounds=1).state,
        states[0],
        what="the state after the first of one and of two rounds",
    )


def _expect_same_bits(found: Result, wanted: Result) -> None:
    expect_alike(everything(found), everything(wanted))
    expect_alike(found.history_rows, wanted.history_rows, what="history")
    expect_alike(found.score_rows, wanted.score_rows, what="scores")


def loop_and_vmap_agree_in_float64(subject: Subject) -> None:
    """Both engines end with the same models and state, to 1e-9: all clients, batches, momentum."""
    expect_alike(everything(subject.stacked), everything(subject.usual), CLOSE)


def loop_and_vmap_agree_in_float32(subject: Subject) -> None:
    """Both engines end with the same models and state in float32, to 1e-4."""
    stacked = subject.fit(dtype=torch.float32, engine="vmap")
    expect_alike(everything(stacked), everything(subject.observed32.result), CLOSE32)


def engines_agree_for_a_partial_cohort(subject: Subject) -> None:
    """Both engines agree if half of the clients take part, with normalised coefficients."""
    expect_alike(
        everything(subject.fit(cohort=subject.some, engine="vmap")),
        everything(subject.partial),
        CLOSE,
    )


def engines_agree_for_draws_with_replacement(subject: Subject) -> None:
    """Both engines agree if a client may be drawn twice."""
    _expect_engines_agree(subject, cohort=Proportional(2 * subject.clients))


def engines_agree_for_draws_without_replacement(subject: Subject) -> None:
    """Both engines agree if clients are drawn by weight, each at most once."""
    _expect_engines_agree(
        subject, cohort=Proportional(subject.clients - subject.clients // 3, replacement=False)
    )


def engines_agree_for_unbiased_coefficients(subject: Subject) -> None:
    """Both engines agree if coefficients do not sum to one."""
    _expect_engines_agree(subject, cohort=Uniform(subject.some.k, unbiased=True))


def engines_agree_for_whole_batches(subject: Subject) -> None:
    """Both engines agree if clients take steps on all their data."""
    expect_alike(
        everything(subject.fit(local=WHOLE, engine="vmap")), everything(subject.whole), CLOSE
    )


def engines_agree_for_uniform_base_weights(subject: Subject) -> None:
    """Both engines agree if every client counts the same."""
    _expect_engines_agree(subject, weights="uniform")


def engines_agree_without_teams(subject: Subject) -> None:
    """Both engines agree if clients have no teams."""
    subject.skip_if_refused(subject.teamless)
    stacked = subject.fit(federation=subject.teamless, engine="vmap")
    expect_alike(everything(stacked), everything(subject.observed_teamless.result), CLOSE)


def splitting_a_cohort_into_chunks_changes_no_bit(subject: Subject) -> None:
    """Clients get the same bits whether two or all of them are trained at once."""
    expect_alike(everything(subject.fit(engine=Vmap(chunk=2))), everything(subject.stacked))


def the_number_of_workers_changes_no_bit(subject: Subject) -> None:
    """Clients get the same bits from two threads as from one."""
    expect_alike(everything(subject.fit(engine=Loop(workers=2))), everything(subject.usual))


def _expect_engines_agree(subject: Subject, **changes: Any) -> None:
    loop, stacked = (
        everything(subject.fit(engine=engine, **changes)) for engine in ("loop", "vmap")
    )
    expect_alike(stacked, loop, CLOSE)


CHECKS = (
    the_same_seed_gives_the_same_bits,
    another_seed_gives_another_run,
    a_resumed_run_ends_with_the_same_bits,
    evaluating_more_often_changes_no_bit,
    a_shorter_run_is_the_beginning_of_a_longer_one,
    loop_and_vmap_agree_in_float64,
    loop_and_vmap_agree_in_float32,
    engines_agree_for_a_partial_cohort,
    engines_agree_for_draws_with_replacement,
    engines_agree_for_draws_without_replacement,
    engines_agree_for_unbiased_coefficients,
    engines_agree_for_whole_batches,
    engines_agree_for_uniform_base_weights,
    engines_agree_without_teams,
    splitting_a_cohort_into_chunks_changes_no_bit,
    the_number_of_workers_changes_no_bit,
)
