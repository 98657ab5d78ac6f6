"""Building a federation from a dataset of Hugging Face's ``datasets``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.contents import Contents
from evenhand.data.dealing import Assignment, assign
from evenhand.data.nested import Nested
from evenhand.data.pool import TEST, TRAIN, VAL, Deal, Pool
from evenhand.data.samples import Features, first_not_finite
from evenhand.data.torch_data import coded
from evenhand.data.torch_items import Column
from evenhand.errors import require_known

SPLITS = {"train": TRAIN, "validation": VAL, "val": VAL, "test": TEST}
IGNORED = -100  # label of a token that does not count, as in Hugging Face's own losses
TOKENS, MASK = "input_ids", "attention_mask"


class _Table(NamedTuple):
    """Rows of all splits, one after another."""

    parts: list[Any]  # datasets
    codes: list[int]  # of the splits
    features: Mapping[str, Any]

    @property
    def rows(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def part(self) -> Tensor:
        """(N,) the split of each row."""
        sizes = torch.tensor([len(part) for part in self.parts])
        return torch.repeat_interleave(torch.tensor(self.codes), sizes)

    def values(self, column: str) -> list[Any]:
        """Return the values of a column, as arrays or plain values."""
        found: list[Any] = []
        for part in self.parts:
            # one column at a time: others may be images
            found.extend(part.select_columns([column]).with_format("numpy")[:][column])
        return found


def from_hf(
    dataset: Any,
    client: str,
    label: str,
    group: str | None = None,
    inputs: str | Sequence[str] | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    team: str | None = None,
    pad: float | Mapping[str, float] = 0,
) -> Contents:
    """Build the contents of ``evenhand.Federation.from_hf``.

    Sequences of different lengths are padded at the end. If ``input_ids`` are padded and there is
    no ``attention_mask``, one is added; token labels are padded with -100, which no loss counts.
    """
    table = _table(dataset)
    roles = [name for name in (client, label, group, team) if name is not None]
    for name in roles:
        require_known("column", name, list(table.features))
    x = _features(table, _inputs(table, inputs, roles), pad)
    y, label_names = _labels(table, label)
    owner, names = _coded(table, client)
    groups, group_names = (None, ()) if group is None else _coded(table, group)
    teams, team_names = _teams(table, team, owner.numpy(), names)
    pool = Pool(
        x=x,
        y=y,
        label_names=label_names,
        group=groups,
        group_names=group_names,
        client=owner,
        client_names=names,
        team=teams,
        team_names=team_names,
    )
    for field, values in (("x", x), ("y", y)):
        row = first_not_finite(values)
        if row is not None:
            raise ValueError(f"{field} of row {row} is not finite; fill it or leave the row out")
    if len(table.parts) == 1:
        return assign(pool, None, split, seed).contents(pool)
    if split is not None:
        raise ValueError("the dataset has splits of its own; leave split out, or pass one of them")
    trained = set(owner[table.part == TRAIN].tolist())
    for code, name in enumerate(names):
        if code not in trained:
            raise ValueError(f"client {name} has no training rows; leave its other rows out")
    deal = Deal(pool.natural().owner, pool.client_names, teams, team_names)
    return Assignment.of(pool, deal, table.part).contents(pool)


def _table(dataset: Any) -> _Table:
    splits = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    for name, part in splits.items():
        if not all(hasattr(part, needed) for needed in ("features", "select_columns", "__len__")):
            kind = "a stream of rows" if hasattr(part, "take") else type(part).__name__
            raise TypeError(
                f"dataset must be a datasets.Dataset or DatasetDict, got {kind}; load it without"
                " streaming, or use Federation.from_torch"
            )
        require_known("split", name, list(SPLITS))
        if not len(part):
            raise ValueError(f"the {name} split has no rows")
    if "train" not in splits:
        raise ValueError(f"the dataset has no train split, only {', '.join(splits)}")
    first = splits["train"]
    for name, part in splits.items():
        if part.features != first.features:
            raise ValueError(f"the {name} split has other columns than the train split")
    return _Table(list(splits.values()), [SPLITS[name] for name in splits], first.features)


def _kind(feature: Any) -> str:
    """Return what a column holds: "text", "number", "image" or "array"."""
    if type(feature).__name__ == "Image":
        return "image"
    dtype = str(getattr(feature, "dtype", ""))
    if type(feature).__name__ in ("Value", "ClassLabel"):
        return "text" if "string" in dtype or "date" in dtype or "time" in dtype else "number"
    inner = getattr(feature, "feature", None)
    return "text" if inner is not None and _kind(inner) == "text" else "array"


def _inputs(
    table: _Table, wanted: str | Sequence[str] | None, roles: Sequence[str]
) -> str | list[str]:
    """Return the columns that become inputs: a name for one tensor, a list for several inputs."""
    kinds = {name: _kind(feature) for name, feature in table.features.items()}
    if wanted is not None:
        for name in [wanted] if isinstance(wanted, str) else wanted:
            require_known("column", name, list(kinds))
            if kinds[name] == "text":
                raise ValueError(
                    f"column {name!r} holds text; turn it into numbers first, for example with"
                    " dataset.map and a tokenizer"
                )
        return wanted if isinstance(wanted, str) else list(wanted)
    rest = [name for name in kinds if name not in roles and kinds[name] != "text"]
    if not rest:
        texts = ", ".join(name for name in kinds if name not in roles)
        raise ValueError(
            f"no column with numbers or images is left{f' besides {texts}' if texts else ''}; turn"
            " text into numbers first, for example with dataset.map and a tokenizer"
        )
    return rest[0] if len(rest) == 1 and kinds[rest[0]] != "number" else rest


def _features(table: _Table, inputs: str | list[str], pad: float | Mapping[str, float]) -> Features:
    if isinstance(inputs, str):
        found = _columns(table, [inputs], pad)
        return found[inputs] if len(found) == 1 else Nested(found)
    if all(_kind(table.features[name]) == "number" for name in inputs):
        numbers = [np.asarray(table.values(name), dtype=np.float32) for name in inputs]
        return torch.from_numpy(np.stack(numbers, axis=1))
    return Nested(_columns(table, inputs, pad))


def _columns(
    table: _Table, names: Sequence[str], pad: float | Mapping[str, float]
) -> dict[str, Features]:
    """Return columns as arrays, with the mask that padded tokens need."""
    found: dict[str, Features] = {}
    for name in names:
        if _kind(table.features[name]) == "image":
            found[name] = _pictures(table, name)
            continue
        values = table.values(name)
        found[name] = _array(name, values, pad.get(name, 0) if isinstance(pad, Mapping) else pad)
        lengths = {len(row) for row in values if np.ndim(row)}
        if name == TOKENS and len(lengths) > 1 and MASK not in names:
            real = [np.ones(len(row), dtype=np.int64) for row in values]
            found[MASK] = _array(MASK, real, 0)
    return found


def _pictures(table: _Table, name: str) -> Features:
    column, number = Column(f"column {name!r}", table.rows), 0
    for part in table.parts:
        for row in part.select_columns([name]).with_format(None):
            column.add(number, row[name])
            number += 1
    return column.array()


def _array(name: str, values: list[Any], pad: float) -> Tensor:
    """Return values as one array; shorter sequences are padded at the end."""
    rows = [np.asarray(value) for value in values]
    bad = next((i for i, row in enumerate(rows) if row.dtype.kind not in "iufb"), None)
    if bad is not None:
        raise ValueError(f"column {name!r}: row {bad} is not an array of numbers")
    first = rows[0]
    longest = max((len(row) for row in rows if row.ndim), default=0)
    for number, row in enumerate(rows):
        if row.ndim != first.ndim or row.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"column {name!r}: row {number} has shape {list(row.shape)}, row 0"
                f" {list(first.shape)}; only lengths of sequences may differ"
            )
    if first.ndim:
        made = np.full((len(rows), longest, *first.shape[1:]), pad, first.dtype)
        for number, row in enumerate(rows):
            made[number, : len(row)] = row
    else:
        made = np.array(rows)
    stored = {"b": np.int64, "f": np.float32}.get(made.dtype.kind, made.dtype)
    return torch.from_numpy(made.astype(stored))


def _labels(table: _Table, label: str) -> tuple[Tensor, tuple[str, ...]]:
    feature, values = table.features[label], table.values(label)
    if _kind(feature) == "text":
        codes, names = coded(f"column {label!r}", _plain(values))
        return torch.from_numpy(codes), tuple(map(str, names))
    found = _array(label, values, IGNORED)
    classes = getattr(feature, "names", None) or getattr(
        getattr(feature, "feature", None), "names", None
    )
    return found if found.is_floating_point() else found.long(), tuple(classes or ())


def _plain(values: list[Any]) -> list[Any]:
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _coded(table: _Table, column: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return the codes of a column, and the names of its values."""
    names = getattr(table.features[column], "names", None)
    values = _plain(table.values(column))
    codes, labels = coded(f"column {column!r}", values)
    return torch.from_numpy(codes), tuple(str(names[v]) if names else str(v) for v in labels)


def _teams(
    table: _Table, column: str | None, owner: NDArray[np.int64], names: Sequence[Any]
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the team of each client; all its rows must agree."""
    if column is None:
        return None, ()
    codes, team_names = _coded(table, column)
    teams = torch.zeros(len(names), dtype=torch.int64)
    teams[torch.from_numpy(owner)] = codes
    different = (teams[torch.from_numpy(owner)] != codes).nonzero().flatten()
    if len(different):
        name = names[int(owner[int(different[0])])]
        raise ValueError(f"client {name} has rows of several teams in column {column!r}")
    return teams, team_names
