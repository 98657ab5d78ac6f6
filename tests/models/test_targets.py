"""What a model predicts: its kind, predictions, probabilities, and the share that is right."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from evenhand import losses
from evenhand.targets import Target, find

log3 = math.log(3)


def own(output: Tensor, y: Tensor) -> Tensor:
    return output.flatten(1).mean(1)


def of(loss: losses.LossFunction, output: tuple[int, ...], y: tuple[int, ...], **kind: object):
    return find(loss, torch.zeros(5, *output), torch.zeros(5, *y, **kind))


whole = {"dtype": torch.int64}
KINDS = [
    (losses.cross_entropy, (3,), (), whole, Target("class", 3)),
    (losses.brier, (1,), (), whole, Target("class", 2)),
    (losses.hinge, (), (), {}, Target("class", 2)),
    (losses.bce, (1,), (), whole, Target("class", 2)),
    (losses.focal, (1,), (), whole, Target("class", 2)),
    (losses.focal, (4,), (), whole, Target("class", 4)),
    (partial(losses.focal, gamma=1), (4,), (), whole, Target("class", 4)),
    (losses.bce, (4,), (4,), whole, Target("labels", 4, (4,))),
    (losses.focal, (4,), (4,), {}, Target("labels", 4, (4,))),
    (losses.bce, (1, 8, 8), (8, 8), whole, Target("positions", 2, (8, 8))),
    (losses.dice, (8, 8), (8, 8), whole, Target("positions", 2, (8, 8))),
    (losses.dice, (6,), (6,), whole, Target("positions", 2, (6,))),
    (losses.dice, (3, 8, 8), (8, 8), whole, Target("positions", 3, (8, 8), 1)),
    (losses.cross_entropy, (3, 8, 8), (8, 8), whole, Target("positions", 3, (8, 8), 1)),
    (losses.cross_entropy, (8, 8, 3), (8, 8), whole, Target("positions", 3, (8, 8), -1)),
    (losses.cross_entropy, (8, 8), (8,), whole, Target("positions", 8, (8,), -1)),
    (losses.cross_entropy, (8, 8, 8), (8, 8), whole, Target("positions", 8, (8, 8), 1)),
    (losses.ordinal, (3,), (), whole, Target("ordinal", 4)),
    (losses.mse, (), (), {}, Target("number")),
    (losses.mse, (3,), (), whole, Target("number")),
    (losses.huber, (2,), (2,), {}, Target("number", 0, (2,))),
    (own, (3,), (), whole, Target("class", 3)),
    (own, (1,), (), whole, Target("number")),
    (own, (), (), whole, Target("number")),
    (own, (3,), (), {}, Target("number")),
    (own, (2, 3), (), whole, Target("number")),
    (own, (7, 3), (7,), whole, Target("positions", 3, (7,), -1)),
    (own, (4,), (4,), whole, Target("number", 0, (4,))),
]


@pytest.mark.parametrize(("loss", "output", "y", "dtype", "expected"), KINDS)
def test_the_kind_follows_from_loss_shapes_and_types(
    loss: losses.LossFunction,
    output: tuple[int, ...],
    y: tuple[int, ...],
    dtype: dict[str, torch.dtype],
    expected: Target,
) -> None:
    assert of(loss, output, y, **dtype) == expected
    assert Target.from_json(expected.to_json()) == expected


def test_classes_are_predicted_by_the_largest_output_or_the_sign_of_one() -> None:
    output = torch.tensor([[0.0, log3], [0.0, 0.0]], dtype=torch.float64)
    target = Target("class", 2)
    assert target.predict(output).tolist() == [1, 0]
    assert target.probabilities(output)[0].tolist() == pytest.approx([1 / 4, 3 / 4])
    one = torch.tensor([[log3], [0.0], [math.nan]], dtype=torch.float64)
    assert target.predict(one).tolist() == [1, 0, 2]
    assert target.probabilities(one)[0].tolist() == pytest.approx([1 / 4, 3 / 4])
    assert target.right(one, torch.tensor([1, -1, 1])).tolist() == [1, 1, 0]


def test_labels_are_predicted_one_by_one() -> None:
    target = Target("labels", 3, (3,))
    output = torch.tensor([[log3, -1.0, math.nan], [1.0, 1.0, 1.0]], dtype=torch.float64)
    assert target.predict(output).tolist() == [[1, 0, 2], [1, 1, 1]]
    assert target.probabilities(output)[0, 0] == pytest.approx(3 / 4)
    labels = torch.tensor([[1, 1, 0], [1, 1, -100]])
    assert target.right(output, labels).tolist() == pytest.approx([1 / 3, 1])


@pytest.mark.parametrize("axis", [1, -1])
def test_positions_are_predicted_by_their_largest_class(axis: int) -> None:
    target = Target("positions", 3, (2,), axis)
    last = torch.tensor([[[0.0, log3, 0.0], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    output = last.movedim(-1, axis)
    assert target.predict(output).tolist() == [[1, 0]]
    assert target.probabilities(output).shape == (1, 2, 3)
    assert target.probabilities(output)[0, 0].tolist() == pytest.approx([1 / 5, 3 / 5, 1 / 5])
    assert target.right(output, torch.tensor([[1, 2]])).tolist() == [0.5]
    assert target.right(output, torch.tensor([[-100, 2]])).tolist() == [0]
    assert target.right(output, torch.tensor([[-100, -100]])).tolist() == [1]


def test_binary_masks_have_the_form_of_the_labels() -> None:
    target = Target("positions", 2, (2, 2))
    output = torch.tensor([[[[log3, -1.0], [1.0, 0.0]]]], dtype=torch.float64)  # (1, 1, 2, 2)
    assert target.predict(output).tolist() == [[[1, 0], [1, 0]]]
    assert target.probabilities(output).shape == (1, 2, 2, 2)
    assert target.probabilities(output)[0, 0, 0].tolist() == pytest.approx([1 / 4, 3 / 4])
    assert target.right(output, torch.tensor([[[1, 0], [0, 0]]])).tolist() == [3 / 4]
    ignored = torch.tensor([[[1, -100], [0, 1]]])  # where nothing is predicted
    assert target.right(output, ignored).tolist() == pytest.approx([1 / 3])


def test_levels_are_the_thresholds_that_are_exceeded() -> None:
    target = Target("ordinal", 4)
    # P(y > k) = 3/4, 1/4, 1/4; and not in order: 1/4, 3/4, 1/4
    output = torch.tensor([[log3, -log3, -log3], [-log3, log3, -log3]], dtype=torch.float64)
    assert target.predict(output).tolist() == [1, 1]
    for row in target.probabilities(output).tolist():
        assert row == pytest.approx([1 / 4, 1 / 2, 0, 1 / 4])
    assert target.right(output, torch.tensor([1, 2])).tolist() == [1, 0]
    assert target.predict(torch.full((1, 3), math.nan)).tolist() == [4]


def test_numbers_are_predicted_in_the_form_of_the_labels() -> None:
    output = torch.tensor([[1.0], [2.0]])
    assert Target("number").predict(output).tolist() == [1, 2]
    assert Target("number", 0, (1,)).predict(output).shape == (2, 1)
    assert Target("number", 0, (3,)).predict(output) is output  # a user's loss knows what it is
    assert Target("number").probabilities(output) is None
