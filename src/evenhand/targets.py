"""What a model predicts: a class, several labels, a class per position, a level or numbers.

    class      one class per sample: C outputs, or one that is positive for class 1
    labels     L labels of 0 or 1 per sample, with one logit each (multi-label)
    positions  a class for every token or pixel: C outputs each, or one logit for binary masks
    ordinal    one level of K per sample, from K - 1 cumulative logits
    number     everything else: one number, or several

A :class:`Target` is found when a model is checked against data, from the loss and from shapes and
types alone: the server of a real federation has no labels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenhand import losses
from evenhand.losses import LossFunction, labelled, single_output

KINDS = ("class", "labels", "positions", "ordinal", "number")


@dataclass(frozen=True)
class Target:
    """What a model predicts for a sample.

    Args:
        kind: one of KINDS.
        classes: how many classes there are, per sample or per position; the number of labels or
            levels; 0 for numbers.
        form: the shape of a sample's labels.
        axis: for positions, the axis of the classes in an output, 1 or -1; None for one logit per
            position.
    """

    kind: str = "number"
    classes: int = 0
    form: tuple[int, ...] = ()
    axis: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**dataclasses.asdict(self), "form": list(self.form)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Target:
        """Return the target with these plain values."""
        return cls(**{**values, "form": tuple(values.get("form", ()))})

    @property
    def shares(self) -> bool:
        """Whether a sample has several labels, so that a share of them is right."""
        return self.kind in ("labels", "positions")

    def predict(self, output: Tensor) -> Tensor:
        """Return the predictions of outputs (B, ...), (B, *form).

        They are class numbers (0 and 1 with one output, also where the data say -1 and 1), 0 or 1
        for each label, levels, or the outputs themselves if they are numbers. Where an output is
        NaN there is no prediction, which is a class, label or level one above the highest.
        """
        if self.kind == "number":
            fits = output[:1].numel() == math.prod(self.form)
            return output.reshape(len(output), *self.form) if fits else output
        if self.kind == "class":
            return predictions(output)
        if self.kind == "ordinal":
            level = (output > 0).sum(-1)
            return torch.where(output.isnan().any(-1), self.classes, level)
        if self.kind == "positions" and self.axis is not None:
            return _largest(output.movedim(self.axis, -1))
        return _positive(output.reshape(len(output), *self.form))

    def probabilities(self, output: Tensor) -> Tensor | None:
        """Return the probabilities of outputs (B, ...); None for numbers.

        They are (B, C) of classes or levels, (B, L) of each label being 1, and (B, *S, C) of
        positions, also where one output decides between two classes. They are only as good as the
        loss: those of a hinge loss are no probabilities of anything.
        """
        if self.kind == "number":
            return None
        if self.kind == "labels":
            return output.reshape(len(output), *self.form).sigmoid()
        if self.kind == "ordinal":
            # in descending order, so that no level has a negative probability; the level that is
            # predicted is then the median
            above = output.sigmoid().sort(-1, descending=True).values
            ends = torch.ones_like(above[..., :1])
            return torch.cat([ends, above], -1) - torch.cat([above, 0 * ends], -1)
        if self.axis is None and (self.kind == "positions" or single_output(output)):
            score = output.reshape(len(output), *self.form)
            return torch.stack([(-score).sigmoid(), score.sigmoid()], -1)
        return output.movedim(-1 if self.axis is None else self.axis, -1).softmax(-1)

    def right(self, output: Tensor, y: Tensor) -> Tensor:
        """Return (B,) the share of each sample's labels that are predicted; 0 for numbers.

        It is 0 or 1 with one label per sample. Ignored labels do not count, and a sample without
        any other has a share of 1.
        """
        if self.kind == "number":
            return torch.zeros(len(y), dtype=torch.float64, device=output.device)
        codes = (y > 0).long() if self._binary(output) else y
        hit = self.predict(output) == codes
        if not self.shares:
            return hit.double()
        there = labelled(y)
        hits, of = ((one & there).flatten(1).sum(1).double() for one in (hit, there))
        return torch.where(of > 0, hits / of.clamp(min=1), 1.0)

    def _binary(self, output: Tensor) -> bool:
        return (self.kind == "class" and single_output(output)) or (
            self.shares and self.axis is None
        )


def find(function: LossFunction, output: Tensor, y: Tensor) -> Target:
    """Return what a model with such outputs predicts for labels ``y`` with this loss.

    A user's own loss has classes if labels are integers and the output has one more axis, with at
    least two entries; otherwise, it has numbers.
    """
    named, form = losses.unwrapped(function), tuple(y.shape[1:])
    if named is losses.ordinal:
        return Target("ordinal", output.shape[-1] + 1)
    if named in losses.REGRESSING:
        return Target("number", 0, form)
    axis = losses.class_axis(output.shape, y.shape)
    ours = named in losses.CLASSIFYING or named in losses.MASKED
    if ours and losses.one_score_per_label(output, y):
        if y.ndim == 1:
            return Target("class", 2)
        if output.ndim == y.ndim == 2 and named is not losses.dice:
            return Target("labels", form[0], form)
        return Target("positions", 2, form)
    if not ours and (y.is_floating_point() or axis is None or output.shape[axis] < 2):
        return Target("number", 0, form)
    assert axis is not None, "losses are checked before targets"
    classes = output.shape[axis]
    return Target("class", classes) if y.ndim == 1 else Target("positions", classes, form, axis)


def predictions(output: Tensor) -> Tensor:
    """Return (B,) the predicted class; the number of classes for none.

    The class of several outputs is the largest; a single output is a score that is positive for the
    positive class. An output with a NaN is no prediction.
    """
    return _positive(output.reshape(len(output))) if single_output(output) else _largest(output)


def _positive(score: Tensor) -> Tensor:
    return torch.where(score.isnan(), 2, (score > 0).long())


def _largest(scores: Tensor) -> Tensor:
    largest, place = scores.max(-1)  # the first of several; a NaN is the largest of all
    return torch.where(largest.isnan(), scores.shape[-1], place)
