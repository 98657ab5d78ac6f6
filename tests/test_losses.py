"""Losses against torch's own and against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from evenhand import losses


def test_cross_entropy_is_torchs() -> None:
    output, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 3, 2, 1, 1, 0])
    torch.testing.assert_close(losses.cross_entropy(output, y), F.cross_entropy(output, y, reduction="none"))


def test_brier_sums_squared_errors_over_classes() -> None:
    output = torch.log(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64))
    expected = (0.5 - 0) ** 2 + (0.3 - 1) ** 2 + (0.2 - 0) ** 2
    assert losses.brier(output, torch.tensor([1])).item() == pytest.approx(expected)


def test_brier_with_one_output_counts_both_classes() -> None:
    two = losses.brier(torch.tensor([[0.0, math.log(3)]], dtype=torch.float64), torch.tensor([1]))  # p = 3/4
    one = losses.brier(torch.tensor([[math.log(3)]], dtype=torch.float64), torch.tensor([1]))
    assert one.item() == pytest.approx(2 * (0.75 - 1) ** 2)
    torch.testing.assert_close(one, two)


def test_hinge_with_one_output_takes_both_label_conventions() -> None:
    score = torch.tensor([[0.3], [-2.0], [1.5]])
    expected = torch.tensor([1 + 0.3, 1 + 2.0, 0.0])
    torch.testing.assert_close(losses.hinge(score, torch.tensor([-1, 1, 1])), expected)
    torch.testing.assert_close(losses.hinge(score, torch.tensor([0, 1, 1])), expected)


def test_hinge_with_classes_is_crammer_and_singers() -> None:
    output = torch.tensor([[1.0, 0.5, -1.0], [0.0, 3.0, 1.0]])
    torch.testing.assert_close(losses.hinge(output, torch.tensor([1, 1])), torch.tensor([1 + 1.0 - 0.5, 0.0]))


def test_mse_takes_a_column_of_outputs_for_a_vector_of_targets() -> None:
    torch.testing.assert_close(losses.mse(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0])), torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(losses.mse(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]])), torch.tensor([(1 + 4) / 2]))
