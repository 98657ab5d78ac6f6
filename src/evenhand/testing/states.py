"""Checks of the server's state, and that hooks are pure functions."""

from __future__ import annotations

import pickle
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenhand import files, tree
from evenhand.testing.compare import difference, expect, expect_alike, form
from evenhand.testing.subject import Subject
from evenhand.testing.watch import hook_of, rebuilt, watched
from evenhand.tree import Tree


def the_first_state_holds_the_initial_model(subject: Subject) -> None:
    """init puts the given model into state["model"], unchanged."""
    for observed in (subject.observed, subject.observed32):
        call = observed.witness.calls["init"][0]
        expect("model" in call.answer, f'the first state has no "model", only {list(call.answer)}')
        expect_alike(
            call.answer["model"], call.arguments[0], what='state["model"] against the initial model'
        )


def the_state_is_a_tree_of_tensors(subject: Subject) -> None:
    """States are nested dicts with string keys, and tensors on the CPU without gradients."""
    for state in subject.observed32.witness.states():
        for path, leaf in tree.items(state):
            where = "state/" + "/".join(map(str, path))
            expect(all(isinstance(key, str) for key in path), f"{where}: keys must be text")
            expect(
                isinstance(leaf, Tensor),
                f"{where} is {type(leaf).__name__}; use a tensor, so that it can be saved",
            )
            expect(
                leaf.device.type == "cpu" and not leaf.requires_grad,
                f"{where} must be on the CPU and carry no gradient",
            )


def the_state_keeps_its_form(subject: Subject) -> None:
    """Keys, dtypes and shapes of the state stay the same in every round, except for a number of
    rows."""
    for observed in (subject.observed, subject.observed32):
        first, *later = observed.witness.states()
        for state in later:
            expect_alike(form(state, rows=True), form(first, rows=True), what="the state's form")


def the_state_is_finite_when_everyone_takes_part(subject: Subject) -> None:
    """With all clients' replies, the state is finite."""
    for observed in (subject.observed, subject.observed32):
        for state, _ in observed.witness.answers("server"):
            bad = [
                "/".join(path)
                for path, leaf in tree.items(state)
                if not bool(leaf.isfinite().all())
            ]
            expect(not bad, f"{bad} of the state is not finite")


def the_model_keeps_its_form(subject: Subject) -> None:
    """Keys, dtypes and shapes of state["model"] stay those of the initial model, also in
    float32."""
    witness = subject.observed32.witness
    initial = witness.calls["init"][0].arguments[0]
    for state, _ in witness.answers("server"):
        expect_alike(form(state["model"]), form(initial), what="the form of the model")


def the_result_has_the_form_of_the_model(subject: Subject) -> None:
    """result returns a model like the initial one, also in float32."""
    witness = subject.observed32.witness
    for model in witness.answers("result"):
        expect_alike(
            form(model), form(witness.calls["init"][0].arguments[0]), what="the form of the result"
        )


def the_state_survives_a_file(subject: Subject) -> None:
    """A state that is written and read stays the same, including the order of its keys."""
    for state in (subject.observed.witness.answers("init")[0], subject.usual.state):
        with tempfile.TemporaryDirectory() as directory:
            files.write_tensors(Path(directory) / "state", state)
            flat, _ = files.read_tensors(Path(directory) / "state")
        expect_alike(
            tree.unflatten(flat),
            state,
            what="the state from a file (a tree with an empty branch loses it)",
        )


def _expect_unchanged(subject: Subject, *hooks: str) -> None:
    for observed in (subject.observed, subject.observed32):
        changed = [
            observed.witness.changed[name] for name in hooks if name in observed.witness.changed
        ]
        expect(not changed, "; ".join(changed))


def the_server_changes_no_argument(subject: Subject) -> None:
    """init, task, server and result do not change their arguments."""
    _expect_unchanged(subject, "init", "task", "server", "result")


def the_client_changes_no_argument(subject: Subject) -> None:
    """start, objective, rates, reply, memory and deployed do not change their arguments."""
    _expect_unchanged(subject, "start", "objective", "rates", "reply", "memory", "deployed")


def the_survey_changes_no_argument(subject: Subject) -> None:
    """ask, answer, learn, chances, reweigh and solver do not change their arguments."""
    _expect_unchanged(subject, "ask", "answer", "learn", "chances", "reweigh", "solver")


def reports_change_no_argument(subject: Subject) -> None:
    """visible and certificate do not change their arguments."""
    _expect_unchanged(subject, "visible", "certificate")


def the_same_arguments_give_the_same_answer(subject: Subject) -> None:
    """Every hook, called twice with equal arguments, returns equal answers."""
    for observed in (subject.observed, subject.observed32):
        expect(not observed.witness.unsteady, "; ".join(observed.witness.unsteady.values()))


def nothing_is_remembered_outside_state_and_memory(subject: Subject) -> None:
    """A run in which every call goes to a new object with the same settings ends with the same
    bits."""
    fresh = subject.fit(
        watched(
            subject.algorithm,
            lambda name, _, arguments: hook_of(rebuilt(subject.algorithm), name)(*arguments),
        )
    )
    expect_alike(fresh.state, subject.usual.state, what="state with a new object for every call")
    expect_alike(
        fresh.personal,
        subject.usual.personal,
        what="personal models with a new object for every call",
    )


def no_random_generator_is_touched(subject: Subject) -> None:
    """A run leaves the random generators of torch, NumPy and Python as they were."""

    def generators() -> Tree:
        return {
            "torch": torch.get_rng_state(),
            "numpy": pickle.dumps(np.random.get_state()),
            "random": random.getstate(),
        }

    before = generators()
    subject.fit(rounds=1)
    expect(
        not difference(generators(), before),
        "a random generator has moved; draws belong to cohorts and batch orders",
    )


CHECKS = (
    the_first_state_holds_the_initial_model,
    the_state_is_a_tree_of_tensors,
    the_state_keeps_its_form,
    the_state_is_finite_when_everyone_takes_part,
    the_model_keeps_its_form,
    the_result_has_the_form_of_the_model,
    the_state_survives_a_file,
    the_server_changes_no_argument,
    the_client_changes_no_argument,
    the_survey_changes_no_argument,
    reports_change_no_argument,
    the_same_arguments_give_the_same_answer,
    nothing_is_remembered_outside_state_and_memory,
    no_random_generator_is_touched,
)
