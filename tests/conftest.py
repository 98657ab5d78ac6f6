from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

# the same examples every time: a new counterexample is found by whoever looks for one (HYPOTHESIS_PROFILE=search), not by CI
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Small tensors: threads would only wait for each other."""
    torch.set_num_threads(1)
