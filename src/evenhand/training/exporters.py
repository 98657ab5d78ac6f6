"""torch.export and ONNX: write, load, and say in one line what went wrong."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ABOUT = "evenhand.json"  # the extra file with what a .pt2 file says about itself
EXTRA = (
    "ONNX files need onnx, onnxscript and onnxruntime: pip install onnx onnxscript onnxruntime"
    " (extra: evenhand[onnx])"
)
MISSING = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)'")
RAISED = re.compile(
    r"The following call raised this error:\s*File \"[^\"]*\", line \d+, in (.*)\s+(.*)"
)
RUNTIME = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
FIXED = "your code specialized it to be a constant"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what exporters print, log and warn about; what matters is checked afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def save_torch(program: Any, path: Path, facts: Mapping[str, Any]) -> None:
    """Write a program as torch.export does; ``facts`` become a JSON file inside it."""
    about = json.dumps(dict(facts), ensure_ascii=False)
    with quiet():
        torch.export.save(program, path, extra_files={ABOUT: about})


def load_torch(path: Path) -> Callable[..., Tensor]:
    """The module in a file of torch.export."""
    with quiet():
        loaded: Callable[..., Tensor] = torch.export.load(path).module()
    return loaded


def save_onnx(program: Any, path: Path, inputs: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Write a program as ONNX does; ``facts`` become metadata properties, lists as JSON."""
    _onnx_runtime()
    with quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            output_names=["output"],
            dynamic_shapes={name: {0: "batch"} for name in inputs},
        )
        if made is None:
            raise RuntimeError("torch.onnx returned no program")
        for name, value in facts.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            made.model.metadata_props[name] = text
        made.save(path)


def load_onnx(path: Path) -> Any:
    """A session of onnxruntime on the CPU."""
    runtime = _onnx_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _onnx_runtime() -> Any:
    try:
        with quiet():
            import onnx
            import onnxruntime
            import onnxscript
    except ImportError as error:
        raise ImportError(EXTRA) from error
    del onnx, onnxscript  # torch.onnx needs them
    return onnxruntime


def reason(error: BaseException) -> str:
    """The first reason that an exporter gives, in one line."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    whole = "\n".join(map(str, causes))
    if found := MISSING.search(whole):
        name = found[1].replace("::", ".")
        return f'ONNX has no operator for {name}; replace it in the network, or use format="torch"'
    if FIXED in whole:
        return (
            "its forward depends on the number of samples, for example through len(x); write"
            " x.shape[0]"
        )
    first = next((line for line in str(causes[-1]).splitlines() if line.strip()), "").strip()
    first = RUNTIME.sub("", re.sub(r" \(unhinted: .*", "", first)).rstrip(".")
    if found := RAISED.search(whole):
        return f"{_short(first)} at `{_short(found[2].strip())}` in {found[1].strip()}"
    return _short(first) or type(error).__name__


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
