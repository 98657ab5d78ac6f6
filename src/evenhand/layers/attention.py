"""Scaled dot-product attention in operations that torch can stack over clients.

torch's fused kernels cannot be stacked: under ``torch.vmap`` they run client by client.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return what ``torch.nn.functional.scaled_dot_product_attention`` returns, up to rounding."""
    if enable_gqa:  # several query heads share a key and a value
        heads = query.shape[-3]
        key, value = (
            kept.repeat_interleave(heads // kept.shape[-3], dim=-3) for kept in (key, value)
        )
    scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.mT
    if is_causal:
        earlier = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(earlier, scores, -math.inf)
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = torch.where(attn_mask, scores, -math.inf) if hidden else scores + attn_mask
    if is_causal or attn_mask is not None:  # a token that may look at nothing gets zeros
        blind = scores.amax(-1, keepdim=True) == -math.inf
        weights = torch.where(blind, 0.0, torch.where(blind, 0.0, scores).softmax(-1))
    else:
        weights = scores.softmax(-1)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, train=True)
    return weights @ value
