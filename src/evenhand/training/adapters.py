"""Adapters of PEFT, written in PEFT's own form."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from evenhand.errors import require
from evenhand.files import cannot_write

ADAPTER = "adapter"  # the folder of the adapter in a method's folder
FILES = tuple(f"{ADAPTER}/adapter_{name}" for name in ("config.json", "model.safetensors"))


def is_adapted(module: nn.Module) -> bool:
    """Whether a module is a model of PEFT: a base model with adapters."""
    return hasattr(module, "peft_config") and hasattr(module, "save_pretrained")


def save_adapter(module: nn.Module, directory: Path) -> Path:
    """Write the adapter of a trained PEFT model: its configuration and its numbers."""
    require(
        is_adapted(module),
        "{} has no adapter; make one with get_peft_model of peft before training",
        type(module).__name__,
    )
    adapted: Any = module
    card = directory / "README.md"
    kept = card.exists()
    try:
        with warnings.catch_warnings():  # about a base model that was not downloaded
            warnings.simplefilter("ignore")
            adapted.save_pretrained(str(directory))
        if not kept:  # a form with nothing filled in
            card.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(directory, error) from error
    return directory
