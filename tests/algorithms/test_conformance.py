"""Every method passes every check of evenhand.testing, and every check catches a method that is
broken in its way."""

from __future__ import annotations

import subprocess
import sys
import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import evenhand as eh
from evenhand import testing, tree
from evenhand.testing import CHECKS, ConformanceError, algorithm_checks, check_algorithm
from tests.support.broken_methods import (
    Demanding,
    Drifting,
    Elaborate,
    Loose,
    Sound,
    Unchecked,
    Undocumented,
    Unique,
    ascending,
    asks,
    counting_reply,
    diverging,
    doubling_losses,
    expecting_everyone,
    favouring_odd_numbers,
    favouring_the_first,
    first_sample,
    forgetful,
    from_memory,
    growing,
    hoarding_reply,
    in_place,
    init_with,
    learn_from_somebody,
    learn_in_place,
    model_of,
    negative_weights,
    noisy,
    nowhere,
    padded_mean,
    random_reply,
    remembering_reply,
    scale_by_place,
    scale_by_team,
    scale_of,
    scale_of_all,
    scaled_objective,
    sent_each,
    server_with,
    share_of_others,
    spoilt,
    standardised,
    tampering_reply,
    telling_reply,
    tilted,
    unweighted,
    wearing_out,
    weight_by_place,
    wordy_reply,
)
from tests.support.federations import METHODS

DEFAULTS = {
    f"{name} by default": kind() for name, kind in eh.ALGORITHMS.items() if kind is not eh.Private
}
LIBRARY = {
    **METHODS,
    **{name: method for name, method in DEFAULTS.items() if method not in METHODS.values()},
}


# one form of each method; its other forms in the slow tests
FIRST = {type(method): name for name, method in reversed(METHODS.items())}


@pytest.mark.parametrize(
    "method",
    [
        name
        if name not in METHODS or name in FIRST.values()
        else pytest.param(name, marks=pytest.mark.slow)
        for name in LIBRARY
    ],
)
def test_every_method_passes_every_check(method: str) -> None:
    # what whole runs show of a method, they show of one form of it or another
    runs = (testing.repetition, testing.symmetry, testing.extremes)
    left_out = [module.__name__ for module in runs] if method not in METHODS else []
    names = [name for name, check in CHECKS.items() if check.__module__ not in left_out]
    outcomes = check_algorithm(LIBRARY[method], only=names, collect=True)
    assert [outcome.message for outcome in outcomes if not outcome.passed] == []
    assert [outcome.name for outcome in outcomes] == names
    assert sum(outcome.skipped for outcome in outcomes) <= 4


def test_private_methods_are_checked_without_their_privacy() -> None:
    with pytest.raises(ValueError, match="check the method inside Private"):
        check_algorithm(eh.Private())


def test_every_check_states_a_fact_and_explains_it_in_one_paragraph() -> None:
    assert len(CHECKS) >= 40
    for name, check in CHECKS.items():
        assert name.count("_") >= 2
        assert (check.__doc__ or "").endswith(".")
        assert "\n\n" not in (check.__doc__ or "")


def test_every_function_that_takes_a_subject_is_among_the_checks() -> None:
    public = [
        name
        for module in testing.SUBJECTS
        for name, value in vars(module).items()
        if _is_check(value) and value.__module__ == module.__name__
    ]
    assert sorted(public) == sorted(CHECKS)


def _is_check(value: Any) -> bool:
    return (
        callable(value)
        and list(getattr(value, "__annotations__", {})) == ["subject", "return"]
        and not value.__name__.startswith("_")
    )


# ---- broken methods

ZERO = torch.zeros(())
EACH: dict[str, Any] = {"reply": sent_each, "visible": lambda self, census: ("its update",)}
PERSONAL: dict[str, Any] = {
    "personal": True,
    "memory": lambda self, params: {"model": params},
    "reply": remembering_reply,
    "deployed": from_memory,
}
ENGINES_AGREE = [name for name in CHECKS if name.startswith(("engines_agree", "loop_and_vmap"))]
RANDOM = [
    "the_same_arguments_give_the_same_answer",
    "no_random_generator_is_touched",
    "the_same_seed_gives_the_same_bits",
]
SCATTERED = [
    "splitting_a_cohort_into_chunks_changes_no_bit",
    "the_number_of_workers_changes_no_bit",
]
HIDDEN = ["nothing_is_remembered_outside_state_and_memory", "the_same_seed_gives_the_same_bits"]

# What is wrong with a method, the method, and the checks that must say so.
BROKEN: dict[str, tuple[eh.Algorithm, list[str]]] = {
    "can be changed": (Loose(), ["it_is_a_frozen_dataclass"]),
    "has a setting that is not plain": (
        Elaborate(),
        ["its_settings_are_plain_values", "equal_methods_have_equal_hashes"],
    ),
    "has a setting without default": (Demanding(1.0), ["every_setting_has_a_default"]),
    "hides a hook": (spoilt({"reweigh": 1.0}), ["no_setting_takes_the_name_of_a_hook"]),
    "has an odd flag": (spoilt(personal=None), ["its_flags_are_true_or_false"]),
    "checks nothing": (
        Unchecked(),
        ["a_setting_that_is_not_a_number_is_refused", "its_repr_shows_every_setting"],
    ),
    "is like no other": (
        Unique(),
        ["it_equals_its_copies", "it_survives_pickling", "equal_methods_have_equal_hashes"],
    ),
    # its class has no name to be found by
    "cannot be pickled": (spoilt(), ["it_survives_pickling"]),
    "has no docstring": (Undocumented(), ["its_docstring_says_what_it_does"]),
    "changes when made again": (Drifting(), ["it_equals_its_copies"]),
    "starts elsewhere": (
        spoilt(init=lambda self, params, census: {"model": tree.zeros_like(params)}),
        ["the_first_state_holds_the_initial_model"],
    ),
    "has numbers in its state": (
        spoilt(init=init_with(level=0.5)),
        ["the_state_is_a_tree_of_tensors"],
    ),
    "adds to its state": (spoilt(server=growing), ["the_state_keeps_its_form"]),
    "puts NaN into its state": (
        spoilt(
            init=init_with(level=ZERO),
            server=server_with(lambda state: {**state, "level": ZERO / 0}),
        ),
        ["the_state_is_finite_when_everyone_takes_part"],
    ),
    "makes the model float64": (
        spoilt(server=server_with(lambda state: model_of(state, Tensor.double))),
        ["the_model_keeps_its_form"],
    ),
    "hands out float64": (
        spoilt(result=lambda self, state: tree.to(state["model"], torch.float64)),
        ["the_result_has_the_form_of_the_model"],
    ),
    "has an empty branch": (spoilt(init=init_with(nothing={})), ["the_state_survives_a_file"]),
    "changes the state in place": (spoilt(server=in_place), ["the_server_changes_no_argument"]),
    "changes the local model in place": (
        spoilt(reply=tampering_reply),
        ["the_client_changes_no_argument"],
    ),
    "learns in place": (
        spoilt(init=init_with(last=ZERO), ask=asks(), learn=learn_in_place),
        ["the_survey_changes_no_argument"],
    ),
    "reports in place": (spoilt(certificate=doubling_losses), ["reports_change_no_argument"]),
    "adds noise on the server": (spoilt(server=noisy), RANDOM),
    "adds noise on the client": (spoilt(reply=random_reply), [*RANDOM, *SCATTERED]),
    "counts rounds on itself": (
        spoilt(server=forgetful),
        [
            *HIDDEN,
            "a_resumed_run_ends_with_the_same_bits",
            "a_shorter_run_is_the_beginning_of_a_longer_one",
        ],
    ),
    "counts replies on itself": (
        spoilt(reply=counting_reply),
        [*HIDDEN, "the_replies_of_two_halves_add_up"],
    ),
    "counts looks on itself": (
        spoilt(result=wearing_out),
        ["evaluating_more_often_changes_no_bit"],
    ),
    "sends everyone all rows": (
        spoilt(init=scale_by_team, task=scale_of_all, objective=scaled_objective),
        ["a_task_has_a_row_for_every_client"],
    ),
    "weighs by place in the task": (
        spoilt(task=scale_by_place, objective=scaled_objective),
        ["a_task_follows_the_ids"],
    ),
    "weighs by place in the cohort": (
        spoilt(reweigh=weight_by_place),
        ["reweighing_follows_the_ids"],
    ),
    "sends more every round": (
        spoilt(server=growing, task=lambda self, state, ids: eh.Task(dict(state))),
        ["every_round_sends_messages_of_the_same_form"],
    ),
    "asks nobody known": (spoilt(ask=asks(who=1000)), ["a_survey_says_whom_it_asks"]),
    "has chances of any sum": (
        spoilt(init=init_with(even=torch.ones(6)), chances=lambda self, state: state["even"]),
        ["chances_are_a_distribution"],
    ),
    "gives negative weights": (
        spoilt(reweigh=lambda self, state, draw: draw._replace(weight=-draw.weight)),
        ["reweighing_keeps_to_the_cohort"],
    ),
    "has no local solver": (
        spoilt(local_work=lambda self: eh.LocalWork(solver=lambda local, round: None)),  # type: ignore[arg-type,return-value]
        ["the_solver_is_a_local_solver"],
    ),
    "replies by sample": (spoilt(reply=wordy_reply), ["every_client_replies_in_the_same_form"]),
    "has a vector for an objective": (
        spoilt(
            objective=lambda self, model, variables, batch, task: model.loss(
                variables["model"], batch
            )[None]
        ),
        ["the_objective_is_one_number"],
    ),
    "has rates for nothing": (
        spoilt(rates=lambda self, task: {"eta": task.shared["lr"]}),
        ["rates_belong_to_variables"],
    ),
    "has scales of nothing": (
        spoilt(scales=lambda self, own: {"floor": own["weight"]}),
        ["scales_belong_to_numbers_of_clients"],
    ),
    "remembers in float64": (
        spoilt(memory=lambda self, params: {"model": params}, reply=hoarding_reply),
        ["memories_keep_their_form"],
    ),
    "forgets weights": (spoilt(reply=unweighted), ["a_zero_weight_client_changes_nothing"]),
    "counts padding": (spoilt(objective=padded_mean), ["padding_changes_nothing", *ENGINES_AGREE]),
    "looks at clients in secret": (
        spoilt(reply=telling_reply),
        ["the_server_sees_single_clients_only_where_it_says_so"],
    ),
    "says it looks at clients": (
        spoilt(visible=lambda self, census: ("its loss",)),
        ["the_server_sees_single_clients_only_where_it_says_so"],
    ),
    "reports a list": (
        spoilt(server=server_with(dict, weights=[0.5, 0.5])),
        ["infos_are_single_numbers"],
    ),
    "reports its own round": (
        spoilt(server=server_with(dict, round=7)),
        ["infos_keep_out_of_the_columns_of_every_history"],
    ),
    "certifies negative weights": (
        spoilt(certificate=negative_weights),
        ["certificates_are_sound"],
    ),
    "calls one model personal": (
        spoilt(personal=True),
        ["personal_says_whether_clients_have_models_of_their_own"],
    ),
    "deploys float64": (
        spoilt(deployed=lambda self, shared, memory: tree.to(shared["model"], torch.float64)),
        ["deployed_models_have_the_form_of_the_model"],
    ),
    "deploys from memory in secret": (
        spoilt(**{**PERSONAL, "personal": False}),
        ["without_personal_models_memory_does_not_matter"],
    ),
    "does nothing": (
        spoilt(server=lambda self, state, replies: (state, {})),
        ["another_seed_gives_another_run", "training_changes_a_model", "training_lowers_losses"],
    ),
    "ascends": (spoilt(server=ascending), ["training_lowers_losses"]),
    "follows the first client": (
        spoilt(server=favouring_the_first, **EACH),
        ["renumbering_clients_renumbers_the_answer"],
    ),
    "favours odd numbers": (
        spoilt(task=favouring_odd_numbers, objective=scaled_objective, **PERSONAL),
        [
            "renumbering_clients_renumbers_the_answer",
            "twins_are_treated_alike",
            "clients_that_are_all_alike_stay_alike",
        ],
    ),
    "looks at the first sample": (
        spoilt(objective=first_sample),
        ["the_order_of_samples_does_not_matter"],
    ),
    "weighs by the code of a team": (
        spoilt(init=scale_by_team, task=scale_of, objective=scaled_objective),
        ["an_empty_group_or_team_changes_nothing"],
    ),
    "needs others": (
        spoilt(init=share_of_others, task=scale_of, objective=scaled_objective),
        ["one_client_alone_is_enough"],
    ),
    "needs a spread": (spoilt(server=standardised, **EACH), ["a_cohort_of_one_is_enough"]),
    "starts memories nowhere": (
        spoilt(**{**PERSONAL, "memory": nowhere}),
        ["a_client_that_is_never_drawn_has_a_model"],
    ),
    "expects everyone": (
        spoilt(
            init=lambda self, params, census: {"model": params, "base": census.weight},
            server=expecting_everyone,
            **EACH,
        ),
        ["a_client_whose_reply_is_not_finite_is_left_out"],
    ),
    "learns from nobody": (
        spoilt(init=init_with(last=ZERO.double()), ask=asks(), learn=learn_from_somebody),
        ["a_round_without_replies_leaves_the_model_alone"],
    ),
    "overflows": (spoilt(reply=tilted(torch.exp)), ["losses_in_the_hundreds_leave_nobody_out"]),
    "divides by losses": (
        spoilt(reply=tilted(torch.reciprocal)),
        ["losses_of_zero_leave_nobody_out"],
    ),
    "diverges": (
        spoilt(init=init_with(power=torch.ones((), dtype=torch.float64)), server=diverging),
        ["longer_training_stays_finite"],
    ),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_a_broken_method_is_caught_by_name(defect: str) -> None:
    method, expected = BROKEN[defect]
    outcomes = check_algorithm(method, only=expected, collect=True)
    assert [outcome.name for outcome in outcomes if not outcome.passed] == expected
    for outcome in outcomes:
        assert outcome.message.startswith(f"{method!r} fails {outcome.name}: ")


def test_what_the_broken_methods_spoil_is_sound_otherwise() -> None:
    assert [
        outcome.message for outcome in check_algorithm(Sound(), collect=True) if not outcome.passed
    ] == []


def test_a_method_that_a_spec_does_not_rebuild_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eh.ALGORITHMS, "drifting", Drifting)
    with pytest.raises(
        ConformanceError,
        match=r"Drifting\(rate=0.5\) fails a_spec_rebuilds_it: .* comes back from .* as Drifting",
    ):
        check_algorithm(Drifting(), only=["a_spec_rebuilds_it"])


def test_every_check_has_a_broken_method_that_it_catches() -> None:
    caught = {name for _, names in BROKEN.values() for name in names} | {"a_spec_rebuilds_it"}
    assert caught == set(CHECKS)


# ---- the interface


@pytest.mark.parametrize(("name", "check"), algorithm_checks(eh.FedMGDA(), only=list(CHECKS)[-3:]))
def test_checks_can_be_parametrised(name: str, check: Callable[[], None]) -> None:
    assert name in CHECKS
    check()


def test_the_first_failure_raises_an_assertion_error_that_says_what_differed() -> None:
    with pytest.raises(
        AssertionError,
        match=r"fails the_server_changes_no_argument: server changes its argument \S+ differs by",
    ) as caught:
        check_algorithm(
            spoilt(server=in_place),
            only=["the_server_changes_no_argument", "training_changes_a_model"],
        )
    assert isinstance(caught.value, ConformanceError)
    assert isinstance(caught.value, eh.EvenhandError)


def test_checks_that_do_not_apply_are_skipped_with_a_reason() -> None:
    (outcome,) = check_algorithm(Sound(), only=["a_spec_rebuilds_it"], collect=True)
    reason = "Sound is not in ALGORITHMS; a spec names it module:Class"
    assert outcome == ("a_spec_rebuilds_it", True, True, reason)
    (_, check), *_ = algorithm_checks(
        eh.Ditto(), only="without_personal_models_memory_does_not_matter"
    )
    # which pytest counts as skipped
    with pytest.raises(unittest.SkipTest, match="models of their own"):
        check()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no check called 'is_fair'"):
        check_algorithm(eh.FedAvg(), only=["is_fair"])
    with pytest.raises(TypeError, match=r"did you mean FedAvg\(\)"):
        check_algorithm(eh.FedAvg)  # type: ignore[arg-type]


def test_a_federation_module_and_loss_of_ones_own_can_be_given() -> None:
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(size, 3)).astype(np.float32),
            "y": rng.normal(size=size).astype(np.float32),
        }
        for size in (4, 9, 2)
    ]
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 1)
    for method in (eh.FAFL(alpha=(0.5, 0.6, 0.7)), eh.Ditto()):
        outcomes = check_algorithm(
            method,
            federation=eh.Federation.from_arrays(clients),
            module=module,
            loss="mse",
            collect=True,
        )
        assert [outcome.message for outcome in outcomes if not outcome.passed] == []
    assert module.weight.dtype == torch.float32


def test_checks_need_no_pytest() -> None:
    script = (
        "import sys; sys.modules['pytest'] = None\nimport evenhand as eh;"
        " print(len(eh.testing.check_algorithm(eh.FedAvg(), only={})))"
    )
    names = list(CHECKS)[-30:]
    done = subprocess.run(
        [sys.executable, "-c", script.format(names)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (str(len(names)), "")
