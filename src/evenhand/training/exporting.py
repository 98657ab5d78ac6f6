"""Export a trained network to a file that runs without evenhand: torch.export or ONNX.

The file is written beside its place, loaded, and run on batches of other sizes than the example.
It takes its place only if its outputs are those of the network.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evenhand.calls import Call, OutputFunction
from evenhand.data.nested import Nested
from evenhand.data.views import View
from evenhand.errors import EvenhandError, brief, require, require_choice
from evenhand.files import cannot_write
from evenhand.training.deciding import Trained
from evenhand.training.exporters import load_onnx, load_torch, quiet, reason, save_onnx, save_torch
from evenhand.training.readout import Readout, flat, like
from evenhand.version import __version__

FORMATS = ("torch", "onnx")
SUFFIXES = {".pt2": "torch", ".onnx": "onnx"}
SIZES = (1, 5)  # of the batches the file is run on
EXAMPLES = 3  # samples of the batch it is traced with
# the largest difference allowed, relative to the largest output where that exceeds 1
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
COARSE = 2e-2  # of types with less precision

Run = Callable[[tuple[Tensor, ...]], Tensor]


class ExportError(EvenhandError):
    """A network cannot be exported."""


@dataclass(frozen=True)
class Exported:
    """A written file, which has been run and compared with the network.

    Attributes:
        path: the file.
        format: "torch" or "onnx".
        difference: the largest difference between an output of the file and of the network.
        tolerance: the largest difference that would have been accepted.
        inputs: name and shape of each input; "batch" is the number of samples.
    """

    path: Path
    format: str
    difference: float
    tolerance: float
    inputs: Mapping[str, tuple[str | int, ...]]

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        what = {"torch": "torch.export", "onnx": "ONNX"}[self.format]
        taken = ", ".join(
            f"{name} [{', '.join(map(str, shape))}]" for name, shape in self.inputs.items()
        )
        return (
            f"{self.path}: {what}, inputs {taken}; its outputs differ from the network's by at"
            f" most {self.difference:.1e} (up to {self.tolerance:.1e} is accepted)"
        )


def export(
    module: nn.Module,
    path: str | Path,
    example: Any,
    *,
    format: str | None = None,
    output: OutputFunction | None = None,
    about: Mapping[str, Any] | None = None,
) -> Exported:
    """Write a network to a file and check the file.

    Args:
        module: the network, in evaluation mode and on the CPU.
        example: samples as the module takes them: a tensor (N, ...), or a dict or tuple of such
            tensors. The number of samples stays free in the file, other sizes do not.
        format: "torch" or "onnx"; by default what the file's suffix says, .pt2 or .onnx.
        output: takes the output out of what the module returns; None for the usual places.
        about: what to store in the file, as plain values by name.
    """
    target = Path(path)
    chosen = _format(target, format)
    readout = Readout(module, Call(module, output), _samples(module, example))
    batch = readout.batch(EXAMPLES)
    facts = {"evenhand": __version__, **(about or {})}
    program = _traced(readout, batch)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as place:
            made = Path(place) / target.name
            run = _written(program, made, chosen, facts, readout)
            difference, tolerance = _difference(readout, run, chosen)
            for file in Path(place).iterdir():  # weights of more than 2 GB have a file of their own
                os.replace(file, target.parent / file.name)
    except OSError as error:
        raise cannot_write(target, error) from error
    inputs = {
        name: ("batch", *one.shape[1:]) for name, one in zip(readout.names, batch, strict=True)
    }
    return Exported(target, chosen, difference, tolerance, inputs)


def described(
    trained: Trained, algorithm: str, client: str | int | None, names: Sequence[str] = ()
) -> dict[str, Any]:
    """What an exported file says about its model; ``names`` are those of the labels."""
    labels = trained.counts.labels if trained.counts is not None else ()
    encoding = trained.encoding
    found: dict[str, Any] = {
        "algorithm": algorithm,
        "client": "" if client is None else str(client),
        "labels": list(names or labels),
        "features": list(encoding.features) if encoding else [],
        "label": encoding.label if encoding else "",
        "thresholds": "" if trained.decision is None else trained.decision.to_json(),
    }
    if encoding is not None and encoding.task == "regression":
        found |= {"label_mean": encoding.label_mean, "label_std": encoding.label_std}
    return {key: value for key, value in found.items() if value not in ("", [])}


def _format(path: Path, given: str | None) -> str:
    if given is not None:
        require_choice("format", given, FORMATS)
        return given
    require(
        path.suffix in SUFFIXES,
        "the name of an export must end in .pt2 (torch.export) or .onnx, got {}; or give"
        ' format="torch" or format="onnx"',
        repr(path.name),
    )
    return SUFFIXES[path.suffix]


def _samples(module: nn.Module, example: Any) -> Any:
    """The example as tensors on the CPU, numbers in the network's own type."""
    dtype = next(module.parameters()).dtype

    def one(value: Any) -> Tensor:
        try:
            tensor = torch.as_tensor(value).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                "example must be a tensor (N, ...), or a dict or tuple of such tensors, got"
                f" {brief(value)}"
            ) from error
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    if isinstance(example, Nested | View):
        example = example[:]
    samples = like(example, one)
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in flat(samples).values()}
    require(
        len(lengths) == 1 and min(lengths) > 0,
        "example must have the same number of samples, at least one, in every input; got {}",
        sorted(lengths),
    )
    return samples


def _traced(readout: Readout, batch: tuple[Tensor, ...]) -> Any:
    """The network as a program of torch.export whose number of samples is free."""
    size = torch.export.Dim("batch")
    free = {name: {0: size} for name in readout.names}
    args, named = readout.arguments(batch)
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(readout, args, named, dynamic_shapes=free)
    except Exception as error:  # torch raises many kinds
        raise ExportError(f"torch.export cannot export this network: {reason(error)}") from error


def _written(
    program: Any, path: Path, format: str, facts: Mapping[str, Any], readout: Readout
) -> Run:
    """Write a program and return what the file computes."""
    if format == "torch":
        save_torch(program, path, facts)
        loaded = load_torch(path)

        def run_torch(batch: tuple[Tensor, ...]) -> Tensor:
            args, named = readout.arguments(batch)
            with torch.no_grad():
                result: Tensor = loaded(*args, **named)
            return result

        return run_torch
    try:
        save_onnx(program, path, readout.names, facts)
    except ImportError:
        raise
    except OSError:
        raise
    except Exception as error:  # of the exporter
        raise ExportError(f"ONNX cannot hold this network: {reason(error)}") from error
    try:
        session = load_onnx(path)
    except Exception as error:  # of the runtime, which lacks some operators for some types
        raise ExportError(
            f"onnxruntime cannot run this network: {reason(error)}; nothing was kept; train it in"
            ' float32, or use format="torch"'
        ) from error
    used = {entry.name for entry in session.get_inputs()}  # the network may ignore some

    def run_onnx(batch: tuple[Tensor, ...]) -> Tensor:
        given = {
            name: one.numpy()
            for name, one in zip(readout.names, batch, strict=True)
            if name in used
        }
        return torch.as_tensor(session.run(None, given)[0])

    return run_onnx


def _difference(readout: Readout, run: Run, format: str) -> tuple[float, float]:
    """The largest difference of outputs, and the tolerance; raises if it is exceeded."""
    largest = tolerance = 0.0
    for size in SIZES:
        batch = readout.batch(size, first=1)
        with torch.no_grad():
            wanted = readout(*batch)
        try:
            with quiet():
                found = run(batch)
        except Exception as error:  # of the runtime
            raise ExportError(
                f"the exported file fails on {size} sample{'s' * (size != 1)}: {reason(error)};"
                " nothing was kept"
            ) from error
        if found.shape != wanted.shape:
            raise ExportError(
                f"the exported file returns shape {list(found.shape)} for {size}"
                f" sample{'s' * (size != 1)}, and the network {list(wanted.shape)}; nothing was"
                " kept"
            )
        relative = TOLERANCE.get(wanted.dtype, COARSE)
        wanted, found = wanted.double(), found.double()
        scale = float(wanted.nan_to_num().abs().max()) if wanted.numel() else 0.0
        tolerance = max(tolerance, relative * max(1.0, scale))
        same = (wanted == found) | (wanted.isnan() & found.isnan())
        apart = (wanted - found).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)
        largest = max(largest, float(apart.max()) if apart.numel() else 0.0)
    if largest > tolerance:
        raise ExportError(
            f"outputs of the exported file differ from the network's by {largest:.1e}, more than"
            f" {tolerance:.1e}; nothing was kept"
            + ('; try format="torch"' if format == "onnx" else "")
        )
    return largest, tolerance
