from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Small tensors: threads would only wait for each other."""
    torch.set_num_threads(1)
