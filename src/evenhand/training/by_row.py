"""Predictions of the samples that a run was evaluated on, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.errors import RunError
from evenhand.training.predicting import own_unit

if TYPE_CHECKING:
    from evenhand.data.tables.encoding import Encoding
    from evenhand.training.outcome import Outcome

Columns = dict[str, Any]  # (N,) by name


def samples_of(federation: Federation) -> dict[str, Tensor]:
    """Return client, group, label and row of each evaluated sample, and what a model that knows
    nothing would predict."""
    part = federation.judged
    group = torch.zeros_like(part.owners) if part.group is None else part.group
    kept = {"client": part.owners.int(), "group": group.int()}
    if part.rows is not None:
        kept["row"] = part.rows
    if part.y.ndim == 1:
        kept |= {"label": part.y, "guess": _guess(federation.train.y)}
    return kept


def _guess(y: Tensor) -> Tensor:
    """Return (2,) what a model that knows nothing would predict: the most frequent label, and
    the mean."""
    values, counts = torch.unique(y, return_counts=True)
    return torch.stack([values[counts.argmax()].double(), y.double().mean()])


def predictions_of(result: Outcome, federation: Federation) -> Columns:
    """Return the predictions of a run in memory, as ``by_row`` does."""
    return by_row(
        {name: values.numpy() for name, values in samples_of(federation).items()},
        result.outcomes,
        [federation.name(client) for client in range(federation.clients)],
        federation.group_names,
        federation.label_names,
        federation.encoding,
    )


def by_row(
    samples: Mapping[str, NDArray[Any]],
    outcomes: Mapping[str, NDArray[Any]],
    clients: Sequence[str],
    groups: Sequence[str],
    labels: Sequence[str],
    encoding: Encoding | None,
) -> Columns:
    """Return row, client, group, label, prediction and probability of each evaluated sample.

    The probability is that of the second label, or with more than two labels of the predicted one.

    Args:
        samples: what ``samples_of`` returned.
        outcomes: of the model, see ``evenhand.metrics.sample_outcomes``.
        clients: names of the clients; ``groups`` of the groups, ``labels`` of the classes.
        encoding: of the table, whose label a regression is scaled back to.
    """
    if "prediction" not in outcomes or "label" not in samples:
        raise RunError(
            "this run kept no predictions of its test samples: an earlier version wrote it, the"
            " samples stayed with nodes, or they have several labels each"
        )
    label, prediction = samples["label"], outcomes["prediction"]
    if "score" in outcomes or np.issubdtype(prediction.dtype, np.integer):  # classes or levels
        label, prediction = _named(label, labels), _named(_as_labels(prediction, label), labels)
    elif encoding is not None:
        label, prediction = own_unit(label, encoding, exact=True), own_unit(prediction, encoding)
    found: Columns = {"row": samples["row"]} if "row" in samples else {}
    found["client"] = np.array(clients, dtype=object)[samples["client"]]
    if groups:
        found["group"] = np.array(groups, dtype=object)[samples["group"]]
    found |= {"label": label, "prediction": prediction}
    return found | ({"probability": outcomes["score"]} if "score" in outcomes else {})


def _as_labels(prediction: NDArray[Any], label: NDArray[Any]) -> NDArray[Any]:
    """Return predicted classes 0 and 1 as -1 and 1 where the labels are such."""
    return np.where(prediction == 1, 1, -1) if label.min(initial=0) < 0 else prediction


def _named(codes: NDArray[Any], names: Sequence[str]) -> NDArray[Any]:
    """Return the labels of classes, or their numbers without names; "" for no class."""
    whole = codes.astype(np.int64)
    if not names:
        return whole
    lost = whole >= len(names)
    found = value_array(values_of(names))[np.where(lost, 0, whole)]
    return np.where(lost, "", found.astype(object)) if lost.any() else found


def values_of(names: Sequence[str]) -> list[Any]:
    """Return names of labels as the values they stand for: 0 and 1 instead of "0" and "1"."""
    from evenhand.data.tables.values import numbers_of, text_of

    if set(names) <= {"True", "False"}:
        return [name == "True" for name in names]
    found = [int(n) if n.is_integer() else n for n in numbers_of(names).tolist()]
    same = all(text_of(value) == name for value, name in zip(found, names, strict=True))
    return found if same else list(names)


def value_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return labels as an array of their own type; of objects if they are texts or differ."""
    kinds = {type(value) for value in values}
    return np.array(values, dtype=kinds.pop() if kinds in ({int}, {bool}, {float}) else object)
