"""Attention for stacked clients: torch's own attention, client by client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import evenhand as eh
from evenhand.layers.attention import attention

GENERATOR = torch.Generator().manual_seed(0)
CLIENTS, BATCH, HEADS, QUERIES, KEYS, WIDTH = 3, 2, 4, 5, 6, 3


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def values(heads: int = HEADS, queries: int = QUERIES) -> tuple[torch.Tensor, ...]:
    rows = (CLIENTS, BATCH)
    return (
        numbers(*rows, HEADS, queries, WIDTH),
        numbers(*rows, heads, KEYS, WIDTH),
        numbers(*rows, heads, KEYS, WIDTH),
    )


SEEN = torch.rand(BATCH, 1, QUERIES, KEYS, generator=GENERATOR) > 0.4
SEEN[0, 0, 0] = False  # the first query sees nothing
CASES: dict[str, tuple[tuple[torch.Tensor, ...], dict[str, Any]]] = {
    "plain": (values(), {}),
    "another scale": (values(), {"scale": 0.3}),
    "a mask that hides": (values(), {"attn_mask": SEEN}),
    "a mask that is added": (values(), {"attn_mask": numbers(BATCH, 1, QUERIES, KEYS)}),
    "causal": (values(queries=KEYS), {"is_causal": True}),
    "shared keys": (values(heads=2), {"enable_gqa": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_torchs(case: str) -> None:
    inputs, options = CASES[case]

    def of(function: Any) -> Any:
        def summed(*tensors: torch.Tensor) -> torch.Tensor:
            weight = torch.arange(WIDTH, dtype=torch.float64)
            total: torch.Tensor = (function(*tensors, **options).nan_to_num() * weight).sum()
            return total

        return summed

    stacked = torch.func.vmap(torch.func.grad_and_value(of(attention), argnums=(0, 1, 2)))
    gradients, found = stacked(*inputs)
    for client in range(CLIENTS):
        own = [tensor[client].clone().requires_grad_() for tensor in inputs]
        wanted = of(F.scaled_dot_product_attention)(*own)
        torch.testing.assert_close(found[client], wanted.detach(), rtol=0, atol=1e-12)
        for gradient, expected in zip(gradients, torch.autograd.grad(wanted, own), strict=True):
            torch.testing.assert_close(gradient[client], expected, rtol=0, atol=1e-12)


def test_dropout_keeps_the_expected_value() -> None:
    (query, key, value), _ = CASES["plain"]
    torch.manual_seed(0)
    many = [attention(query[0], key[0], value[0], dropout_p=0.4) for _ in range(3000)]
    mean, spread = torch.stack(many).mean(0), torch.stack(many).std(0) / 3000**0.5
    plain = attention(query[0], key[0], value[0])
    assert ((mean - plain).abs() < 5 * spread + 1e-12).all()
    assert not torch.equal(many[0], many[1])


class Encoder(nn.Module):
    """torch's own transformer, which hides padding (zeros) and the future from every position."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        future = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        seen = self.encoder(x, mask=future, src_key_padding_mask=(x == 0).all(-1), is_causal=True)
        return self.head(seen.mean(1))


def test_torchs_transformer_layers_stack_and_engines_agree(recwarn: Any) -> None:
    torch.manual_seed(0)
    module = Encoder().double()
    clients = []
    for count in (5, 9):
        x = torch.randn(count, 6, 8, dtype=torch.float64)
        x[::2, 4:] = 0
        clients.append({"x": x, "y": torch.arange(count) % 3})
    fed = eh.Federation.from_arrays(clients)
    local = eh.LocalSGD(lr=0.1, epochs=1, batch_size=4)
    loop, stacked = (
        eh.fit(module, fed, eh.AFL(), rounds=2, local=local, engine=engine)
        for engine in ("loop", "vmap")
    )
    for key, value in loop.params.items():
        torch.testing.assert_close(stacked.params[key], value, rtol=0, atol=1e-12)
    assert not [str(w.message) for w in recwarn if "batching rule" in str(w.message)]
