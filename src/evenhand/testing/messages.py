"""Checks of the messages between server and clients."""

from __future__ import annotations

import torch

from evenhand import tree
from evenhand.algorithm import MOMENTS
from evenhand.cohort import Draw
from evenhand.engines import Vmap
from evenhand.local import LocalSolver
from evenhand.messages import Task
from evenhand.testing.compare import CLOSE, expect, expect_alike, finite, form, skip
from evenhand.testing.subject import WHOLE, Subject, rearranged
from evenhand.testing.watch import ASKED, Sent, hook_of
from evenhand.tree import Tree

EXACT = 1e-12


def a_task_has_a_row_for_every_client(subject: Subject) -> None:
    """Every tensor of task.own has a row per id, also if these are not all clients."""
    for (state, ids), _ in subject.observed32.witness.calls["task"]:
        for chosen in (ids, ids[1:]):
            for path, leaf in tree.items(subject.algorithm.task(state, chosen).own):
                expect(
                    leaf.shape[:1] == chosen.shape,
                    f"own/{'/'.join(path)} has shape {list(leaf.shape)} for {len(chosen)} clients",
                )


def a_task_follows_the_ids(subject: Subject) -> None:
    """For clients in another order, task returns the same rows in that order."""
    for (state, ids), task in subject.observed.witness.calls["task"]:
        backwards = subject.algorithm.task(state, ids.flip(0))
        expect_alike(
            tree.map(lambda leaf: leaf.flip(0), backwards.own),
            task.own,
            EXACT,
            "own of the task for ids backwards",
        )
        expect_alike(backwards.shared, task.shared, EXACT, "shared of the task for ids backwards")


def every_round_sends_messages_of_the_same_form(subject: Subject) -> None:
    """Keys, dtypes and shapes of tasks and replies are the same in every round."""
    observed = subject.observed
    asked = (
        [sent for sent in observed.surveys if getattr(sent.work, "moment", "") == when]
        for when in MOMENTS
    )
    for messages in (observed.training, *asked):
        for sent in messages[1:]:
            expect_alike(
                _form_of(sent), _form_of(messages[0]), what=f"messages of round {sent.round + 1}"
            )


def _form_of(sent: Sent) -> Tree:
    task, replies = sent.task, sent.replies
    both = {"shared": form(task.shared), "own": form(task.own, rows=True)}
    return {**both, "total": form(replies.total), "each": form(replies.each, rows=True)}


def a_survey_says_whom_it_asks(subject: Subject) -> None:
    """``who`` is "cohort", "everyone" or a number, and every tensor of ``own`` has a row per
    client."""
    witness = subject.observed.witness
    for survey in (found for moment in ASKED for found in witness.answers(f"{moment}ask")):
        if survey is None:
            continue
        known = survey.who in ("cohort", "everyone") or (
            isinstance(survey.who, int) and 1 <= survey.who <= subject.clients
        )
        expect(
            known,
            f'who is {survey.who!r}; it may be "cohort", "everyone" or a number of at most'
            f" {subject.clients} clients",
        )
        for path, leaf in tree.items(survey.own):
            expect(
                len(leaf) == subject.clients,
                f"own/{'/'.join(path)} has {len(leaf)} rows for {subject.clients} clients",
            )


def chances_are_a_distribution(subject: Subject) -> None:
    """Sampling weights, if any, are one per client, not negative, and sum to one."""
    for chances in subject.observed.witness.answers("chances"):
        if chances is None:
            continue
        expect(
            chances.shape == (subject.clients,),
            f"chances have shape {list(chances.shape)} for {subject.clients} clients",
        )
        good = bool((chances >= 0).all()) and abs(float(chances.sum()) - 1) < CLOSE
        expect(good, f"chances {chances.tolist()} are negative or do not sum to one")


def reweighing_keeps_to_the_cohort(subject: Subject) -> None:
    """reweigh returns clients of the cohort, each once, with finite, non-negative coefficients."""
    for (_, before), after in subject.observed.witness.calls["reweigh"]:
        ids = after.ids.tolist()
        expect(
            set(ids) <= set(before.ids.tolist()) and len(set(ids)) == len(ids),
            f"of {before.ids.tolist()} it makes {ids}",
        )
        for name in ("weight", "share"):
            values = getattr(after, name)
            good = values.shape == after.ids.shape and bool(
                (values.isfinite() & (values >= 0)).all()
            )
            expect(good, f"{name} of clients {ids} is {values.tolist()}")


def reweighing_follows_the_ids(subject: Subject) -> None:
    """For a cohort in another order, reweigh gives every client the same coefficients."""
    for (state, draw), after in subject.observed.witness.calls["reweigh"]:
        backwards = hook_of(subject.algorithm, "reweigh")(
            state, Draw(*(values.flip(0) for values in draw))
        )
        expect_alike(backwards.ascending(), after.ascending(), EXACT, "the cohort backwards")


def the_solver_is_a_local_solver(subject: Subject) -> None:
    """The solver of the local work returns a LocalSolver for every round."""
    solvers = [hook_of(subject.algorithm, "solver")(WHOLE, round) for round in range(3)]
    expect(all(isinstance(local, LocalSolver) for local in solvers), f"solver gives {solvers}")


def every_client_replies_in_the_same_form(subject: Subject) -> None:
    """Keys, dtypes and shapes of a reply do not depend on the client's number of samples."""
    for observed in (subject.observed, subject.observed32):
        replies = [(*reply, memory) for reply, memory in observed.witness.answers("reply")]
        answers = (observed.witness.answers(f"{moment}answer") for moment in ASKED)
        for messages in (replies, *([tuple(reply) for reply in some] for some in answers)):
            for message in messages[1:]:
                expect_alike(
                    [form(part) for part in message],
                    [form(part) for part in messages[0]],
                    what="replies of two clients",
                )


def the_objective_is_one_number(subject: Subject) -> None:
    """objective returns a finite tensor without dimensions."""
    for value in subject.observed32.witness.answers("objective"):
        expect(value.shape == (), f"objective has shape {list(value.shape)}")
        expect(finite({"value": value}), f"objective is {value}")


def rates_belong_to_variables(subject: Subject) -> None:
    """rates has single step sizes of variables that start returns; others would have no effect."""
    witness = subject.observed32.witness
    for variables, rates in zip(witness.answers("start"), witness.answers("rates"), strict=True):
        unknown = sorted(set(rates) - set(variables))
        expect(not unknown, f"rates has {unknown}, start has {list(variables)}")
        expect(
            all(rate.shape == () for rate in rates.values()),
            f"rates must be single numbers, got {rates}",
        )


def scales_belong_to_numbers_of_clients(subject: Subject) -> None:
    """scales has factors, finite in this run, that follow from numbers in task.own."""
    for sent in subject.observed.training:
        for place in range(len(sent.ids)):
            own = tree.row(sent.task.own, place)
            known, scales = set(tree.flatten(own)), subject.algorithm.scales(own)
            unknown = sorted(set(scales) - known)
            expect(not unknown, f"scales has {unknown}, and task.own has {sorted(known)}")
            expect(finite(scales), f"scales are {scales}")


def memories_keep_their_form(subject: Subject) -> None:
    """The memory that reply returns has the keys, dtypes and shapes of the first one."""
    for observed in (subject.observed, subject.observed32):
        first = observed.witness.answers("memory")[0]
        for _, memory in observed.witness.answers("reply"):
            expect_alike(form(memory), form(first), what="the form of a client's memory")


def the_replies_of_two_halves_add_up(subject: Subject) -> None:
    """The totals of a cohort are the sums over its halves, and ``each`` is their concatenation."""
    sent, _ = subject.largest_round
    if len(sent.ids) < 2:
        skip("a cohort of one cannot be halved")
    left, right = (
        subject.replay(sent, rows)[0] for rows in torch.arange(len(sent.ids)).tensor_split(2)
    )
    expect_alike(tree.add(left.total, right.total), sent.replies.total, EXACT, "totals")
    expect_alike(
        tree.map(lambda a, b: torch.cat([a, b]), left.each, right.each),
        sent.replies.each,
        EXACT,
        "each",
    )


def a_zero_weight_client_changes_nothing(subject: Subject) -> None:
    """If the server sees only sums, a client with weight and share 0 does not move the model."""
    sent, state = subject.largest_round
    if sent.replies.each or len(sent.ids) < 2:
        skip("the server sees clients one by one, and may count one in whatever its weight")
    others = torch.arange(len(sent.ids)) != subject.federation.train.sizes[sent.ids].argmax()
    nothing = {name: sent.task.own[name] * others for name in ("weight", "share")}
    muted = sent._replace(task=Task(sent.task.shared, {**sent.task.own, **nothing}))
    replies = [subject.replay(muted, rows)[0] for rows in (None, others.nonzero()[:, 0])]
    one, other = (subject.algorithm.server(state, received)[0]["model"] for received in replies)
    expect_alike(one, other, EXACT, "the model with and without it")


def padding_changes_nothing(subject: Subject) -> None:
    """A client's reply and memory do not depend on how far its data are padded."""
    sent, _ = subject.largest_round
    everyone = range(subject.clients)
    # one more client, with everyone's data
    wide = rearranged(subject.federation, [*([i] for i in everyone), everyone])
    padded, remembered = subject.replay(sent, engine=Vmap(), federation=wide)
    plain, kept = subject.replay(sent)
    expect_alike(padded, plain, CLOSE, "replies with more padding")
    expect_alike(remembered, kept, CLOSE, "memories with more padding")


CHECKS = (
    a_task_has_a_row_for_every_client,
    a_task_follows_the_ids,
    every_round_sends_messages_of_the_same_form,
    a_survey_says_whom_it_asks,
    chances_are_a_distribution,
    reweighing_keeps_to_the_cohort,
    reweighing_follows_the_ids,
    the_solver_is_a_local_solver,
    every_client_replies_in_the_same_form,
    the_objective_is_one_number,
    rates_belong_to_variables,
    scales_belong_to_numbers_of_clients,
    memories_keep_their_form,
    the_replies_of_two_halves_add_up,
    a_zero_weight_client_changes_nothing,
    padding_changes_nothing,
)
