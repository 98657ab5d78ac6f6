"""A torch module and a per-sample loss, as pure functions of the parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evenhand import losses, tree
from evenhand.data.population import Population
from evenhand.data.samples import Batch, Samples
from evenhand.errors import first_line, require_choice
from evenhand.layers.stacked import fast_layers
from evenhand.tree import Tree

PRECISIONS = ("fp32", "tf32", "bf16")


class Model:
    """A torch module and a loss, as pure functions of the parameters.

    Parameters that require gradients are trained and sent; frozen parameters and buffers are
    constants. The module is copied, never changed. Layers with running statistics are refused.

    Args:
        module: the network.
        loss: a name from ``evenhand.losses.LOSSES``, or a function ``(output, target) -> (B,)``.
    """

    def __init__(
        self, module: nn.Module, loss: str | losses.LossFunction = "cross_entropy"
    ) -> None:
        _refuse_unfit(module)
        self.loss_function = losses.resolve(loss)
        # whether a client's loss is the sum over its samples, not the mean
        self.summed = self.loss_function in losses.SUMMED
        self._module = copy.deepcopy(module).eval()
        self._threads = threading.local()
        self._names = [
            name for name, parameter in module.named_parameters() if parameter.requires_grad
        ]
        first = next(parameter for parameter in module.parameters() if parameter.requires_grad)
        self.dtype, self.device = first.dtype, first.device
        # whether outputs are class scores, so that accuracy is defined; set by check()
        self.classifies = False
        self.classes = 0  # 2 for one output; 0 if unknown, or not a classifier; set by check()
        # whether training draws random numbers (dropout); set by check()
        self.stochastic = False
        self.precision = "fp32"  # of matrix products; see with_precision

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return sum(
            parameter.numel() for parameter in self._module.parameters() if parameter.requires_grad
        )

    def has(self, kinds: tuple[type[nn.Module], ...]) -> bool:
        """Whether the module contains a layer of one of these types."""
        return any(isinstance(layer, kinds) for layer in self._module.modules())

    def to(self, device: torch.device) -> Model:
        """Return the same model with its constants on ``device``."""
        moved = copy.copy(self)
        moved._module, moved._threads = copy.deepcopy(self._module).to(device), threading.local()
        moved.device = device
        return moved

    def with_precision(self, precision: str) -> Model:
        """Return the same model with matrix products in another precision.

        "fp32" uses the module's own precision. On a GPU, "tf32" rounds inputs to 10 bits and "bf16"
        rounds layers' inputs and outputs to 7 bits. Parameters, sums and losses keep full
        precision.
        """
        require_choice("precision", precision, PRECISIONS)
        twin = copy.copy(self)
        twin.precision = precision
        return twin

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Compute in the model's precision; torch's own settings are restored afterwards."""
        if self.device.type != "cuda":
            yield
            return
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        wanted = self.precision == "tf32"
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = wanted
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before

    def training(self) -> Model:
        """Return the same model in training mode (dropout on); a new model is in evaluation
        mode."""
        twin = copy.copy(self)
        twin._module, twin._threads = copy.deepcopy(self._module).train(), threading.local()
        return twin

    def with_parameters_of(self, module: nn.Module) -> Model | None:
        """Return the same model with another module's parameters; None if layers or constants
        differ."""
        twin = Model(module, self.loss_function).to(self.device)
        layers = [str(model._module) for model in (self, twin)]
        forms = [
            {name: (leaf.shape, leaf.dtype) for name, leaf in model.init().items()}
            for model in (self, twin)
        ]
        constants = [
            {
                key: value
                for key, value in model._module.state_dict().items()
                if key not in model._names
            }
            for model in (self, twin)
        ]
        if (
            layers[0] != layers[1]
            or forms[0] != forms[1]
            or constants[0].keys() != constants[1].keys()
        ):
            return None
        if not all(torch.equal(value, constants[1][key]) for key, value in constants[0].items()):
            return None
        for name, value in vars(self).items():
            if name not in ("_module", "_threads"):
                setattr(twin, name, value)  # the results of check(), and the precision
        return twin

    def init(self) -> Tree:
        """Return the module's own parameters, where training starts."""
        parameters = dict(self._module.named_parameters())
        return {name: parameters[name].detach().clone() for name in self._names}

    def output(self, params: Tree, x: Tensor) -> Tensor:
        """Return the module's output for ``x`` with parameters ``params``."""
        # functional_call puts the parameters into the module while it runs, so each thread needs
        # its own module
        if not hasattr(self._threads, "module"):
            self._threads.module = copy.deepcopy(self._module)
        with fast_layers(self._threads.module, self.device):
            if self.precision != "bf16" or self.device.type != "cuda":
                result: Tensor = functional_call(self._threads.module, params, (x,))
                return result
            with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
                result = functional_call(self._threads.module, params, (x,))
            return result.to(self.dtype)

    def losses(self, params: Tree, batch: Batch) -> Tensor:
        """Return (B,) one loss per sample, including padding."""
        return self.loss_function(self.output(params, batch.x), batch.y)

    def loss(self, params: Tree, batch: Batch) -> Tensor:
        """Return the mean loss over real samples (their sum if ``summed``); 0 if there are none."""
        values = self.losses(params, batch)
        return total(values, batch) if self.summed else mean(values, batch)

    def state_dict(self, params: Tree) -> dict[str, Tensor]:
        """Return ``params`` and the constants under the keys of ``module.state_dict()``, on the
        CPU."""
        storage = {id(parameter): name for name, parameter in self._module.named_parameters()}
        # tied weights appear under each of their names
        state = self._module.state_dict(keep_vars=True)
        full = {key: params.get(storage.get(id(value), key), value) for key, value in state.items()}
        return {key: value.detach().cpu().clone() for key, value in full.items()}

    def check(self, population: Population) -> None:
        """Raise before training if the module, the loss and the data do not fit together."""
        for given in population.examples():
            samples = given.to(self.dtype, torch.device("cpu"))
            if (
                isinstance(samples.x, Tensor)
                and samples.x.dtype != given.x.dtype
                and not bool(torch.isfinite(samples.x).all())
            ):
                raise ValueError(
                    f"some features are too large for the module's {self.dtype}; scale them, or use"
                    " module.double()"
                )
            probe = Batch(
                Samples(*(values[:2].to(self.device) for values in samples)),
                *self._first(len(given.x)),
            )
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                self._probe(probe, given)
                before = self._random_state()
                self.training().output(self.init(), probe.x)
                self.stochastic |= not torch.equal(before, self._random_state())

    def _first(self, count: int) -> tuple[Tensor, Tensor]:
        index = torch.arange(min(2, count), device=self.device)
        return index, torch.ones(len(index), device=self.device, dtype=self.dtype)

    def _random_state(self) -> Tensor:
        return (
            torch.cuda.get_rng_state(self.device)
            if self.device.type == "cuda"
            else torch.get_rng_state()
        )

    def _probe(self, batch: Batch, given: Samples) -> None:
        rows = len(batch.x)
        try:
            output = self.output(tree.map(Tensor.requires_grad_, self.init()), batch.x)
        except Exception as error:
            hint = (
                ""
                if given.x.is_floating_point()
                else "; x has integers, so convert it to float unless they are tokens"
            )
            shape = list(given.x.shape[1:])
            problem = f"the module does not accept samples of shape {shape} ({given.x.dtype})"
            raise ValueError(f"{problem}: {first_line(error)}{hint}") from error
        if not isinstance(output, Tensor) or output.shape[:1] != (rows,):
            got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                f"the module must return a tensor with one row per sample, got {got} for {rows}"
                " samples"
            )
        losses.check(self.loss_function, output, given.y)
        try:
            values = self.loss_function(output, batch.y)
        except Exception as error:
            shapes = f"outputs {list(output.shape)} and labels {list(batch.y.shape)}"
            raise ValueError(f"the loss fails on {shapes}: {first_line(error)}") from error
        if not isinstance(values, Tensor) or values.shape != (rows,):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"the loss must return one value per sample, shape [{rows}], got {got} for outputs"
                f" {list(output.shape)}; do not reduce over samples"
            )
        alone = self.loss_function(self.output(self.init(), batch.x[:1]), batch.y[:1])
        if not torch.allclose(
            alone[0], values[0], rtol=1e-3, atol=1e-6, equal_nan=True
        ):  # a client whose data are not finite is skipped later
            shapes = f"output {list(output.shape)}, target {list(batch.y.shape)}"
            raise ValueError(
                "a sample's loss depends on the other samples in its batch; check that module and"
                f" loss treat samples independently ({shapes})"
            )
        named = self.loss_function in losses.CLASSIFYING
        scores = (
            output.ndim == 2
            and output.shape[1] > 1
            and batch.y.ndim == 1
            and not batch.y.is_floating_point()
        )
        self.classifies = named or (scores and self.loss_function is not losses.mse)
        outputs = 2 if losses.single_output(output) else output.shape[1]
        self.classes = outputs if self.classifies else 0
        if not values.requires_grad:
            raise ValueError(
                "the loss does not depend on the module's parameters, so nothing would be trained;"
                " remove .detach()"
            )


def mean(values: Tensor, batch: Batch) -> Tensor:
    """Average (B,) values over the real samples of a batch; 0 if there are none."""
    return total(values, batch) / batch.weight.sum().clamp(min=1)


def total(values: Tensor, batch: Batch) -> Tensor:
    """Sum (B,) values over the real samples of a batch."""
    # torch.where, not a product: a padded sample's loss may be infinite, and 0 * inf is NaN
    return torch.where(batch.weight > 0, values, torch.zeros_like(values)).sum()


def _refuse_unfit(module: Any) -> None:
    if not isinstance(module, nn.Module):
        got = (
            f"the class {module.__name__}; call it"
            if isinstance(module, type)
            else type(module).__name__
        )
        raise TypeError(f"module must be a torch.nn.Module, got {got}")
    for name, part in module.named_modules():
        norm = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if norm or getattr(part, "track_running_stats", False):
            width = getattr(part, "num_features", 0) or "channels"
            raise ValueError(
                f"layer {name or 'itself'!r} ({type(part).__name__}) keeps running statistics or"
                " normalises over batches, which clients cannot share; use nn.GroupNorm(groups,"
                f" {width}) instead"
            )
    if any(
        isinstance(parameter, nn.parameter.UninitializedParameter)
        for parameter in module.parameters()
    ):
        raise ValueError(
            "the module has lazy layers without shapes; call it once on a sample before training"
        )
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError(
            "the module has no parameters that require gradients; there is nothing to train"
        )
    if len({parameter.dtype for parameter in trained}) > 1 or not trained[0].is_floating_point():
        raise ValueError(
            "all trained parameters need one floating-point dtype; convert with module.float() or"
            " module.double()"
        )
    bad = [
        name
        for name, parameter in module.named_parameters()
        if not bool(torch.isfinite(parameter).all())
    ]
    if bad:
        raise ValueError(f"parameter {bad[0]!r} of the module is not finite; initialise it again")
