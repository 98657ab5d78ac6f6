"""Tables for people: how data were read."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.data.tables.encoding import Encoding
from evenhand.studies.runs.executing import Ready


def show_data(console: Console, ready: Ready) -> None:
    """Print what was read where the data came as a table, and what was settled for them."""
    federation, spec = ready.federation, ready.spec
    if federation.encoding is None:
        return
    show_encoding(console, federation.encoding)
    sizes = [
        0 if part is None else len(part.x)
        for part in (federation.train, federation.val, federation.test)
    ]
    split = (
        f"{sizes[0]} samples to train with"
        + (f", {sizes[1]} to validate" if sizes[1] else "")
        + f", {sizes[2]} to test"
    )
    groups = f", {federation.groups} groups" if federation.groups else ""
    model = (
        f"model {spec.model['name']} with {sum(p.numel() for p in ready.module.parameters())}"
        f" parameters, loss {spec.loss}"
    )
    console.print(f"{federation.clients} clients{groups}; {split}; {model}", highlight=False)


def show_encoding(console: Console, encoding: Encoding) -> None:
    """Print how the columns of a table were read, and what of it was left out."""
    rows = encoding.rows()
    table = Table(title="Columns", box=box.SIMPLE, title_justify="left")
    shown = [heading for heading in rows[0] if any(row[heading] for row in rows)] if rows else []
    for heading in shown:
        table.add_column(heading, justify="right" if isinstance(rows[0][heading], int) else "left")
    for row in rows:
        table.add_row(*(escape(str(row[heading] or "")) for heading in shown))
    console.print(table)
    for note in encoding.notes():
        console.print(note, highlight=False, markup=False)
