"""Convolutional networks from the papers' experiments: two convolutions, then dense layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import nn

from evenhand.errors import require, require_choice, require_number, require_whole
from evenhand.models.linear import initialise

VARIANTS: dict[str, dict[str, Any]] = {
    "femnist": {},
    "ditto": {"channels": (16, 32), "dropout": (0.25, 0.5), "init": "glorot"},
    "leaf": {"hidden": (2048,), "init": "glorot"},
    "pfl": {"kernel": 3, "padded": False, "pool": "last", "dropout": (0.25, 0.5), "init": "glorot"},
    "propfair": {"channels": (64, 64), "padded": False, "hidden": (384, 192), "dropout": 0.25},
}


class CNN(nn.Sequential):
    """Convolutions with ReLU and max-pooling by 2, then dense layers with ReLU.

    The named variants in :data:`VARIANTS`, with their number of parameters:

        femnist   5x5 conv 32, pool, 5x5 conv 64, pool, dense 128: the defaults, a middle-sized CNN
                  for 28 x 28 images. 461 630 for 62 classes
        ditto     5x5 conv 16, pool, 5x5 conv 32, pool, dropout 0.25, dense 128, dropout 0.5:
                  FEMNIST in Ditto's code (Li et al., ICML 2021), the "two convolution + two fully
                  connected" layers of GIFAIR-FL. 222 078 for 62 classes
        leaf      5x5 conv 32, pool, 5x5 conv 64, pool, dense 2048: FEMNIST in LEAF (Caldas et al.,
                  2018). 6 603 710 for 62 classes
        pfl       3x3 conv 32, 3x3 conv 64, both without padding, pool, dropout 0.25, dense 128,
                  dropout 0.5: CIFAR-10 and FEMNIST in the benchmarks of pfl-research (Granqvist et
                  al., 2024). 1 626 442 for CIFAR-10
        propfair  5x5 conv 64, pool, 5x5 conv 64, pool, both without padding, dropout 0.25, dense
                  384 and 192, dropout 0.25 after each: CINIC-10 in PropFair (Zhang et al., 2022).
                  The paper says only "2 conv + 3 FC". The rest follows its published
                  code, whose network has one dense layer less and normalises over channels; the
                  layer of 384 in place of that is our choice. 797 962 for CINIC-10

    ditto, leaf and pfl come from code with TensorFlow's initial values, init="glorot".

    Args:
        shape: channels, height and width of an image; without channels, height and width.
        outputs: classes.
        channels: of the convolutions, one number each.
        kernel: side of the filters.
        padded: whether a convolution keeps the size of its image (needs an odd kernel) or crops
            the border.
        pool: max-pooling after "each" convolution, or only after the "last" one.
        hidden: widths of the hidden dense layers.
        dropout: after the convolutions, and after each hidden dense layer; one number sets
            both.
        init: "torch" or "glorot", see :func:`evenhand.models.linear.initialise`.
    """

    def __init__(
        self,
        shape: Sequence[int] = (1, 28, 28),
        outputs: int = 62,
        channels: Sequence[int] = (32, 64),
        kernel: int = 5,
        padded: bool = True,
        pool: str = "each",
        hidden: Sequence[int] = (128,),
        dropout: float | Sequence[float] = 0.0,
        init: str = "torch",
    ) -> None:
        depth, *size = image_shape("CNN", shape)
        require_whole("outputs", outputs, 1)
        require_whole("kernel", kernel, 1)
        require(
            kernel % 2 == 1 or not padded,
            "kernel must be odd if padded, got {}; use an odd one, or padded=False",
            kernel,
        )
        require_choice("pool", pool, ("each", "last"))
        require_choice("init", init, ("torch", "glorot"))
        require(
            len(channels) > 0,
            "channels must have a number for each convolution, got {}; MLP has none",
            channels,
        )
        for width in (*channels, *hidden):
            require_whole("every entry of channels and hidden", width, 1)
        after_convolutions, after_dense = (
            (dropout, dropout) if isinstance(dropout, int | float) else dropout
        )
        for chance in (after_convolutions, after_dense):
            require_number("dropout", chance, "[0, 1)", "0 drops nothing")

        layers: list[nn.Module] = [] if len(shape) == 3 else [nn.Unflatten(1, (1, shape[0]))]
        for number, (narrow, wide) in enumerate(itertools.pairwise((depth, *channels)), 1):
            layers += [
                nn.Conv2d(narrow, wide, kernel, padding=kernel // 2 if padded else 0),
                nn.ReLU(),
            ]
            size = size if padded else [side - kernel + 1 for side in size]
            if pool == "each" or number == len(channels):
                layers.append(nn.MaxPool2d(2))
                size = [side // 2 for side in size]
        require(
            min(size) > 0,
            "images of {} are too small for these convolutions; use fewer or smaller ones",
            list(shape),
        )
        layers += [*_dropout(after_convolutions), nn.Flatten()]
        widths = (channels[-1] * size[0] * size[1], *hidden, outputs)
        for narrow, wide in itertools.pairwise(widths[:-1]):
            layers += [nn.Linear(narrow, wide), nn.ReLU(), *_dropout(after_dense)]
        super().__init__(*layers, nn.Linear(widths[-2], outputs))
        initialise(self, init)


def image_shape(model: str, shape: Sequence[int]) -> list[int]:
    """Channels, height and width; raises a ValueError unless samples of ``shape`` are images with
    channels first."""
    numbers = [int(side) for side in shape]
    if len(numbers) == 2:
        numbers = [1, *numbers]
    if len(numbers) != 3 or min(numbers) < 1:
        way_out = 'reshape x, or use the model "mlp"'
        raise ValueError(
            f"{model} needs images of shape (channels, height, width), got samples of shape"
            f" {list(shape)}; {way_out}"
        )
    if numbers[2] in (1, 3) and numbers[0] not in (1, 3):
        raise ValueError(
            f"{model} needs channels first, got samples of shape {list(shape)}; use x.permute(0, 3,"
            " 1, 2)"
        )
    return numbers


def _dropout(chance: float) -> list[nn.Module]:
    # no layer if nothing is dropped: it would draw random numbers all the same, and clients could
    # not be spread over threads
    return [nn.Dropout(chance)] if chance else []
