"""Losses for several labels per sample, levels and robust regression: torch's numbers, numbers by
hand, extreme outputs, and labels that do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import evenhand as eh
from evenhand import losses
from evenhand.label_checks import check


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(4))


# ---- against torch


def test_bce_is_torchs_averaged_over_the_labels_of_a_sample() -> None:
    output, y = drawn(6, 4), classes(2, 6, 4)
    expected = F.binary_cross_entropy_with_logits(output, y.double(), reduction="none").mean(1)
    torch.testing.assert_close(losses.bce(output, y), expected)
    torch.testing.assert_close(losses.bce(output, y.double()), expected)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_bce_with_one_output_takes_both_label_conventions(shape: tuple[int, ...]) -> None:
    output, y = drawn(*shape), torch.tensor([0, 1, 1, 0, 1, 0])
    expected = F.binary_cross_entropy_with_logits(output.reshape(6), y.double(), reduction="none")
    torch.testing.assert_close(losses.bce(output, y), expected)
    torch.testing.assert_close(losses.bce(output, 2 * y - 1), expected)


def test_huber_is_torchs_averaged_over_the_entries_of_a_target() -> None:
    output, y = 2 * drawn(5, 3), drawn(6, 3)[1:]
    expected = F.huber_loss(output, y, reduction="none", delta=1.0).mean(1)
    torch.testing.assert_close(losses.huber(output, y), expected)
    torch.testing.assert_close(
        losses.huber(output[:, :1], y[:, 0]),
        F.huber_loss(output[:, 0], y[:, 0], reduction="none"),
    )
    narrow = partial(losses.huber, delta=0.1)
    assert float(narrow(torch.tensor([2.0]), torch.tensor([0.0]))) == pytest.approx(
        0.1 * (2 - 0.05)
    )


@pytest.mark.parametrize("loss", [losses.mse, losses.huber])
def test_regression_takes_whole_numbers(loss: losses.LossFunction) -> None:
    output, y = drawn(6, 2).float().requires_grad_(), classes(5, 6, 2)
    (found,) = torch.autograd.grad(loss(output, y).sum(), output)
    (expected,) = torch.autograd.grad(loss(output, y.float()).sum(), output)
    assert torch.equal(found, expected)


LAYOUTS: dict[str, tuple[Tensor, Tensor, int]] = {  # outputs, labels, axis of the classes
    "pixels, classes first": (drawn(4, 3, 5, 6), classes(3, 4, 5, 6), 1),
    "pixels, classes last": (drawn(4, 5, 6, 3), classes(3, 4, 5, 6), -1),
    "tokens, classes last": (drawn(4, 7, 3), classes(3, 4, 7), -1),
    "tokens, classes first": (drawn(4, 3, 7), classes(3, 4, 7), 1),
    "as many tokens as classes": (drawn(4, 3, 3), classes(3, 4, 3), -1),
    "as many rows and columns as classes": (drawn(4, 3, 3, 3), classes(3, 4, 3, 3), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cross_entropy_of_positions_is_torchs_with_ignored_labels(layout: str) -> None:
    output, y, axis = LAYOUTS[layout]
    y = y.clone()
    y[0].view(-1)[:2] = -100
    y[1] = -100  # a sample without labels
    torchs = output.movedim(axis, 1)
    expected = [
        F.cross_entropy(torchs[i : i + 1], y[i : i + 1], ignore_index=-100) for i in range(4)
    ]
    found = losses.cross_entropy(output, y)
    assert found[1] == 0
    for i in (0, 2, 3):
        torch.testing.assert_close(found[i], expected[i])


def test_an_ignored_position_has_no_gradient() -> None:
    output, y = drawn(2, 3, 5).requires_grad_(), classes(3, 2, 5)
    y[0, 2] = -100
    losses.cross_entropy(output, y).sum().backward()
    assert output.grad is not None
    assert not output.grad[0, :, 2].any()
    assert output.grad[0, :, 1].any()


# ---- by hand


def test_focal_shrinks_the_cross_entropy_of_easy_samples() -> None:
    # probabilities 1/2, 1/4 and 1/4; the label has 1/4
    output = torch.log(torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64))
    expected = (3 / 4) ** 2 * math.log(4)
    assert losses.focal(output, torch.tensor([1])).item() == pytest.approx(expected)
    assert losses.focal(output, torch.tensor([1]), gamma=0).item() == pytest.approx(math.log(4))
    # a token and a pixel, each as its label alone; and one that is ignored
    tokens = torch.stack([output, -output], 1)  # (1, 2, 3)
    assert losses.focal(tokens, torch.tensor([[1, -100]])).item() == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("output", [[[200.0, -200.0]], [[200.0]]])
def test_focal_has_a_gradient_where_the_label_is_certain(
    gamma: float, output: list[list[float]]
) -> None:
    logits = torch.tensor(output, requires_grad=True)
    label = torch.tensor([0 if len(output[0]) == 2 else 1])
    loss = losses.focal(logits, label, gamma=gamma)
    loss.sum().backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_focal_takes_one_output_per_label() -> None:
    output = torch.tensor([[math.log(3.0), 0.0]], dtype=torch.float64)  # p = 3/4 and 1/2
    labels = torch.tensor([[0, 1]])
    expected = ((3 / 4) ** 2 * math.log(4) + (1 / 2) ** 2 * math.log(2)) / 2
    assert losses.focal(output, labels).item() == pytest.approx(expected)
    alone = losses.focal(output[:, :1], torch.tensor([-1]))
    assert alone.item() == pytest.approx((3 / 4) ** 2 * math.log(4))


@pytest.mark.parametrize("form", [(1, 1, 2, 2), (1, 2, 2)])
def test_dice_of_a_binary_mask(form: tuple[int, ...]) -> None:
    # p = 3/4, 1/2, 1/4, 1/2, of which the first two are inside
    output = torch.tensor([math.log(3), 0, -math.log(3), 0], dtype=torch.float64).reshape(form)
    y = torch.tensor([[[1, 1], [0, 0]]])
    expected = 1 - (2 * (3 / 4 + 1 / 2) + 1) / (2 + 2 + 1)
    assert losses.dice(output, y).item() == pytest.approx(expected)
    y[0, 0, 1] = -100
    expected = 1 - (2 * (3 / 4) + 1) / (3 / 4 + 1 / 4 + 1 / 2 + 1 + 1)
    assert losses.dice(output, y).item() == pytest.approx(expected)


def test_dice_of_classes_is_the_mean_over_all_of_them() -> None:
    # two pixels with probabilities (1/2, 1/4, 1/4) and (1/4, 1/2, 1/4), of classes 0 and 1
    output = torch.tensor([[[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]]], dtype=torch.float64).log()
    of_first = (2 * (1 / 2) + 1) / (3 / 4 + 1 + 1)
    of_third = 1 / (1 / 2 + 0 + 1)  # no pixel has it
    expected = 1 - (2 * of_first + of_third) / 3
    assert losses.dice(output, torch.tensor([[0, 1]])).item() == pytest.approx(expected)


def test_dice_without_a_mask_is_small_if_nothing_is_predicted() -> None:
    outside = torch.full((1, 1, 2, 2), -50.0, dtype=torch.float64)
    assert losses.dice(outside, torch.zeros(1, 2, 2).long()).item() == pytest.approx(0, abs=1e-12)
    assert losses.dice(-outside, torch.zeros(1, 2, 2).long()).item() == pytest.approx(1 - 1 / 5)


def test_ordinal_adds_the_cross_entropies_of_all_thresholds() -> None:
    # P(y > 0) = 3/4, P(y > 1) = 1/2, P(y > 2) = 1/4; the level is 2
    output = torch.tensor([[math.log(3), 0.0, -math.log(3)]], dtype=torch.float64)
    expected = -math.log(3 / 4) - math.log(1 / 2) - math.log(1 - 1 / 4)
    assert losses.ordinal(output, torch.tensor([2])).item() == pytest.approx(expected)
    two = losses.ordinal(output[:, :1], torch.tensor([1]))  # two levels: the binary cross-entropy
    assert two.item() == pytest.approx(-math.log(3 / 4))


# ---- extremes, and vectorised gradients

CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], Tensor]] = {
    "bce": (losses.bce, (4, 3), classes(2, 4, 3)),
    "bce, one output": (losses.bce, (4, 1), classes(2, 4)),
    "focal": (losses.focal, (4, 3), classes(3, 4)),
    "focal, labels": (losses.focal, (4, 3), classes(2, 4, 3)),
    "focal, pixels": (losses.focal, (4, 3, 2, 5), classes(3, 4, 2, 5)),
    "huber": (losses.huber, (4, 2), drawn(4, 2)),
    "dice": (losses.dice, (4, 1, 2, 5), classes(2, 4, 2, 5)),
    "dice, classes": (losses.dice, (4, 3, 2, 5), classes(3, 4, 2, 5)),
    "ordinal": (losses.ordinal, (4, 3), classes(4, 4)),
    "cross_entropy": (losses.cross_entropy, (4, 3, 5), classes(3, 4, 5)),
    "tokens": (losses.cross_entropy, (4, 7, 3), classes(3, 4, 7)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
def test_losses_and_gradients_are_finite_and_not_negative(case: str, scale: float) -> None:
    loss, shape, y = CASES[case]
    output = (scale * drawn(*shape)).float().requires_grad_()
    values = loss(output, y.float() if case == "huber" else y)
    assert values.shape == (4,)
    assert bool((values >= 0).all())
    assert bool(values.isfinite().all())
    values.sum().backward()
    assert output.grad is not None
    assert bool(output.grad.isfinite().all())


@pytest.mark.parametrize("case", CASES)
def test_clients_side_by_side_have_the_gradients_of_each_alone(case: str) -> None:
    loss, shape, y = CASES[case]
    outputs = drawn(3, *shape)  # of three clients
    labels = torch.stack([y, y.flip(0), y.roll(1, 0)])
    slope = torch.func.grad(lambda output, label: loss(output, label).sum())
    together = torch.func.vmap(slope)(outputs, labels)
    for k in range(3):
        torch.testing.assert_close(together[k], slope(outputs[k], labels[k]))
        output = outputs[k].clone().requires_grad_()
        loss(output, labels[k]).sum().backward()
        torch.testing.assert_close(together[k], output.grad)


# ---- labels and outputs that do not fit

pixels = torch.zeros(4, 2, 5).long()
unknown = pixels.clone()
unknown[3] = -100
WRONG: dict[str, tuple[str, tuple[int, ...], Tensor, str]] = {
    "labels of 2": (
        *("bce", (4, 3), torch.tensor([[0, 1, 2]] * 4)),
        r"bce with one output per label needs labels 0/1, found 0..2",
    ),
    "fractions": (
        *("bce", (4, 3), torch.full((4, 3), 0.5)),
        r"bce needs class labels, but y has fractions such as 0.5",
    ),
    "signs of several labels": (
        *("bce", (4, 3), torch.tensor([[-1, 1, 1]] * 4)),
        r"bce with one output per label needs labels 0/1, found -1..1",
    ),
    "too few outputs": (
        *("bce", (4, 2), torch.zeros(4, 3).long()),
        r"bce needs one output per label; got outputs \[2\] and labels \[3\] per sample",
    ),
    "class outputs": (
        *("bce", (4, 3), torch.zeros(4).long()),
        r"bce needs one output per label, but the module returns 3 numbers per sample and y has"
        r" one label; end the module with one output, or use cross_entropy",
    ),
    "one label of 2": (
        *("bce", (4, 1), torch.tensor([0, 1, 2, 0])),
        r"bce with one output needs labels 0/1 or -1/1, found 0..2",
    ),
    "another mask": (
        *("dice", (4, 1, 5, 2), pixels),
        r"dice: outputs \[1, 5, 2\] and labels \[2, 5\] have different shapes; make them equal",
    ),
    "no mask": ("dice", (4, 3), torch.zeros(4).long(), r"dice needs masks, but y has one label"),
    "no class axis": (
        *("cross_entropy", (4, 3, 2, 6), pixels),
        r"cross_entropy needs outputs \(batch, classes, \*labels\) or \(batch, \*labels, classes\);"
        r" got outputs \[3, 2, 6\] and labels \[2, 5\] per sample",
    ),
    "one class": ("cross_entropy", (4, 1, 2, 5), pixels, r"cross_entropy needs outputs \(batch,"),
    "a pixel's class": (
        *("focal", (4, 3, 2, 5), pixels + 3),
        r"label 3 is out of range: the module has 3 outputs, so labels must be 0..2",
    ),
    "float classes": (
        *("cross_entropy", (4, 3, 2, 5), pixels.float()),
        r"cross_entropy needs integer labels, but y is torch.float32",
    ),
    "all ignored": (
        *("cross_entropy", (4, 3, 2, 5), unknown),
        r"sample 3 has no labels: all are -100; leave it out of the data",
    ),
    "a level too high": (
        *("ordinal", (4, 3), torch.tensor([0, 1, 4, 2])),
        r"label 4 is out of range: the module has 3 outputs \(4 levels\), so labels must be 0..3",
    ),
    "float levels": ("ordinal", (4, 3), torch.zeros(4), r"ordinal needs one whole level per"),
    "ordinal outputs": (
        *("ordinal", (4, 3, 2), torch.zeros(4).long()),
        r"ordinal needs a module output of shape \(batch, levels - 1\), got \[4, 3, 2\]",
    ),
    "numbers": (
        *("huber", (4, 3), torch.zeros(4, 2)),
        r"huber: the module returns 3 numbers per sample, but y has 2; make them equal",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_labels_that_do_not_fit_are_refused_in_one_line(case: str) -> None:
    name, shape, y, message = WRONG[case]
    with pytest.raises(ValueError, match=message) as error:
        check(losses.LOSSES[name], torch.zeros(shape), y)
    assert "\n" not in str(error.value)


def test_one_hot_rows_still_have_their_own_message() -> None:
    with pytest.raises(ValueError, match=r"for one-hot rows use y.argmax\(1\)"):
        check(losses.cross_entropy, torch.zeros(4, 3), torch.eye(4, 3).long())


def test_a_loss_with_other_settings_is_checked_like_the_named_one() -> None:
    fed = eh.Federation(eh.Part(torch.zeros(4, 2), torch.full((4,), 3), torch.tensor([0, 4])))
    with pytest.raises(ValueError, match="label 3 is out of range"):
        eh.Model(nn.Linear(2, 3), partial(losses.focal, gamma=1.0)).check(fed)
