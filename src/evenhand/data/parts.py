"""The splits of a client's data; apart from the rest, because some programs do without torch."""

from __future__ import annotations

PARTS = ("train", "val", "test")
