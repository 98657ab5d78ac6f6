"""A network as a function of named tensors that returns one tensor."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.calls import Call


class Readout(nn.Module):
    """A network with its call and its output: takes tensors by position or name, returns one.

    Args:
        module: the network.
        call: how it takes samples, and where its output is.
        samples: an example: a tensor (N, ...), or a dict or tuple of such tensors.
    """

    def __init__(self, module: nn.Module, call: Call, samples: Any) -> None:
        super().__init__()
        self.module, self._call, self._samples = module, call, samples
        self.names = _names(module, samples)
        self.training = False
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        # torch.export and ONNX name inputs as the signature does
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in self.names])

        def forward(*args: Tensor, **named: Tensor) -> Tensor:
            given = signature.bind(*args, **named).arguments
            return self._output(*given.values())

        forward.__signature__ = signature  # type: ignore[attr-defined]
        self.forward = forward

    def _output(self, *inputs: Tensor) -> Tensor:
        left = iter(inputs)
        args, named = self._call.arguments(like(self._samples, lambda _: next(left)))
        return self._call.read(self.module(*args, **named))

    def arguments(self, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The inputs as the exported program takes them: by name if samples are dicts."""
        if isinstance(self._samples, Mapping):
            return (), dict(zip(self.names, inputs, strict=True))
        return inputs, {}

    def batch(self, size: int, first: int = 0) -> tuple[Tensor, ...]:
        """Samples of the example, repeated as often as needed, starting with number ``first``."""
        drawn = torch.Generator().manual_seed(size)

        def taken(values: Tensor) -> Tensor:
            rows = values[(torch.arange(size) + first) % len(values)]
            if rows.is_floating_point() and not values.any():
                # zeros that stand in for samples would hide most differences
                return torch.randn(rows.shape, generator=drawn).to(rows.dtype)
            return rows.clone()

        return tuple(taken(values) for values in flat(self._samples).values())


def like(samples: Any, value: Callable[[Any], Any]) -> Any:
    """The same dicts and tuples with ``value`` of each array, in order."""
    if isinstance(samples, Mapping):
        return {name: like(entry, value) for name, entry in samples.items()}
    if isinstance(samples, tuple):
        return tuple(like(entry, value) for entry in samples)
    return value(samples)


def flat(samples: Any) -> dict[str, Tensor]:
    """The tensors of samples, by place."""
    return dict(_walk(samples, ""))


def _walk(samples: Any, place: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(samples, Mapping | tuple):
        entries = samples.items() if isinstance(samples, Mapping) else enumerate(samples)
        for name, entry in entries:
            yield from _walk(entry, f"{place}.{name}" if place else str(name))
    else:
        yield place, samples


def _names(module: nn.Module, samples: Any) -> list[str]:
    """A name for each input: its key in a dict, or that of the parameter of ``forward``."""
    named = [
        one.name
        for one in inspect.signature(module.forward).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    places = list(flat(samples))
    if not isinstance(samples, Mapping):
        direct = isinstance(samples, Tensor) or (
            len(places) == len(samples) and len(named) >= len(places)
        )
        found = named[: len(places)] if direct and named else [f"x{place}" for place in places]
    else:
        found = [re.sub(r"\W", "_", place) for place in places]
    unique = len(set(found)) == len(found) and all(name.isidentifier() for name in found)
    return found if unique else [f"input_{number}" for number in range(len(places))]
