"""Recurrent networks for characters and words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evenhand.errors import require, require_whole
from evenhand.models.lstm import LSTM


class CharLSTM(nn.Module):
    """Predicts the next character from those before it: embedding, LSTM layers, a dense layer on
    the last state.

    The network for Shakespeare in LEAF (Caldas et al., 2018), q-FFL, GIFAIR-FL and PropFair: 80
    symbols, embedding 8, two layers of 256: 819 920 parameters. PropFair's paper has one layer:
    293 584. Initial values are PyTorch's (LEAF and q-FFL: TensorFlow's, with a forget bias of 1).
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


class WordLSTM(nn.Module):
    """Predicts the next word from those before it: embedding, LSTM layers, dense layers without
    activation on the last state.

    The network for Stack Overflow in Reddi et al. (ICLR 2021) and PropFair ("1 LSTM + 2 FC"):
    10 004 words, embedding 96, one layer of 670, dense 96, dense to the words: 4 053 428
    parameters. (Keras has one bias where PyTorch has two: 4 050 748.) Initial values are
    PyTorch's.

    Codes 0 before the first word are padding, which is skipped as with a mask.

    Args:
        words: codes of words, and outputs.
        embedding: length of a word's vector.
        units, layers: of the LSTM.
        dense: widths of the dense layers before the last one; () for none.
    """

    def __init__(
        self,
        words: int = 10_004,
        embedding: int = 96,
        units: int = 670,
        layers: int = 1,
        dense: Sequence[int] = (96,),
    ) -> None:
        super().__init__()
        require_whole("words", words, 2)
        require_whole("embedding", embedding, 1)
        require(isinstance(dense, list | tuple), "dense must be a list of widths, got {}", dense)
        for width in dense:
            require_whole("every entry of dense", width, 1)
        self.embedding = nn.Embedding(words, embedding)
        self.lstm = LSTM(embedding, units, layers)
        self.dense = nn.Sequential(
            *(nn.Linear(*pair) for pair in itertools.pairwise((units, *dense, words)))
        )

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        padding = ((x != 0).cumsum(1) == 0).sum(1, keepdim=True)  # in front
        # words first, padding after them; the state after the last word is used
        words = x.gather(1, (torch.arange(length, device=x.device) + padding) % length)
        states = self.lstm(self.embedding(words))
        last = (length - 1 - padding).clamp(min=0)[..., None].expand(-1, -1, states.shape[2])
        scores: Tensor = self.dense(states.gather(1, last).squeeze(1))
        return scores


class TextLSTM(nn.Module):
    """Predicts a class from a text's word codes: frozen word vectors, LSTM layers, one or two dense
    layers on the last state.

    The network for Sent140 in q-FFL's code (Li et al., ICLR 2020): two layers of 100 units, a dense
    layer of 30 without activation, one of 2. FAFL's paper says "two LSTM layers and one dense
    layer": ``dense=0``. As there, the last state is the one after the last position, padding
    included. Trained parameters: 164 692 for vectors of length 100, 244 692 for 300. Initial values
    are PyTorch's.

    Args:
        vectors: (V, d), the row is the code of a word. They are not trained, not sent, and not in
            the state_dict.
        outputs: classes.
        units, layers: of the LSTM.
        dense: width of the first dense layer; 0 for none.
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
        require_whole("outputs", outputs, 1)
        require_whole("dense", dense, 0)
        self.words = FrozenVectors(vectors)
        self.lstm = LSTM(vectors.shape[1], units, layers)
        self.dense = nn.Linear(units, dense) if dense else nn.Identity()
        self.last = nn.Linear(dense or units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.dense(self.lstm(self.words(x))[:, -1]))
        return scores


class FrozenVectors(nn.Module):
    """Looks up rows of a constant matrix. Copies share the matrix, which may take hundreds of
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
