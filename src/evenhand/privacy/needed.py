"""Packages of the extra ``evenhand[privacy]``, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any


def import_needed(module: str) -> Any:
    """Import a module of the extra; raise a one-line ImportError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"differential privacy needs {package}: pip install {package} (extra:"
            " evenhand[privacy])"
        ) from error
