"""Checks of a method as a value: frozen, plain, compared by its hyper-parameters, rebuilt from
text."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import tomllib
from collections.abc import Mapping
from typing import Any

from evenhand.algorithm import Algorithm
from evenhand.errors import SpecError, first_line
from evenhand.testing.compare import expect, expect_alike, skip
from evenhand.testing.subject import Subject
from evenhand.testing.watch import ACCESSORS, HOOKS, rebuilt

PLAIN = (bool, int, float, str, type(None), Algorithm)


def it_is_a_frozen_dataclass(subject: Subject) -> None:
    """Hyper-parameters are fields of a dataclass that cannot be assigned to."""
    algorithm = subject.algorithm
    expect(dataclasses.is_dataclass(algorithm), "write @dataclass(frozen=True) above the class")
    try:
        algorithm.personal = algorithm.personal
    except dataclasses.FrozenInstanceError:
        return
    raise AssertionError("its attributes can be assigned to; write @dataclass(frozen=True)")


def its_settings_are_plain_values(subject: Subject) -> None:
    """Hyper-parameters are plain values (numbers, text, booleans, None, and tuples or immutable
    tables of these) or methods, so that they can be saved and sent."""
    for name, value in settings(subject.algorithm).items():
        odd = [entry for entry in _entries(value) if not isinstance(entry, PLAIN)]
        expect(
            not odd,
            f"{name} holds {type(odd[0] if odd else None).__name__}; a plain value could be saved"
            " to a spec",
        )


def every_setting_has_a_default(subject: Subject) -> None:
    """The method can be created without arguments."""
    kind = type(subject.algorithm)
    missing = [entry.name for entry in dataclasses.fields(kind) if _without_default(entry)]  # type: ignore[arg-type]
    expect(not missing, f"no default for {', '.join(missing)}")
    expect(isinstance(kind(), Algorithm), f"{kind.__name__}() is not an Algorithm")


def no_setting_takes_the_name_of_a_hook(subject: Subject) -> None:
    """No field has the name of a hook, because it would hide the hook."""
    names = {*ACCESSORS, *(name for name, owner in HOOKS.items() if owner != "local_work")}
    taken = sorted(set(settings(subject.algorithm)) & names)
    expect(not taken, f"setting {taken} hides the hook of that name; choose another name")
    hidden = [name for name in names if not callable(getattr(subject.algorithm, name, callable))]
    expect(not hidden, f"{hidden} cannot be called")


def its_flags_are_true_or_false(subject: Subject) -> None:
    """``personal`` is a bool, and so are ``snapshot`` and ``whole_data`` of the local work."""
    for name, value in _flags(subject.algorithm).items():
        expect(isinstance(value, bool), f"{name} is {value!r}")


def a_setting_that_is_not_a_number_is_refused(subject: Subject) -> None:
    """NaN in place of a number raises an error at construction, not after hours."""
    for name, value in settings(subject.algorithm).items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        try:
            _replace(subject.algorithm, name, math.nan)
        except (ValueError, TypeError):
            continue
        raise AssertionError(f"{name}=nan is accepted; check settings in __post_init__")


def it_equals_its_copies(subject: Subject) -> None:
    """Methods with the same settings are equal."""
    for twin in (copy.deepcopy(subject.algorithm), rebuilt(subject.algorithm)):
        expect(bool(twin == subject.algorithm), f"{twin!r} is not equal to {subject.algorithm!r}")
        expect_alike(repr(twin), repr(subject.algorithm))


def it_survives_pickling(subject: Subject) -> None:
    """The method can be sent to another process."""
    twin = pickle.loads(pickle.dumps(subject.algorithm))
    expect(bool(twin == subject.algorithm), f"{subject.algorithm!r} comes back as {twin!r}")
    expect_alike(_flags(twin), _flags(subject.algorithm))


def equal_methods_have_equal_hashes(subject: Subject) -> None:
    """The method can be a key of a dict."""
    expect(hash(rebuilt(subject.algorithm)) == hash(subject.algorithm), "a copy has another hash")


def its_repr_shows_every_setting(subject: Subject) -> None:
    """Checkpoints identify a method by its text, so all hyper-parameters must be visible in it."""
    hidden = [
        name
        for name, value in settings(subject.algorithm).items()
        if f"{name}={value!r}" not in repr(subject.algorithm)
    ]
    expect(not hidden, f"{subject.algorithm!r} does not show {', '.join(hidden)}")


def its_docstring_says_what_it_does(subject: Subject) -> None:
    """The class has a docstring whose first paragraph is a sentence."""
    kind = type(subject.algorithm)
    first = (kind.__doc__ or "").strip().partition("\n\n")[0]
    made_up = first.startswith(f"{kind.__name__}(")  # what dataclass writes if there is none
    expect(
        len(first.split()) > 2 and not made_up,
        f"{kind.__name__} needs a docstring; its first paragraph is what a user would say",
    )


def a_spec_rebuilds_it(subject: Subject) -> None:
    """TOML, and the command line's tables, rebuild an equal method."""
    import tomli_w

    from evenhand.algorithms.naming import algorithm_table
    from evenhand.studies.specs.method import build_algorithm

    try:
        table = algorithm_table(subject.algorithm)
    except SpecError as error:
        skip(first_line(error))
    twin = build_algorithm(tomllib.loads(tomli_w.dumps(table)))
    expect(
        bool(twin == subject.algorithm),
        f"{subject.algorithm!r} comes back from {table} as {twin!r}",
    )


def settings(algorithm: Any) -> dict[str, Any]:
    """Return the values of a method's fields."""
    return {entry.name: getattr(algorithm, entry.name) for entry in dataclasses.fields(algorithm)}


def _entries(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Mapping) and not isinstance(value, dict):  # a dict can be changed
        return (*value, *value.values())
    return value if isinstance(value, tuple) else (value,)


def _flags(algorithm: Algorithm) -> dict[str, Any]:
    work = algorithm.local_work()
    return {
        "personal": algorithm.personal,
        "snapshot": work.snapshot,
        "whole_data": work.whole_data,
    }


def _replace(algorithm: Any, name: str, value: Any) -> Any:
    return dataclasses.replace(algorithm, **{name: value})


def _without_default(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING


CHECKS = (
    it_is_a_frozen_dataclass,
    its_settings_are_plain_values,
    every_setting_has_a_default,
    no_setting_takes_the_name_of_a_hook,
    its_flags_are_true_or_false,
    a_setting_that_is_not_a_number_is_refused,
    it_equals_its_copies,
    it_survives_pickling,
    equal_methods_have_equal_hashes,
    its_repr_shows_every_setting,
    its_docstring_says_what_it_does,
    a_spec_rebuilds_it,
)
