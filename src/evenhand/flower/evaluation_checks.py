"""Checks a client's evaluation: consistent counts, sums that add up, values in range.

A model with moderate parameters has finite losses, so its evaluation cannot contain NaN. The losses
of a diverged model may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from evenhand import losses, tree
from evenhand.messages import Reply, Task
from evenhand.metrics.client_sums import CELLS, CLIENT_METRIC, client_sums
from evenhand.metrics.measuring import metric_keys
from evenhand.metrics.tallies import BY_LABEL, COUNTS, PROBABLE, accuracy_of
from evenhand.model import Model

SOUND = 1e6  # a model with no parameter beyond this has not diverged
LARGEST_LOSS = 1e6  # of a sample, for a sound classifier
NOT_NEGATIVE_LOSSES = tuple(losses.LOSSES.values())
CLOSE = {"rtol": 1e-6, "atol": 1e-9}  # sums over groups on another machine


def check_evaluation(reply: Reply, task: Task, model: Model, who: str) -> list[str]:
    """What is wrong with a client's evaluation whose form, counts and signs have been checked; one
    line for each kind of fault.

    ``task`` is what was sent, with the evaluated model.
    """
    tally: dict[str, Tensor] = {**reply.total, **reply.each}
    faults: dict[str, list[str]] = {}
    sound = all(bool((leaf.abs() <= SOUND).all()) for leaf in tree.leaves(task.shared["model"]))
    for name, fault in (
        *_counts(tally, model.loss_function in PROBABLE),
        *_by_label(tally, model.loss_function in PROBABLE),
        *_losses(tally, model, sound),
        *_client_sums(tally, sound),
    ):
        faults.setdefault(fault, []).append(name)
    return [f"{who}: its evaluation has {fault}: {', '.join(it)}" for fault, it in faults.items()]


def _counts(tally: Mapping[str, Tensor], labels_known: bool) -> Iterator[tuple[str, str]]:
    """Faults in whole numbers: no table may have more samples than there are."""
    count, sums = tally["count"], {}
    for name in COUNTS:
        if name in tally:
            sums[name] = tally[name].flatten(1).sum(1) if tally[name].ndim > 1 else tally[name]
            if not torch.equal(tally[name], tally[name].round()):
                yield name, "fractions of samples"
            elif bool((sums[name] > count).any()):
                yield name, "more samples than it reported"
    if "confusion" in tally and labels_known:
        right = tally["confusion"].diagonal(dim1=-2, dim2=-1).sum(-1)
        if not torch.equal(sums["confusion"], count):
            yield "confusion", "fewer samples than it reported"
        if not torch.equal(right, tally["correct"]):
            yield "correct", "a number that does not match its table of predictions"
    if "share_correct" in tally:
        right = tally["share_correct"]
        if not bool(((right >= 0) & (right <= count + CLOSE["atol"])).all()):
            yield "share_correct", "values out of range"
    if "score" in tally:
        score, scored = tally["score"], tally["scored"]
        if not bool(((score >= 0) & (score <= scored + CLOSE["atol"])).all()):
            yield "score", "values out of range"


def _by_label(tally: Mapping[str, Tensor], labels_known: bool) -> Iterator[tuple[str, str]]:
    """Faults in the samples by label and prediction, of which the others can only be smaller."""
    if BY_LABEL[0] not in tally:
        return
    positives, negatives, right, wrong = (tally[name] for name in BY_LABEL)
    everyone, count, correct = positives + negatives, tally["count"], tally["correct"]
    if bool((right > positives).any()):
        yield BY_LABEL[2], "more samples than have the label"
    if bool((wrong > negatives).any()):
        yield BY_LABEL[3], "more samples than have the label"
    if bool((everyone > count).any()):
        yield BY_LABEL[0], "more samples than it reported"
    if labels_known and bool((everyone < count).any()):
        yield BY_LABEL[0], "fewer samples than it reported"
    # samples without a prediction are in neither
    if bool(((correct < right) | (correct > right + negatives - wrong)).any()):
        yield "correct", "a number that does not match its predictions by label"


def _losses(tally: Mapping[str, Tensor], model: Model, sound: bool) -> Iterator[tuple[str, str]]:
    """Faults in sums of real numbers."""
    known, regression = model.loss_function in NOT_NEGATIVE_LOSSES, model.target.kind == "number"
    for name in ("loss", "brier", "absolute", "squared"):
        if name not in tally:
            continue
        values, most = tally[name], tally["count"] * LARGEST_LOSS
        if sound and not bool(values.isfinite().all()):
            yield name, "no finite value"
        elif (
            (bool((values < 0).any()) and (known or name != "loss"))
            or (name == "brier" and bool((values > 2 * tally["count"] + CLOSE["rtol"]).any()))
            or (sound and known and not regression and bool((values > most).any()))
        ):
            yield name, "values out of range"


def _client_sums(tally: Mapping[str, Tensor], sound: bool) -> Iterator[tuple[str, str]]:
    """Faults in what the client adds to metrics over clients, all of which follows from its
    tally."""
    if "clients" not in tally:
        return
    known = ("count", "loss", accuracy_of(tally))
    metrics = [key for key, _ in metric_keys(tally).values()]
    plain = {name: tally[name] for name in (*known, *metrics) if name in tally}
    width = len(tally["client_accuracies"]) - 1 if "client_accuracies" in tally else CELLS
    expected = client_sums(plain, width)
    for name in (name for name in expected if name in tally):
        if name == "client_accuracies":
            cells, right = tally[name], int(expected[name].argmax())
            near = cells[max(0, right - 1) : right + 2]
            if not (float(cells.sum()) == float(near.max()) == 1.0 and bool((cells >= 0).all())):
                yield name, "a histogram that does not match its accuracy"
        elif not torch.allclose(
            tally[name],
            expected[name],
            equal_nan=not sound or name.startswith(CLIENT_METRIC),
            **CLOSE,
        ):
            yield name, "values that do not match its tally"
