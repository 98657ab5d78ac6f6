"""The contract of a method: a wrapper forwards all of it, and nothing that would not be called can be
written."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import pytest

import evenhand as eh

INTERFACES = {"question": eh.Question, "weighting": eh.Weighting, "reporting": eh.Reporting}


def functions(kind: type) -> list[str]:
    """The public functions that a class defines itself."""
    return [
        name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")
    ]


HOOKS = [name for name in functions(eh.Algorithm) if name not in (*INTERFACES, "local_work")]
OPTIONAL = [name for interface in INTERFACES.values() for name in functions(interface)]


@dataclass(frozen=True)
class Changed(eh.Wrapper):
    """A wrapper that changes nothing."""

    inner: eh.Algorithm


def echo(name: str) -> Any:
    """A hook that gives its name and arguments."""
    return lambda self, *arguments: (name, arguments)


Echo = type(
    "Echo",
    (eh.Algorithm, *INTERFACES.values()),
    {
        **{name: echo(name) for name in (*HOOKS, *OPTIONAL)},
        "personal": True,
        "local_work": lambda self: WORK,
    },
)
WORK = eh.LocalWork(snapshot=True, whole_data=True, last=eh.FedAvg())


def test_a_method_author_meets_ten_hooks_clients_that_join_and_what_replies_can_be() -> None:
    server, client = ["init", "task", "server", "result"], ["start", "objective", "rates", "reply"]
    assert sorted(HOOKS) == sorted(
        [
            *(*server, *client, "memory", "deployed", "join", "entries", "check"),
            *("scales", "contribution", "protection"),
        ]
    )
    flags = [name for name, value in vars(eh.Algorithm).items() if isinstance(value, bool)]
    assert flags == ["personal"]


@pytest.mark.parametrize("name", [*HOOKS, *OPTIONAL])
def test_a_wrapper_forwards_every_hook(name: str) -> None:
    owner = next((kind for kind in INTERFACES.values() if hasattr(kind, name)), eh.Algorithm)
    _, *parameters = inspect.signature(getattr(owner, name)).parameters
    assert getattr(Changed(Echo()), name)(*parameters) == (name, tuple(parameters))


@pytest.mark.parametrize(
    "name",
    [name for name in functions(eh.Algorithm) if name not in HOOKS],
)
def test_a_wrapper_has_what_its_inner_method_has(name: str) -> None:
    plain, full = getattr(eh.Algorithm(), name)(), getattr(Echo(), name)()
    assert plain != full
    assert getattr(Changed(eh.Algorithm()), name)() == plain
    wrapper = Changed(Echo())
    assert getattr(wrapper, name)() is (full if name == "local_work" else wrapper)
    assert wrapper.personal


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_wrapper_may_add_what_its_inner_method_lacks(name: str) -> None:
    kind = type("Adding", (Changed,), {name: echo(name)})
    for accessor, interface in INTERFACES.items():
        found = getattr(kind(eh.Algorithm()), accessor)()
        assert (found is not None) == hasattr(interface, name)


def test_a_wrapper_without_a_question_inside_asks_nothing() -> None:
    wrapper, state = Changed(eh.Algorithm()), {"model": {}}
    assert wrapper.ask(state) is None
    assert wrapper.learn(state, None) is state  # type: ignore[arg-type]
    assert wrapper.chances(state) is None
    assert wrapper.reweigh(state, "draw") == "draw"  # type: ignore[arg-type,comparison-overlap]
    assert wrapper.visible(None) == ()  # type: ignore[arg-type]
    assert wrapper.certificate(state, None, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"learn": echo("learn")}, "Odd.learn has no effect: inherit Question too"),
        ({"reweigh": echo("reweigh")}, "Odd.reweigh has no effect: inherit Weighting too"),
        ({"visible": echo("visible")}, "Odd.visible has no effect: inherit Reporting too"),
        ({"survey": echo("survey")}, "Odd.survey has no effect: inherit Question and call it ask"),
        ({"seen": echo("seen")}, "Odd.seen has no effect: inherit Reporting and call it visible"),
        ({"finish": echo("finish")}, "Odd.finish has no effect: pass what it returns as last of"),
        ({"local_solver": echo("x")}, "Odd.local_solver has no effect: pass it as solver of"),
        ({"snapshot": True}, "Odd.snapshot has no effect: set it in the LocalWork"),
        ({"whole_data": property(lambda self: True)}, "Odd.whole_data has no effect: set it in"),
    ],
)
def test_a_function_that_nothing_would_call_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        type("Odd", (eh.Algorithm,), body)
    assert str(caught.value).startswith(message)


def test_settings_may_have_those_names() -> None:
    @dataclass(frozen=True)
    class Fine(eh.Algorithm):
        """Has a few settings."""

        finish: float = 0.5
        learn: float = 1.0

    assert replace(Fine(), finish=0.1).finish == 0.1
