"""Samples made of several arrays: the inputs of a module that takes more than one tensor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenhand.data.views import View, rows_of

MOST_INPUTS = 100


@dataclass(frozen=True, eq=False)
class Nested:
    """Arrays of equal length by name or, in a tuple, by position; they may be nested.

    Attributes:
        inputs: the arrays, (N, ...) each; the entries of a tuple are called "0", "1", ...
        named: whether samples are dicts; otherwise they are tuples.
    """

    inputs: Mapping[str, Tensor | View | Nested]
    named: bool = True

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ValueError("samples need at least one input")
        lengths = {name: len(values) for name, values in self.inputs.items()}
        (first, count), *rest = lengths.items()
        for name, length in rest:
            if length != count:
                raise ValueError(
                    f"input {first!r} has {count} rows and input {name!r} {length}; give every"
                    " sample all inputs"
                )

    def build(self, value: Callable[[Tensor | View], Any]) -> Any:
        """Return a dict or tuple with ``value`` of each array."""
        made = {
            name: values.build(value) if isinstance(values, Nested) else value(values)
            for name, values in self.inputs.items()
        }
        return made if self.named else tuple(made.values())

    def map(self, function: Callable[[Tensor | View], Tensor | View]) -> Nested:
        """Return the same inputs with ``function`` applied to each array."""
        made = {
            name: values.map(function) if isinstance(values, Nested) else function(values)
            for name, values in self.inputs.items()
        }
        return Nested(made, self.named)

    def arrays(self) -> dict[str, Tensor | View]:
        """Return all arrays by name; names of nested inputs are joined by dots."""
        found: dict[str, Tensor | View] = {}
        for name, values in self.inputs.items():
            if isinstance(values, Nested):
                found |= {f"{name}.{inner}": each for inner, each in values.arrays().items()}
            else:
                found[name] = values
        return found

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def shape(self) -> torch.Size:
        """(N, the number of values of a sample)."""
        return torch.Size((len(self), sum(a.shape[1:].numel() for a in self.arrays().values())))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the first array with floating-point numbers; of the first array without any."""
        arrays = list(self.arrays().values())
        return next((a.dtype for a in arrays if a.is_floating_point()), arrays[0].dtype)

    def is_floating_point(self) -> bool:
        """Whether any array has floating-point numbers."""
        return self.dtype.is_floating_point

    def element_size(self) -> int:
        """Bytes per number, of the widest array."""
        return max(array.element_size() for array in self.arrays().values())

    def __getitem__(self, key: slice | Tensor) -> Any:
        """Return the samples themselves, as a dict or tuple of new arrays."""
        return self.build(lambda array: array[key])

    def first(self, count: int) -> Nested:
        """Return the first samples, as arrays of their own."""
        return self.map(lambda array: array[:count])

    def pick(self, rows: Tensor) -> Nested:
        """Return a view of some of the samples, in the order of ``rows``."""
        return self.map(lambda a: a.pick(rows) if isinstance(a, View) else View(a, rows))

    def gather(self, index: Tensor) -> Any:
        """Return samples ``index``, in a way that can be batched over clients."""
        return self.build(lambda a: a.gather(index) if isinstance(a, View) else rows_of(a, index))

    def to(self, device: torch.device, dtype: torch.dtype) -> Nested:
        """Return the arrays on ``device``, those with floating-point numbers as ``dtype``."""
        return self.map(
            lambda a: a.to(
                device, dtype if isinstance(a, View) or a.is_floating_point() else a.dtype
            )
        )

    @property
    def form(self) -> str:
        """Names, types and shapes of the inputs, as text; equal for samples of the same kind."""
        return json.dumps(_form(self))

    @classmethod
    def zeros(cls, form: str, count: int) -> Nested:
        """Return ``count`` samples of a form that are all zero."""
        made = _zeros(json.loads(form), count, [])
        if not isinstance(made, cls):
            raise ValueError("not the form of samples with several inputs")
        return made


def joined(parts: Sequence[Tensor | View | Nested]) -> Tensor | View | Nested:
    """Return samples one after another; parts of several inputs must have the same ones."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Nested):
        same = [part for part in parts if isinstance(part, Nested)]
        inputs = {name: joined([part.inputs[name] for part in same]) for name in first.inputs}
        return Nested(inputs, first.named)
    plain = [part for part in parts if not isinstance(part, Nested)]
    views = [part for part in plain if isinstance(part, View)]
    if len(views) == len(parts):  # all are images, complete and with the same scale
        sources = torch.cat([view.source for view in views])
        return View(sources, None, views[0].scale, views[0].shift)
    return torch.cat([part[:] if isinstance(part, View) else part for part in plain])


def is_nested(value: Any) -> bool:
    """Whether a sample, or the samples of a client, are several inputs and not one array.

    A list or tuple is, if one of its entries is an array with dimensions or several inputs itself.
    """
    if isinstance(value, Mapping):
        return True
    return isinstance(value, tuple | list) and any(
        is_nested(entry) or getattr(entry, "ndim", 0) > 0 for entry in value
    )


def inputs_of(value: Any) -> dict[str, Any]:
    """Return several inputs by name; those of a list or tuple are called "0", "1", ..."""
    if isinstance(value, Mapping):
        return {str(name): entry for name, entry in value.items()}
    return {str(number): entry for number, entry in enumerate(value)}


def shapes(x: Tensor | View | Nested) -> Any:
    """Return the shape of a sample: a list, or a dict or tuple of lists."""
    return x.build(lambda a: list(a.shape[1:])) if isinstance(x, Nested) else list(x.shape[1:])


def _form(x: Tensor | View | Nested) -> Any:
    if isinstance(x, Nested):
        parts = {name: _form(values) for name, values in x.inputs.items()}
        return parts if x.named else list(parts.values())
    return [str(x.dtype).removeprefix("torch."), *x.shape[1:]]


def _zeros(form: Any, count: int, made: list[Tensor]) -> Tensor | Nested:
    """Return zeros of a form; it may have come from a stranger."""
    if isinstance(form, list) and form and isinstance(form[0], str):
        dtype = getattr(torch, form[0], None)
        if len(made) >= MOST_INPUTS or not isinstance(dtype, torch.dtype):
            raise ValueError("not the form of samples")
        made.append(torch.zeros(count, *map(int, form[1:]), dtype=dtype))
        return made[-1]
    if isinstance(form, dict | list) and form:
        named = isinstance(form, dict)
        entries = form if isinstance(form, dict) else {str(i): one for i, one in enumerate(form)}
        return Nested({name: _zeros(entries[name], count, made) for name in entries}, named)
    raise ValueError("not the form of samples")
