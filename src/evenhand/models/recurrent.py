"""Recurrent networks for characters and words."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.errors import require, require_whole
from evenhand.models.lstm import LSTM


class CharLSTM(nn.Module):
    """The next character from the characters before it: embedding, LSTM layers, a dense layer on
    the last state.

    The network for Shakespeare in LEAF (Caldas et al., 2018), q-FFL, GIFAIR-FL and PropFair: 80
    symbols, embedding 8, two layers of 256: 819 920 parameters. Starts as PyTorch's layers do (LEAF
    and q-FFL: TensorFlow's, with a forget bias of 1).
    """

    def __init__(
        self, symbols: int = 80, embedding: int = 8, units: int = 256, layers: int = 2
    ) -> None:
        super().__init__()
        require_whole("symbols", symbols, 2)
        require_whole("embedding", embedding, 1)
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = LSTM(embedding, units, layers)
        self.last = nn.Linear(units, symbols)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.lstm(self.embedding(x))[:, -1])
        return scores


class TextLSTM(nn.Module):
    """A class from a text's word codes: frozen word vectors, LSTM layers, two dense layers on the
    last state.

    The network for Sent140 in q-FFL's code (Li et al., ICLR 2020): two layers of 100 units, a dense
    layer of 30 without activation, one of 2. Like there, the last state is that after the last
    position, padding included. Trained parameters: 164 692 for vectors of length 100, 244 692 for
    300. Starts as PyTorch's layers do.

    Args:
        vectors: (V, d), row = code of a word. They are not trained, do not travel, and are not in
            the state_dict.
        outputs: classes.
        units, layers: of the LSTM.
        dense: width of the first dense layer.
    """

    def __init__(
        self, vectors: Tensor, outputs: int = 2, units: int = 100, layers: int = 2, dense: int = 30
    ) -> None:
        super().__init__()
        require(
            isinstance(vectors, Tensor) and vectors.ndim == 2,
            "vectors must be a tensor (words, dimensions), got {}",
            _kind(vectors),
        )
        for name, value in (("outputs", outputs), ("dense", dense)):
            require_whole(name, value, 1)
        self.words = FrozenVectors(vectors)
        self.lstm = LSTM(vectors.shape[1], units, layers)
        self.dense, self.last = nn.Linear(units, dense), nn.Linear(dense, outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.dense(self.lstm(self.words(x))[:, -1]))
        return scores


class FrozenVectors(nn.Module):
    """Rows of a constant matrix by their number. Copies share the matrix: it may have hundreds of
    megabytes."""

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors.detach(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.vectors)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenVectors:
        return FrozenVectors(self.vectors)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.vectors.shape))


def _kind(value: Any) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
