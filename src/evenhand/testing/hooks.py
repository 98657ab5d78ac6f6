"""Checks of what a method's hooks take and give: state, messages, memories and reports."""

from __future__ import annotations

import pickle
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenhand import files, tree
from evenhand.algorithm import visible
from evenhand.cohort import Draw
from evenhand.engines import Vmap
from evenhand.local import LocalSGD
from evenhand.messages import Task
from evenhand.metrics.scores import summary
from evenhand.testing.subject import (
    WHOLE,
    Sent,
    Subject,
    difference,
    expect,
    expect_alike,
    finite,
    form,
    hook_of,
    rearranged,
    rebuilt,
    skip,
    watched,
)
from evenhand.tree import Tree

# that every history has
COLUMNS = ("round", "lr", "asked", "answered", "left_out", "void", "loss", *summary([]))
EXACT = 1e-12
CLOSE = 1e-9


# ---- the state


def the_first_state_holds_the_initial_model(subject: Subject) -> None:
    """init puts the model that it is given into state["model"], as it is."""
    for observed in (subject.observed, subject.observed32):
        call = observed.witness.calls["init"][0]
        expect("model" in call.answer, f'the first state has no "model", only {list(call.answer)}')
        expect_alike(
            call.answer["model"], call.arguments[0], what='state["model"] against the initial model'
        )


def the_state_is_a_tree_of_tensors(subject: Subject) -> None:
    """States are nested dicts with string keys and tensors on the CPU that carry no gradient."""
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
    """Keys, dtypes and shapes of the state are the same before and after every round, but for a
    number of rows."""
    for observed in (subject.observed, subject.observed32):
        first, *later = observed.witness.states()
        for state in later:
            expect_alike(form(state, rows=True), form(first, rows=True), what="the state's form")


def the_state_is_finite_when_everyone_takes_part(subject: Subject) -> None:
    """With everyone's replies there is nothing that could be unknown."""
    for observed in (subject.observed, subject.observed32):
        for state, _ in observed.witness.answers("server"):
            bad = [
                "/".join(path)
                for path, leaf in tree.items(state)
                if not bool(leaf.isfinite().all())
            ]
            expect(not bad, f"{bad} of the state is not finite")


def the_model_keeps_its_form(subject: Subject) -> None:
    """Keys, dtypes and shapes of state["model"] stay those of the initial model, in float32 too."""
    witness = subject.observed32.witness
    initial = witness.calls["init"][0].arguments[0]
    for state, _ in witness.answers("server"):
        expect_alike(form(state["model"]), form(initial), what="the form of the model")


def the_result_has_the_form_of_the_model(subject: Subject) -> None:
    """result gives a model like the initial one, in float32 too."""
    witness = subject.observed32.witness
    for model in witness.answers("result"):
        expect_alike(
            form(model), form(witness.calls["init"][0].arguments[0]), what="the form of the result"
        )


def the_state_survives_a_file(subject: Subject) -> None:
    """A state that is written and read is the same, to the order of its keys."""
    for state in (subject.observed.witness.answers("init")[0], subject.usual.state):
        with tempfile.TemporaryDirectory() as directory:
            files.write_tensors(Path(directory) / "state", state)
            flat, _ = files.read_tensors(Path(directory) / "state")
        expect_alike(
            tree.unflatten(flat),
            state,
            what="the state from a file (a tree with an empty branch loses it)",
        )


# ---- purity


def _expect_unchanged(subject: Subject, *hooks: str) -> None:
    for observed in (subject.observed, subject.observed32):
        changed = [
            observed.witness.changed[name] for name in hooks if name in observed.witness.changed
        ]
        expect(not changed, "; ".join(changed))


def the_server_changes_no_argument(subject: Subject) -> None:
    """init, task, server and result leave what they are given as it was."""
    _expect_unchanged(subject, "init", "task", "server", "result")


def the_client_changes_no_argument(subject: Subject) -> None:
    """start, objective, rates, reply, memory and deployed leave what they are given as it was."""
    _expect_unchanged(subject, "start", "objective", "rates", "reply", "memory", "deployed")


def the_survey_changes_no_argument(subject: Subject) -> None:
    """ask, answer, learn, chances, reweigh and solver leave what they are given as it was."""
    _expect_unchanged(subject, "ask", "answer", "learn", "chances", "reweigh", "solver")


def reports_change_no_argument(subject: Subject) -> None:
    """visible and certificate leave what they are given as it was."""
    _expect_unchanged(subject, "visible", "certificate")


def the_same_arguments_give_the_same_answer(subject: Subject) -> None:
    """Every hook, called twice with equal arguments, gives equal answers."""
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
    """The generators of torch, NumPy and Python are where they were before a run."""

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


# ---- messages from the server


def a_task_has_a_row_for_every_client(subject: Subject) -> None:
    """Every tensor of task.own has as many rows as there are ids, also where these are not all
    clients."""
    for (state, ids), _ in subject.observed32.witness.calls["task"]:
        for chosen in (ids, ids[1:]):
            for path, leaf in tree.items(subject.algorithm.task(state, chosen).own):
                expect(
                    leaf.shape[:1] == chosen.shape,
                    f"own/{'/'.join(path)} has shape {list(leaf.shape)} for {len(chosen)} clients",
                )


def a_task_follows_the_ids(subject: Subject) -> None:
    """For clients in another order, task gives the same rows in that order."""
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
    """Keys, dtypes and shapes of tasks and replies do not change from round to round."""
    for messages in (subject.observed.training, subject.observed.surveys):
        for sent in messages[1:]:
            expect_alike(
                _form_of(sent), _form_of(messages[0]), what=f"messages of round {sent.round + 1}"
            )


def _form_of(sent: Sent) -> Tree:
    task, replies = sent.task, sent.replies
    both = {"shared": form(task.shared), "own": form(task.own, rows=True)}
    return {**both, "total": form(replies.total), "each": form(replies.each, rows=True)}


def a_survey_says_whom_it_asks(subject: Subject) -> None:
    """who is "cohort", "everyone" or a number of clients, and every tensor of own has a row for
    every client."""
    for survey in subject.observed.witness.answers("ask"):
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
    """chances, where there are any, are one weight for each client, none negative, of sum one."""
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
    """reweigh gives clients of the cohort, each once, with finite coefficients that are not
    negative."""
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
    """The solver of the local work gives a LocalSGD for every round."""
    solvers = [hook_of(subject.algorithm, "solver")(WHOLE, round) for round in range(3)]
    expect(all(isinstance(local, LocalSGD) for local in solvers), f"solver gives {solvers}")


# ---- messages from clients


def every_client_replies_in_the_same_form(subject: Subject) -> None:
    """Keys, dtypes and shapes of a reply do not depend on the client's data, be it one sample or
    many."""
    for observed in (subject.observed, subject.observed32):
        replies = [(*reply, memory) for reply, memory in observed.witness.answers("reply")]
        for messages in (replies, [tuple(reply) for reply in observed.witness.answers("answer")]):
            for message in messages[1:]:
                expect_alike(
                    [form(part) for part in message],
                    [form(part) for part in messages[0]],
                    what="replies of two clients",
                )


def the_objective_is_one_number(subject: Subject) -> None:
    """objective gives a tensor without dimensions, and a finite one."""
    for value in subject.observed32.witness.answers("objective"):
        expect(value.shape == (), f"objective has shape {list(value.shape)}")
        expect(finite({"value": value}), f"objective is {value}")


def rates_belong_to_variables(subject: Subject) -> None:
    """rates has step sizes, one number each, of variables that start has; others would go
    unheard."""
    witness = subject.observed32.witness
    for variables, rates in zip(witness.answers("start"), witness.answers("rates"), strict=True):
        unknown = sorted(set(rates) - set(variables))
        expect(not unknown, f"rates has {unknown}, start has {list(variables)}")
        expect(
            all(rate.shape == () for rate in rates.values()),
            f"rates must be single numbers, got {rates}",
        )


def memories_keep_their_form(subject: Subject) -> None:
    """What reply gives to remember has the keys, dtypes and shapes of what memory starts with."""
    for observed in (subject.observed, subject.observed32):
        first = observed.witness.answers("memory")[0]
        for _, memory in observed.witness.answers("reply"):
            expect_alike(form(memory), form(first), what="the form of a client's memory")


def the_replies_of_two_halves_add_up(subject: Subject) -> None:
    """The totals of a cohort are the sums of those of its halves, and each is theirs one after the
    other."""
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
    """Where the server sees sums alone, a client with weight and share 0 does not move the
    model."""
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
    """What a client replies and remembers does not depend on how far its data are padded."""
    sent, _ = subject.largest_round
    everyone = range(subject.clients)
    # one more client, with everyone's data
    wide = rearranged(subject.federation, [*([i] for i in everyone), everyone])
    padded, remembered = subject.replay(sent, engine=Vmap(), federation=wide)
    plain, kept = subject.replay(sent)
    expect_alike(padded, plain, CLOSE, "replies with more padding")
    expect_alike(remembered, kept, CLOSE, "memories with more padding")


def the_server_sees_single_clients_only_where_it_says_so(subject: Subject) -> None:
    """visible is empty exactly where no reply, to training or survey, has anything in each; with
    and without teams."""
    runs = (
        [subject.observed]
        if subject.refusal(subject.teamless)
        else [subject.observed, subject.observed_teamless]
    )
    for observed in runs:
        seen = visible(subject.algorithm, observed.witness.calls["init"][0].arguments[1])
        expect(
            isinstance(seen, tuple) and all(isinstance(what, str) for what in seen),
            f"visible gives {seen!r}; write words in a tuple",
        )
        each = sorted(
            {name for sent in (*observed.training, *observed.surveys) for name in sent.replies.each}
        )
        expect(bool(seen) == bool(each), f"visible says {seen}, but each holds {each}")


# ---- reports


def infos_are_single_numbers(subject: Subject) -> None:
    """What server reports are numbers, or tensors of one number, with text as keys."""
    for _, info in subject.observed32.witness.answers("server"):
        for name, value in info.items():
            single = (
                value.numel() == 1
                if isinstance(value, Tensor)
                else isinstance(value, int | float | str)
            )
            expect(isinstance(name, str) and single, f"info[{name!r}] is {value!r}")


def infos_keep_out_of_the_columns_of_every_history(subject: Subject) -> None:
    """No report has the name of a column that every history has."""
    taken = sorted(
        {name for _, info in subject.observed.witness.answers("server") for name in info}
        & set(COLUMNS)
    )
    expect(not taken, f"info has {taken}, columns that the run itself fills")


def certificates_are_sound(subject: Subject) -> None:
    """A certificate, where there is one, has finite numbers, weights that are not negative and a
    gap of at least 0."""
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
    """With personal, clients end with models of their own, which differ; without, there are
    none."""
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
    """deployed gives a model like the initial one, for clients that have trained and for those that
    have not."""
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
    """Where personal is false, deployed does not look at memory: all clients are judged
    together."""
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
    memories_keep_their_form,
    the_replies_of_two_halves_add_up,
    a_zero_weight_client_changes_nothing,
    padding_changes_nothing,
    the_server_sees_single_clients_only_where_it_says_so,
    infos_are_single_numbers,
    infos_keep_out_of_the_columns_of_every_history,
    certificates_are_sound,
    personal_says_whether_clients_have_models_of_their_own,
    deployed_models_have_the_form_of_the_model,
    without_personal_models_memory_does_not_matter,
)
