"""Convolution with rules of its own for stacked clients, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenhand.layers.arrangement import settled, stacked
from evenhand.layers.convolution import Geometry, Wanted, convolution, convolution_backward
from evenhand.layers.form_choice import fastest_form
from evenhand.layers.forms import FORMS


class Convolution(torch.autograd.Function):
    """torch's convolution, with a rule of its own for stacked clients."""

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry, any_order: bool
    ) -> Tensor:
        return convolution(x, w, bias, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, ctx.how, ctx.any_order = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = (
            ctx.needs_input_grad[0],
            ctx.needs_input_grad[1],
            ctx.has_bias and ctx.needs_input_grad[2],
        )
        given = (gradients[0], *ctx.saved_tensors, ctx.how, wanted, ctx.any_order)
        found = iter(_Gradients.apply(*given))  # type: ignore[no-untyped-call]
        return (*(next(found) if want else None for want in wanted), None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        how: Geometry,
        any_order: bool,
    ) -> Any:
        x, w = (
            stacked(value, dim, info.batch_size)
            for value, dim in zip((x, w), in_dims[:2], strict=True)
        )
        bias = None if bias is None else stacked(bias, in_dims[2], info.batch_size)
        form = FORMS[fastest_form(x, w, how, any_order)]
        return settled(form.forward(x, w, bias, how), any_order), 0


class _Gradients(torch.autograd.Function):
    """The wanted gradients of a convolution, with a rule of its own for stacked clients."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted, any_order: bool
    ) -> tuple[Tensor, ...]:
        return tuple(
            found
            for found in convolution_backward(gradient, x, w, how, wanted)
            if found is not None
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *values, ctx.how, ctx.wanted, _ = inputs
        ctx.save_for_backward(*values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        def again(gradient: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            return tuple(
                found
                for found in convolution_backward(gradient, x, w, ctx.how, ctx.wanted)
                if found is not None
            )

        return (*torch.func.vjp(again, *ctx.saved_tensors)[1](gradients), None, None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        gradient: Tensor,
        x: Tensor,
        w: Tensor,
        how: Geometry,
        wanted: Wanted,
        any_order: bool,
    ) -> Any:
        gradient, x, w = (
            stacked(value, dim, info.batch_size)
            for value, dim in zip((gradient, x, w), in_dims[:3], strict=True)
        )
        form = FORMS[fastest_form(x, w, how, any_order)]
        of_x, *rest = form.backward(gradient, x, w, how, wanted)
        found = [None if of_x is None else settled(of_x, any_order), *rest]
        results = tuple(value for value in found if value is not None)
        return results, (0,) * len(results)
