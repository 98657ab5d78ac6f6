"""What a run says about its masked sums, in words; loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenhand.errors import RunError
from evenhand.secure.settings import SecureSums

ABOUT = "about.json"  # of a run directory


def settings_in(run: Path) -> Mapping[str, Any] | None:
    """The settings of masked sums of the run in a directory; None without."""
    with suppress(OSError, ValueError, AttributeError):
        about = json.loads((run / ABOUT).read_text(encoding="utf-8"))
        found = about.get("federation", {}).get("masked")
        # earlier versions did not hide counts
        return {"counts": "visible", **found} if isinstance(found, Mapping) else None
    return None


def check_same(run: Path, secure: SecureSums | None) -> None:
    """Raise a RunError if a run was started with other settings: a sum of the same model without
    masks, or over other clients, would show what was masked."""
    if not (run / ABOUT).exists():
        return
    before, now = settings_in(run), None if secure is None else asdict(secure)
    if before != now:
        raise RunError(
            f"{run} was started with {in_words(before)}, not with {in_words(now)}; use another"
            " directory"
        )


def in_words(settings: Mapping[str, Any] | None) -> str:
    """Settings in words.

    >>> in_words({"mode": "recover", "threshold": 0.75, "least": 3, "counts": "masked"})
    'masked sums (recover, threshold 0.75, least 3, counts masked)'
    """
    if settings is None:
        return "sums that the server can read"
    threshold = settings.get("threshold")
    shown = f"{threshold:.3g}" if isinstance(threshold, float) else threshold
    rest = ", ".join(f"{name} {settings.get(name)}" for name in ("least", "counts"))
    return f"masked sums ({settings.get('mode')}, threshold {shown}, {rest})"
