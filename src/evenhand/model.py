"""A torch module and a per-sample loss, as pure functions of the parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evenhand import losses
from evenhand.calls import Call, OutputFunction
from evenhand.data.population import Population
from evenhand.data.samples import Batch
from evenhand.errors import require_choice
from evenhand.layers import choices
from evenhand.layers.stacked import fast_layers
from evenhand.norms import AFFINE, STATISTICS, Norms, NormTable, made_pure, norm_layers, real_rows
from evenhand.probing import check_fit
from evenhand.targets import Target
from evenhand.tree import Tree
from evenhand.unfit import refuse_unfit

PRECISIONS = ("fp32", "tf32", "bf16")


class Model:
    """A torch module and a loss, as pure functions of the parameters.

    Parameters that require gradients are trained and sent; frozen parameters and buffers are
    constants. The module is copied, never changed.

    Args:
        module: the network. Samples that are dicts are passed by name, tuples by position.
        loss: a name from ``evenhand.losses.LOSSES``, or a function ``(output, target) -> (B,)``.
        output: a function from what the module returns to the output that the loss gets. By default
            that is the tensor itself, a tuple's first entry, or ``logits``.
        normalisation: "frozen" keeps running statistics as they are, "local" takes BatchNorm out of
            the parameters; None accepts layers in evaluation mode only, whose statistics are kept.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str | losses.LossFunction = "cross_entropy",
        output: OutputFunction | None = None,
        normalisation: str | None = None,
    ) -> None:
        refuse_unfit(module, normalisation)
        self.loss_function = losses.resolve(loss)
        self.call = Call(module, output)
        # whether a client's loss is the sum over its samples, not the mean
        self.summed = self.loss_function in losses.SUMMED
        self._module = copy.deepcopy(module).eval()
        self.normalisation = normalisation
        pure = made_pure(self._module)
        local = pure if normalisation == "local" else {}
        # they stay in evaluation mode
        self._frozen = [name for name in norm_layers(module) if name not in local]
        self._threads, self._copies = threading.local(), threading.local()
        self._trains = False
        self._stacked = threading.local()  # constants of the clients of a stack, see using()
        self.adapts = hasattr(module, "peft_config")  # whether it adapts a base model, as peft does
        trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        # what a client's normalisation consists of: trained parameters, and running statistics
        self.affine, self.statistics = (
            [key for name in local for part in parts if (key := f"{name}.{part}".lstrip(".")) in of]
            for parts, of in ((AFFINE, trained), (STATISTICS, self._module.state_dict()))
        )
        # trained parameters that are sent and averaged
        self.shared = [name for name in trained if name not in self.affine]
        if not self.shared:
            raise ValueError(
                'normalisation="local" leaves nothing to share: all trained parameters belong to'
                " BatchNorm layers"
            )
        first = next(parameter for parameter in module.parameters() if parameter.requires_grad)
        self.dtype, self.device = first.dtype, first.device
        self.target = Target()  # what it predicts; set by check()
        # whether training draws random numbers (dropout); set by check()
        self.stochastic = False
        self.precision = "fp32"  # of matrix products; see with_precision
        # what else is evaluated, see evenhand.metrics.measuring
        self.metrics: tuple[Any, ...] = ()

    @property
    def classifies(self) -> bool:
        """Whether it predicts one class per sample; False before check()."""
        return self.target.kind == "class"

    @property
    def classes(self) -> int:
        """Number of classes of a classifier, 2 with one output; 0 for any other model."""
        return self.target.classes if self.classifies else 0

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return sum(value.numel() for value in self._module.parameters() if value.requires_grad)

    def has(self, kinds: tuple[type[nn.Module], ...]) -> bool:
        """Whether the module contains a layer of one of these types."""
        return any(isinstance(layer, kinds) for layer in self._module.modules())

    def to(self, device: torch.device) -> Model:
        """Return the same model with its constants on ``device``."""
        moved = copy.copy(self)
        moved._module = copy.deepcopy(self._module).to(device)
        moved._threads, moved._copies = threading.local(), threading.local()
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

    def factors(self) -> Tree:
        """Return the frozen parameters that inputs are multiplied by, as in a dense layer."""
        return {
            f"{prefix}.{name}".lstrip("."): parameter.detach()
            for prefix, layer in self._module.named_modules()
            if not isinstance(layer, nn.Embedding)
            for name, parameter in layer.named_parameters(recurse=False)
            if not parameter.requires_grad and parameter.ndim == 2
        }

    @contextmanager
    def using(self, constants: Tree) -> Iterator[None]:
        """Compute with these constants, in this thread."""
        self._stacked.constants = constants
        try:
            yield
        finally:
            del self._stacked.constants

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
        """Return the same model in training mode, with dropout; a new one is in evaluation mode."""
        twin = copy.copy(self)
        twin._trains, twin._threads = True, threading.local()
        return twin

    def _own(self) -> nn.Module:
        """Return this thread's module, into which ``functional_call`` puts the parameters."""
        own, mode = vars(self._copies), "training" if self._trains else "evaluation"
        if mode not in own:
            # transforms and recordings that are active in this thread must not notice
            own[mode] = choices.elsewhere(lambda: copy.deepcopy(self._module)).train(self._trains)
            for name in self._frozen:
                own[mode].get_submodule(name).eval()
        return cast(nn.Module, own[mode])

    def with_parameters_of(self, module: nn.Module) -> Model | None:
        """Return the same model with another module's parameters; None if layers or constants
        differ."""
        twin = Model(module, self.loss_function, self.call.output, self.normalisation).to(
            self.device
        )
        layers = [str(model._module) for model in (self, twin)]
        forms = [
            {name: (leaf.shape, leaf.dtype) for name, leaf in model.init().items()}
            for model in (self, twin)
        ]
        constants = [
            {
                key: value
                for key, value in model._module.state_dict().items()
                if key not in model.shared
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
            if name not in ("_module", "_threads", "_copies", "call"):
                setattr(twin, name, value)  # the results of check(), and the precision
        return twin

    def init(self) -> Tree:
        """Return the module's own parameters, where training starts; without local ones."""
        parameters = dict(self._module.named_parameters())
        return {name: parameters[name].detach().clone() for name in self.shared}

    def norms(self) -> Tree:
        """Return the module's own normalisation, if it is local; counts are numbers like others."""
        known = self._module.state_dict()
        return {
            name: known[name].detach().to(self.dtype, copy=True)
            for name in (*self.affine, *self.statistics)
        }

    @contextmanager
    def normalising(self, table: NormTable | None, weight: Tensor | None) -> Iterator[None]:
        """Compute with local normalisation, in this thread; ``weight`` (B,) is 0 for padding."""
        before = self._normalising
        self._threads.normalising = table, weight
        try:
            yield
        finally:
            self._threads.normalising = before

    @property
    def _normalising(self) -> tuple[NormTable | None, Tensor | None]:
        return getattr(self._threads, "normalising", (None, None))

    def output(self, params: Tree, x: Any) -> Tensor:
        """Return the module's output for ``x`` with parameters ``params``.

        ``x`` is a tensor, or a dict or tuple of tensors.
        """
        module, (args, kwargs) = self._own(), self.call.arguments(x)
        constants = getattr(self._stacked, "constants", {})
        if self.normalisation != "local":
            return self._call(module, {**constants, **params}, args, kwargs)
        table, weight = self._normalising
        norms = Norms(self.norms()) if table is None else table.of(params)
        values = {**constants, **norms.values, **params}
        with real_rows(module, weight):
            result = self._call(module, values, args, kwargs)
        if module.training and norms.after is None:
            norms.after = {name: values[name] for name in self.statistics}
        return result

    def _call(self, module: nn.Module, params: Tree, args: Any, kwargs: Any) -> Tensor:
        with fast_layers(module, self.device), self.call.stackable():
            if self.precision != "bf16" or self.device.type != "cuda":
                return self.call.read(functional_call(module, params, args, kwargs))
            with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
                result = self.call.read(functional_call(module, params, args, kwargs))
            return result.to(self.dtype)

    def losses(self, params: Tree, batch: Batch) -> Tensor:
        """Return (B,) one loss per sample, including padding."""
        with self.normalising(self._normalising[0], batch.weight):
            return self.loss_function(self.output(params, batch.x), batch.y)

    def loss(self, params: Tree, batch: Batch) -> Tensor:
        """Return the mean loss over real samples (their sum if ``summed``); 0 if there are none."""
        values = self.losses(params, batch)
        return total(values, batch) if self.summed else mean(values, batch)

    def whole(self) -> dict[str, Tensor]:
        """Return the module's own parameters and constants."""
        return dict(self._module.state_dict())

    def state_dict(
        self, params: Tree, constants: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return ``params`` and the constants under the keys of ``module.state_dict()``, on the
        CPU.

        A model of ``peft`` has its trained entries alone: its base model is stored elsewhere.

        Args:
            params: the trained parameters.
            constants: an earlier state_dict to take the constants from, instead of copies.
        """
        own = (*self._module.named_parameters(), *self._module.named_buffers())
        storage = {id(value): name for name, value in own}
        # tied weights appear under each of their names
        state = self._module.state_dict(keep_vars=True)
        names = {key: storage.get(id(value), key) for key, value in state.items()}
        if self.adapts:
            state = {key: value for key, value in state.items() if names[key] in params}
        return {
            key: constants[key]
            if constants is not None and names[key] not in params
            else params.get(names[key], value).detach().to("cpu", value.dtype, copy=True)
            for key, value in state.items()
        }

    def check(self, population: Population) -> None:
        """Raise before training if the module, the loss and the data do not fit together.

        Sets ``target`` and ``stochastic``.
        """
        check_fit(self, population)


def mean(values: Tensor, batch: Batch) -> Tensor:
    """Average (B,) values over the real samples of a batch; 0 if there are none."""
    return total(values, batch) / batch.weight.sum().clamp(min=1)


def total(values: Tensor, batch: Batch) -> Tensor:
    """Sum (B,) values over the real samples of a batch."""
    # torch.where, not a product: a padded sample's loss may be infinite, and 0 * inf is NaN
    return torch.where(batch.weight > 0, values, torch.zeros_like(values)).sum()
