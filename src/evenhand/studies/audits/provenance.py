"""How an audit was made, so that someone else can repeat it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evenhand.files import plain
from evenhand.studies.audits.numbers import Numbers
from evenhand.version import __version__

OPTIONS = ("positive", "over", "level", "draws", "seed", "least", "suppress", "reference")
BLOCK = 1 << 20  # bytes read at a time


def of_file(path: str | Path) -> dict[str, Any]:
    """A file's name, SHA-256 and size."""
    digest, size = hashlib.sha256(), 0
    with Path(path).open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    return {"file": Path(path).name, "sha256": digest.hexdigest(), "bytes": size}


def of_table(rows: int, used: int, columns: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The rows and columns used of a table; ``used`` rows have a label."""
    taken = {what: column for what, column in columns.items() if column not in (None, [], ())}
    return {"rows": rows, "rows_without_label": rows - used, "columns": taken, **more}


def provenance(audit: Numbers) -> dict[str, Any]:
    """The source, the options and the version."""
    threshold = None if audit.rows is None else audit.rows.threshold
    options = {name: getattr(audit, name) for name in OPTIONS}
    return {
        **plain(dict(audit.source)),
        "samples": int(audit.counts.table.sum()),
        "labels": list(audit.counts.labels),
        "options": plain(
            {
                **options,
                "positive": audit.label,
                "threshold": threshold,
                "thresholds": None if audit.thresholds is None else list(audit.thresholds),
            }
        ),
        "evenhand": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
