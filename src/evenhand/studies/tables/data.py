"""Tables for a terminal: how a data table was read."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.data.tables.encoding import Encoding
from evenhand.studies.runs.executing import Ready


def show_data(console: Console, ready: Ready, verbose: bool = False) -> None:
    """Print what was read from a table of the user's: one line and its notes, or every column."""
    federation, spec = ready.federation, ready.spec
    if federation.encoding is None:
        return
    if verbose:
        show_encoding(console, federation.encoding)
    else:
        _show_notes(console, federation.encoding)
    names = (("train", "training"), ("val", "validation"), ("test", "test"))
    parts = [(len(getattr(federation, name).x), word) for name, word in names if _has(ready, name)]
    split = ", ".join(f"{count} {word}" for count, word in parts)
    clients = f"{federation.clients} client{'s' * (federation.clients != 1)}"
    groups = (
        f", {federation.groups} group{'s' * (federation.groups != 1)}" if federation.groups else ""
    )
    parameters = sum(p.numel() for p in ready.module.parameters())
    model = f"model {spec.model['name']} with {parameters} parameters, loss {spec.loss}"
    console.print(f"{clients}{groups}; {split} samples; {model}", highlight=False)


def _has(ready: Ready, name: str) -> bool:
    split = getattr(ready.federation, name)
    return split is not None and len(split.x) > 0


def show_encoding(console: Console, encoding: Encoding) -> None:
    """Print how each column of a table was read, and which cells and rows were excluded."""
    rows = encoding.rows()
    table = Table(title="Columns", box=box.SIMPLE, title_justify="left")
    shown = [heading for heading in rows[0] if any(row[heading] for row in rows)] if rows else []
    for heading in shown:
        table.add_column(heading, justify="right" if isinstance(rows[0][heading], int) else "left")
    for row in rows:
        table.add_row(*(escape(str(row[heading] or "")) for heading in shown))
    console.print(table)
    _show_notes(console, encoding)


def _show_notes(console: Console, encoding: Encoding) -> None:
    for note in encoding.notes():
        console.print(note, highlight=False, markup=False)
