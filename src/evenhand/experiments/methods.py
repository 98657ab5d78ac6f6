"""What the library says about its methods: a line for each, and a page."""

from __future__ import annotations

from importlib import resources

from evenhand.errors import SpecError
from evenhand.experiments.spec import check_name


def one_line() -> dict[str, str]:
    """Name and first sentence of every method."""
    from evenhand.algorithms import ALGORITHMS

    return {name: (kind.__doc__ or "").partition("\n")[0] for name, kind in ALGORITHMS.items()}


def page(name: str) -> str:
    """The page of a method, as Markdown."""
    from evenhand.algorithms import ALGORITHMS

    check_name("algorithm", name.lower(), ALGORITHMS)
    file = resources.files("evenhand") / "pages" / f"{name.lower()}.md"
    if not file.is_file():
        raise SpecError(f"there is no page for {name}")
    return file.read_text(encoding="utf-8")
