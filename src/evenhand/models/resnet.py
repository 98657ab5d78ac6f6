"""A residual network without running statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.errors import require, require_choice, require_whole
from evenhand.models.cnn import image_shape

# channels and stride of the first convolution; two blocks each
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))


class ResNet18(nn.Module):
    """ResNet-18 (He et al., CVPR 2016) with group normalisation instead of batch
    normalisation.

    Running statistics of batches cannot be shared between clients; group normalisation has none
    (Hsieh et al., ICML 2020). PropFair's experiments on CIFAR (Zhang et al., 2022) use 2 groups and
    the ImageNet stem. It has as many parameters as with batch normalisation: 11 181 642 for ten
    classes with the ImageNet stem, 11 173 962 with CIFAR's.

    Initial values are torchvision's: convolutions normal with variance 2 / (outputs * filter area),
    normalisation 1 and 0, dense layer as PyTorch's default.

    Args:
        shape: channels, height and width of an image.
        outputs: classes.
        stem: "cifar", a 3x3 convolution that keeps the size, or "imagenet", a 7x7 one with stride 2
            and max-pooling by 2.
        groups: number of groups for the channels of a layer; must divide 64.
    """

    def __init__(
        self,
        shape: Sequence[int] = (3, 32, 32),
        outputs: int = 10,
        stem: str = "cifar",
        groups: int = 2,
    ) -> None:
        super().__init__()
        depth = image_shape("ResNet18", shape)[0]
        require_whole("outputs", outputs, 1)
        require_choice("stem", stem, ("cifar", "imagenet"))
        require_whole("groups", groups, 1)
        require(
            64 % groups == 0,
            "groups must divide the 64 channels of the first stage, got {}; the papers use 2",
            groups,
        )
        self._add_channel = len(shape) == 2
        if stem == "cifar":
            first: list[nn.Module] = [
                nn.Conv2d(depth, 64, 3, padding=1, bias=False),
                nn.GroupNorm(groups, 64),
                nn.ReLU(),
            ]
        else:
            first = [
                nn.Conv2d(depth, 64, 7, stride=2, padding=3, bias=False),
                nn.GroupNorm(groups, 64),
                nn.ReLU(),
            ]
            first.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*first)
        blocks, narrow = [], 64
        for wide, stride in STAGES:
            blocks += [Block(narrow, wide, stride, groups), Block(wide, wide, 1, groups)]
            narrow = wide
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(narrow, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) if self._add_channel else x
        features: Tensor = self.blocks(self.stem(x))
        scores: Tensor = self.last(features.mean((-2, -1)))
        return scores


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, narrow: int, wide: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(narrow, wide, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(groups, wide)
        self.second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(groups, wide)
        changes = stride != 1 or narrow != wide
        projection = (
            (nn.Conv2d(narrow, wide, 1, stride=stride, bias=False), nn.GroupNorm(groups, wide))
            if changes
            else ()
        )
        self.shortcut = nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))
