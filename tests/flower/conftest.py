from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and nodes write a file in every round; none of these tests turns the power off."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
