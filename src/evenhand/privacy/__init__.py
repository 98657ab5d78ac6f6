"""Differential privacy for clients: plans before a run, bounds, noise and accounting."""

from __future__ import annotations

from evenhand.privacy.planning import Plan, plan
from evenhand.privacy.record import Privacy

__all__ = ["Plan", "Privacy", "plan"]
