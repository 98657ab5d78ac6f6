"""Linear models and dense networks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from evenhand.errors import require, require_choice, require_whole

INITS = ("torch", "glorot", "zero")


class Linear(nn.Sequential):
    """One dense layer on flattened samples: logistic regression, or with one output and the hinge
    loss a linear SVM.

    Parameters: inputs * outputs + outputs. q-FFL's code (Li et al., ICLR 2020) starts its logistic
    regression on Fashion-MNIST with ``init="glorot"`` (784 to 3: 2355) and its SVM on Vehicle with
    ``init="zero"`` and one output (100 to 1: 101).

    Args:
        inputs: numbers in a sample.
        outputs: classes, or 1 for a score.
        init: see :func:`initialise`.
    """

    def __init__(self, inputs: int, outputs: int, init: str = "torch") -> None:
        require_whole("inputs", inputs, 1)
        require_whole("outputs", outputs, 1)
        super().__init__(nn.Flatten(), nn.Linear(inputs, outputs))
        initialise(self, init)


class MLP(nn.Sequential):
    """Dense layers with ReLU between them, on flattened samples.

    Parameters: the sum of (from + 1) * to over the layers; 784 - 200 - 10 has 159 010.
    ``hidden=()`` is :class:`Linear`.

    Args:
        inputs: numbers in a sample.
        outputs: classes, or 1 for a score.
        hidden: widths of the hidden layers.
        init: "torch" or "glorot", see :func:`initialise`; "zero" would keep hidden units equal.
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: Sequence[int] = (64,), init: str = "torch"
    ) -> None:
        require_whole("inputs", inputs, 1)
        require_whole("outputs", outputs, 1)
        wide = isinstance(hidden, list | tuple) and all(
            isinstance(width, int) and width >= 1 for width in hidden
        )
        require(wide, "hidden must be a list of widths >= 1, got {}", hidden)
        require(
            init != "zero" or not hidden,
            'init must be "torch" or "glorot" if there are hidden layers, got "zero"',
        )
        layers = [
            layer
            for pair in itertools.pairwise([inputs, *hidden, outputs])
            for layer in (nn.ReLU(), nn.Linear(*pair))
        ]
        super().__init__(nn.Flatten(), *layers[1:])
        initialise(self, init)


def initialise(module: nn.Module, init: str) -> None:
    """Initialise the dense and convolutional layers of ``module``.

    "torch" leaves PyTorch's default: weights and biases uniform within 1 / sqrt(inputs of a unit).
    "glorot", the default of TensorFlow and so of many papers' code: weights uniform within sqrt(6 /
    (inputs + outputs)), biases 0. "zero": all 0.
    """
    require_choice("init", init, INITS)
    if init == "torch":
        return
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            if init == "glorot":
                nn.init.xavier_uniform_(layer.weight)
            else:
                nn.init.zeros_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
