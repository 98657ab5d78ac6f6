"""Modules that a spec can name: functions of a sample's shape, the number of outputs, a seed and
options.

Initial parameters depend only on the seed; torch's generators are not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from evenhand.errors import require
from evenhand.models.cnn import CNN, VARIANTS
from evenhand.models.linear import MLP, Linear
from evenhand.models.recurrent import CharLSTM, TextLSTM, WordLSTM
from evenhand.models.resnet import ResNet18

Shape = Sequence[int]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also seed the GPUs
        torch.default_generator.manual_seed(seed)
        yield


def linear(shape: Shape, outputs: int, seed: int, init: str = "torch") -> nn.Module:
    """Logistic regression on flattened samples, or with outputs = 1 a linear score; see
    :class:`Linear`."""
    with seeded(seed):
        return Linear(math.prod(shape), outputs, init)


def mlp(
    shape: Shape, outputs: int, seed: int, hidden: Sequence[int] = (64,), init: str = "torch"
) -> nn.Module:
    """Dense layers with ReLU between them; see :class:`MLP`."""
    with seeded(seed):
        return MLP(math.prod(shape), outputs, hidden, init)


def cnn(
    shape: Shape,
    outputs: int,
    seed: int,
    variant: str = "femnist",
    channels: Sequence[int] | None = None,
    kernel: int | None = None,
    padded: bool | None = None,
    pool: str | None = None,
    hidden: Sequence[int] | None = None,
    dropout: float | Sequence[float] | None = None,
    init: str | None = None,
) -> nn.Module:
    """Convolutions and dense layers; see :class:`CNN`. None means as in the variant."""
    require(
        variant in VARIANTS, "variant must be one of {}, got {!r}", ", ".join(VARIANTS), variant
    )
    given = {
        "channels": channels,
        "kernel": kernel,
        "padded": padded,
        "pool": pool,
        "hidden": hidden,
        "dropout": dropout,
        "init": init,
    }
    with seeded(seed):
        return CNN(
            shape,
            outputs,
            **{
                **VARIANTS[variant],
                **{key: value for key, value in given.items() if value is not None},
            },
        )


def char_lstm(
    shape: Shape,
    outputs: int,
    seed: int,
    symbols: int = 80,
    embedding: int = 8,
    units: int = 256,
    layers: int = 2,
) -> nn.Module:
    """Predicts the next of ``symbols`` characters; see :class:`CharLSTM`."""
    _require_tokens("char_lstm", shape, "characters")
    require(
        outputs <= symbols,
        "symbols must be at least {}, the number of labels, got {}",
        outputs,
        symbols,
    )
    with seeded(seed):
        return CharLSTM(symbols, embedding, units, layers)


def word_lstm(
    shape: Shape,
    outputs: int,
    seed: int,
    embedding: int = 96,
    units: int = 670,
    layers: int = 1,
    dense: Sequence[int] = (96,),
) -> nn.Module:
    """Predicts the next of ``outputs`` words; see :class:`WordLSTM`."""
    _require_tokens("word_lstm", shape, "words")
    with seeded(seed):
        return WordLSTM(outputs, embedding, units, layers, dense)


def text_lstm(
    shape: Shape,
    outputs: int,
    seed: int,
    vectors: str | Tensor = "glove",
    dimensions: int = 100,
    most: int | None = None,
    root: Path | str | None = None,
    units: int = 100,
    layers: int = 2,
    dense: int = 30,
) -> nn.Module:
    """Predicts a class from word codes; see :class:`TextLSTM`.

    Args:
        vectors: "glove" reads them from the data root, as the data set did; or a tensor (words,
            dimensions).
        dimensions, most, root: of :func:`evenhand.data.text.glove`; must be those of the data
            set.
    """
    _require_tokens("text_lstm", shape, "words")
    if isinstance(vectors, str):
        from evenhand.data.text import glove

        require(
            vectors == "glove",
            'vectors must be "glove" or a tensor (words, dimensions), got {!r}',
            vectors,
        )
        vectors = glove(root, dimensions, most).vectors
    with seeded(seed):
        return TextLSTM(vectors, outputs, units, layers, dense)


def resnet18(
    shape: Shape, outputs: int, seed: int, stem: str = "cifar", groups: int = 2
) -> nn.Module:
    """ResNet-18 with group normalisation; see :class:`ResNet18`."""
    with seeded(seed):
        return ResNet18(shape, outputs, stem, groups)


def _require_tokens(model: str, shape: Shape, what: str) -> None:
    message = (
        "{} needs samples that are sequences of {} as whole numbers, shape [length], got shape {};"
        ' for numbers use "mlp"'
    )
    require(len(shape) == 1, message, model, what, list(shape))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "char_lstm": char_lstm,
    "word_lstm": word_lstm,
    "text_lstm": text_lstm,
    "resnet18": resnet18,
}
