"""How a module is called with a batch of samples, and which part of what it returns is the output.

Modules of Hugging Face take a dict of tensors and return an object with ``logits``; others take
several tensors, or return a tuple. The engines see neither: to them a module is a function from
samples to one tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from evenhand.errors import first_line
from evenhand.torch_private import as_if_compiled

OutputFunction = Callable[[Any], Tensor]  # from what a module returns to its output


class UnreadableOutput(TypeError):
    """What a module returned has no output that a loss could take."""


class Call:
    """How one module is called.

    Args:
        module: the module.
        output: takes the output out of what the module returns; None for the usual places.
    """

    def __init__(self, module: nn.Module, output: OutputFunction | None = None) -> None:
        if output is not None and not callable(output):
            raise TypeError(
                "output must be a function of what the module returns, such as"
                f" lambda o: o['out'], got {output!r}"
            )
        self.output = output
        self._signature = inspect.signature(module.forward)
        self._as_one: dict[object, bool] = {}  # by the names or number of a sample's inputs
        # they choose shortcuts by the values of a mask, which stacked clients do not share
        self._branches = any(
            isinstance(m, nn.TransformerEncoder) or type(m).__module__.startswith("transformers.")
            for m in module.modules()
        )

    def arguments(self, x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments for samples ``x``.

        A dict becomes keyword arguments and a tuple positional ones, unless the module's
        ``forward`` does not take them: then it gets the dict or tuple itself.
        """
        if isinstance(x, Tensor):
            return (x,), {}
        named = isinstance(x, Mapping)
        inputs: object = tuple(x) if named else len(x)
        if inputs not in self._as_one:
            self._as_one[inputs] = not self._takes((), x) if named else not self._takes(x, {})
        if self._as_one[inputs]:
            return (x,), {}
        return ((), dict(x)) if named else (tuple(x), {})

    def _takes(self, positional: Any, named: Any) -> bool:
        try:
            self._signature.bind(*positional, **named)
        except TypeError:
            return False
        return True

    def read(self, returned: Any) -> Tensor:
        """Return the output in what the module returned: a tensor, a tuple's first entry, or
        ``logits``."""
        found: Any
        if self.output is not None:
            found = self._taken(returned, self.output)
        elif isinstance(returned, Mapping):
            found = returned.get("logits")
        elif isinstance(returned, tuple | list) and returned:
            found = getattr(returned, "logits", returned[0])  # of a named tuple
        else:
            found = getattr(returned, "logits", returned)
        if not isinstance(found, Tensor):
            raise UnreadableOutput(f"{_shown(returned, self.output)}; {_hint(returned)}")
        return found

    def _taken(self, returned: Any, output: OutputFunction) -> Any:
        try:
            return output(returned)
        except Exception as error:
            got = type(returned).__name__
            if isinstance(returned, Mapping):
                got += f" with {', '.join(map(str, returned))}"
            raise UnreadableOutput(
                f"output= fails with {type(error).__name__}: {first_line(error)}; the module"
                f" returned a {got}"
            ) from error

    @contextmanager
    def stackable(self) -> Iterator[None]:
        """Ask transformers for operations that do not depend on values."""
        with as_if_compiled() if self._branches else nullcontext():
            yield


def _shown(returned: Any, output: OutputFunction | None) -> str:
    if output is not None:
        return f"output= must return a tensor, got {type(output(returned)).__name__}"
    if isinstance(returned, Mapping) and "logits" in returned:
        got = type(returned["logits"]).__name__
        return f"the module must return a tensor in 'logits', got a {got}"
    if isinstance(returned, Mapping):
        return (
            f"the module returned a dict without 'logits' (it has {', '.join(map(str, returned))})"
        )
    first = f" of {type(returned[0]).__name__}" if isinstance(returned, tuple) and returned else ""
    return f"the module must return a tensor, got a {type(returned).__name__}{first}"


def _hint(returned: Any) -> str:
    example = "lambda o: o.last_hidden_state[:, 0]"
    if isinstance(returned, Mapping):
        key = next((name for name in returned if name != "logits"), "out")
        example = f"lambda o: o[{key!r}]"
    elif isinstance(returned, tuple | list):
        example = "lambda o: o[0][0]"
    return f"pass output=, a function of what it returns, such as {example}"
