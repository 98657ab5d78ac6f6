"""Checks of what reports show, and of the models that clients would use."""

from __future__ import annotations

from torch import Tensor

from evenhand.algorithm import visible
from evenhand.metrics.scores import summary
from evenhand.testing.compare import CLOSE, difference, expect, expect_alike, finite, form, skip
from evenhand.testing.subject import Subject

# columns of every history
COLUMNS = ("round", "lr", "asked", "answered", "left_out", "void", "loss", *summary([]))


def the_server_sees_single_clients_only_where_it_says_so(subject: Subject) -> None:
    """visible is empty exactly if no reply or answer has anything in ``each``, with or without
    teams."""
    runs = (
        [subject.observed]
        if subject.refusal(subject.teamless)
        else [subject.observed, subject.observed_teamless]
    )
    for observed in runs:
        seen = visible(subject.algorithm, observed.witness.calls["init"][0].arguments[1])
        expect(
            isinstance(seen, tuple) and all(isinstance(what, str) for what in seen),
            f"visible returns {seen!r}; return a tuple of texts",
        )
        each = sorted(
            {name for sent in (*observed.training, *observed.surveys) for name in sent.replies.each}
        )
        expect(bool(seen) == bool(each), f"visible says {seen}, but each holds {each}")


def infos_are_single_numbers(subject: Subject) -> None:
    """The metrics that server returns are single numbers, with text as keys."""
    for _, info in subject.observed32.witness.answers("server"):
        for name, value in info.items():
            single = (
                value.numel() == 1
                if isinstance(value, Tensor)
                else isinstance(value, int | float | str)
            )
            expect(isinstance(name, str) and single, f"info[{name!r}] is {value!r}")


def infos_keep_out_of_the_columns_of_every_history(subject: Subject) -> None:
    """No metric has the name of a column that every history has."""
    taken = sorted(
        {name for _, info in subject.observed.witness.answers("server") for name in info}
        & set(COLUMNS)
    )
    expect(not taken, f"info has {taken}, columns that the run itself fills")


def certificates_are_sound(subject: Subject) -> None:
    """A certificate, if any, has finite numbers, non-negative weights and a gap of at least 0."""
    for result in (subject.usual, subject.whole, subject.partial):
        certificate = result.certificate
        if certificate is None:
            continue
        value, weights, gap = certificate
        expect(
            value.shape == () and gap.shape == () and weights.shape == (subject.clients,),
            f"shapes of {certificate}",
        )
        expect(finite(certificate._asdict()), f"{certificate} is not finite")
        expect(bool((weights >= 0).all()), f"negative weights {weights.tolist()}")
        expect(float(gap) >= -CLOSE, f"a gap of {float(gap)}")


def personal_says_whether_clients_have_models_of_their_own(subject: Subject) -> None:
    """With ``personal``, clients end with different models of their own; without it, with none."""
    personal = subject.usual.personal
    expect(
        (personal is not None) == subject.algorithm.personal,
        f"personal is {subject.algorithm.personal}",
    )
    if personal is not None and subject.clients > 1:
        alike = all(not difference(params, personal[0]) for params in personal[1:])
        expect(
            not alike,
            "all clients have the same model; without personal = True, evaluation is faster",
        )


def deployed_models_have_the_form_of_the_model(subject: Subject) -> None:
    """deployed returns a model like the initial one, whether or not the client has trained."""
    observed = subject.observed32
    initial = observed.witness.calls["init"][0].arguments[0]
    shared = {"model": observed.witness.answers("result")[-1]}
    memories = [
        observed.witness.answers("memory")[0],
        *(memory for _, memory in observed.witness.answers("reply")),
    ]
    for memory in memories:
        expect_alike(
            form(subject.algorithm.deployed(shared, memory)),
            form(initial),
            what="the form of the deployed model",
        )


def without_personal_models_memory_does_not_matter(subject: Subject) -> None:
    """Without ``personal``, deployed ignores memory, because all clients are evaluated together."""
    if subject.algorithm.personal:
        skip("clients have models of their own")
    witness = subject.observed.witness
    shared = {"model": witness.answers("result")[-1]}
    plain = subject.algorithm.deployed(shared, {})
    for _, memory in witness.answers("reply"):
        expect_alike(
            subject.algorithm.deployed(shared, memory),
            plain,
            what="the model with and without memory",
        )


CHECKS = (
    the_server_sees_single_clients_only_where_it_says_so,
    infos_are_single_numbers,
    infos_keep_out_of_the_columns_of_every_history,
    certificates_are_sound,
    personal_says_whether_clients_have_models_of_their_own,
    deployed_models_have_the_form_of_the_model,
    without_personal_models_memory_does_not_matter,
)
