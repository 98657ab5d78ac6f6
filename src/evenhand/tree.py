"""Arithmetic on trees: nested dicts of tensors with string keys.

Server state, messages and client memories are trees. These functions work on one client's values
and, because every operation is elementwise or a full reduction, also inside ``torch.func.vmap``.

>>> import torch
>>> from evenhand import tree
>>> tree.add({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.5, 0.5])})
{'w': tensor([1.5000, 2.5000])}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

# Values are Tensor or Tree; with a recursive alias, dict[str, Tensor | Tree], each access to a leaf
# would need a cast.
Tree = dict[str, Any]


def map(function: Callable[..., Tensor], tree: Tree, *rest: Tree) -> Tree:
    """Apply ``function`` to corresponding leaves of one or more trees of equal structure."""
    if not rest:  # most calls, several thousand a second
        return {
            key: map(function, value) if isinstance(value, dict) else function(value)
            for key, value in tree.items()
        }
    for other in rest:
        if other.keys() != tree.keys():
            raise ValueError(f"trees differ in keys: {sorted(tree)} against {sorted(other)}")
    return {
        key: map(function, value, *(other[key] for other in rest))
        if isinstance(value, dict)
        else function(value, *(other[key] for other in rest))
        for key, value in tree.items()
    }


def leaves(tree: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors of a tree, in the order of its keys."""
    found: list[Tensor] = []
    for value in tree.values():
        if isinstance(value, dict):
            found += leaves(value)
        else:
            found.append(value)
    return found


def items(
    tree: Mapping[str, Any], prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield pairs of path and tensor, in the order of the keys."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from items(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def add(a: Tree, b: Tree) -> Tree:
    """Return a + b."""
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """Return a - b."""
    return map(torch.sub, a, b)


def scale(a: Tree, factor: Tensor | float) -> Tree:
    """Return factor * a."""
    return map(lambda leaf: leaf * factor, a)


def dot(a: Tree, b: Tree) -> Tensor:
    """Return the inner product over all leaves, a scalar tensor."""
    products = [(x * y).sum() for x, y in zip(leaves(a), leaves(b), strict=True)]
    return torch.stack(products).sum() if products else torch.zeros(())


def sqnorm(a: Tree) -> Tensor:
    """Return the squared Euclidean norm over all leaves, a scalar tensor."""
    return dot(a, a)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """Return ``a`` if the scalar ``condition`` holds, else ``b``."""
    return map(lambda x, y: torch.where(condition, x, y), a, b)


def zeros_like(a: Tree) -> Tree:
    """Return a tree of zeros with the shapes of ``a``."""
    return map(torch.zeros_like, a)


def to(a: Tree, *args: Any, **kwargs: Any) -> Tree:
    """Apply ``Tensor.to`` to every leaf."""
    return map(lambda leaf: leaf.to(*args, **kwargs), a)


def floating(a: Tree, dtype: torch.dtype, device: torch.device) -> Tree:
    """Move every leaf to ``device``, and floating-point leaves to ``dtype``."""
    return map(lambda leaf: there(leaf.to(dtype) if leaf.is_floating_point() else leaf, device), a)


def there(leaf: Tensor, device: torch.device) -> Tensor:
    """Move ``leaf`` to ``device``; pinned memory means that the host need not wait for a GPU."""
    if device.type != "cuda" or leaf.is_cuda:
        return leaf.to(device)
    return leaf.pin_memory().to(device, non_blocking=True)


def stack(trees: list[Tree]) -> Tree:
    """Stack trees along a new first dimension: row i is ``trees[i]``."""
    return map(lambda *rows: torch.stack(rows), *trees)


def row(stacked: Tree, index: int) -> Tree:
    """Return row ``index`` of a stacked tree."""
    return map(lambda leaf: leaf[index], stacked)


def rows(stacked: Tree) -> Iterator[Tree]:
    """Yield the rows of a stacked tree, one after another."""
    for row in zip(*(leaf.unbind(0) for leaf in leaves(stacked)), strict=True):
        rest = iter(row)
        yield map(lambda _, rest=rest: next(rest), stacked)


def flatten(tree: Tree) -> dict[str, Tensor]:
    """Return a flat dict for files, with paths joined by "/".

    "~" and "/" inside a key become "~0" and "~1".
    """
    return {
        "/".join(key.replace("~", "~0").replace("/", "~1") for key in path): leaf
        for path, leaf in items(tree)
    }


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """Undo ``flatten``."""
    tree: Tree = {}
    for path, leaf in flat.items():
        *parents, last = (key.replace("~1", "/").replace("~0", "~") for key in path.split("/"))
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = leaf
    return tree
