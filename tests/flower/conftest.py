from __future__ import annotations

import logging
import os

import pytest


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and nodes write a file in every round; none of these tests turns the power off."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def _loggers_enabled() -> None:
    """Flower's database, set up in a test's own process, disables all loggers that are there."""
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("evenhand") and isinstance(logger, logging.Logger):
            logger.disabled = False
