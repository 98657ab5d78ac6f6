"""The layout of the package: imports point downward, modules form no cycles, files are short.

All imports count: those inside functions, those under TYPE_CHECKING and ``import_module("...")``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = "evenhand"

# A package or module imports from itself and from those before it. ARCHITECTURE.md draws this.
ORDER = (
    "version",
    "errors",
    "torch_private",
    "tree",
    "secure",
    "reading",
    "files",
    "locks",
    "simplex",
    "layers",
    "data",
    "tables",  # where older Flower projects import read_table from
    "datasets",
    "models",
    "losses",
    "label_checks",
    "targets",
    "calls",
    "norms",
    "unfit",
    "probing",
    "model",
    "messages",
    "schedules",
    "local",
    "cohort",
    "growth",
    "privacy",
    "theory",
    "algorithm",
    "algorithms",
    "metrics",
    "engines",
    "training",
    "track",
    "sklearn",
    "studies",
    "testing",
    "page",
    "papers",
    "benchmarking",
    "flower",
    "evenhand",  # the public names, in evenhand/__init__.py
    "cli",
    "__main__",
)
MOST_LINES = 320


class Edge(NamedTuple):
    """One module imports another."""

    importer: str
    imported: str


def modules(source: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def edges(source: Path) -> set[Edge]:
    """Which module imports which."""
    known = modules(source)
    return {
        Edge(name, imported)
        for name, path in known.items()
        for imported in _imports(ast.parse(path.read_text()), set(known))
        if imported != name
    }


def _imports(parsed: ast.AST, known: set[str]) -> Iterator[str]:
    for node in ast.walk(parsed):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where things come from"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [_beginning(node.args[0])]
        for name in names:
            if name.split(".")[0] == PACKAGE:
                yield _module(name, known)


def _beginning(name: ast.expr) -> str:
    """The text of a string, of an f-string as far as it is fixed."""
    if isinstance(name, ast.JoinedStr):
        name = name.values[0]
    return name.value.rstrip(".") if isinstance(name, ast.Constant) else ""


def _module(name: str, known: set[str]) -> str:
    """The module in which ``name`` is: itself, or the one that it is an attribute of."""
    while name not in known:
        name = name.rpartition(".")[0]
    return name


def layer(module: str) -> str:
    """The part of the package that a module belongs to."""
    return module.split(".")[1] if "." in module else module


def upward(found: set[Edge]) -> list[str]:
    """Imports from a part that comes later in ORDER, as messages."""
    return [
        f"{edge.importer} imports {edge.imported}:"
        f" {layer(edge.importer)} is below {layer(edge.imported)}"
        for edge in sorted(found)
        if ORDER.index(layer(edge.importer)) < ORDER.index(layer(edge.imported))
    ]


def cycles(found: set[Edge]) -> list[str]:
    """Cycles of imports, one for each import that closes one, as messages."""
    below: dict[str, list[str]] = {}
    for edge in sorted(found):
        if PACKAGE not in edge:  # its names are loaded when they are used
            below.setdefault(edge.importer, []).append(edge.imported)
    done: set[str] = set()
    messages = []

    def visit(path: list[str]) -> None:
        for module in below.get(path[-1], []):
            if module in path:
                circle = [*path[path.index(module) :], module]
                messages.append(f"{path[-1]} imports {module}: {' -> '.join(circle)}")
            elif module not in done:
                visit([*path, module])
        done.add(path[-1])

    for module in sorted(below):
        if module not in done:
            visit([module])
    return messages


def test_imports_point_downward() -> None:
    assert upward(edges(SOURCE)) == []


def test_modules_form_no_cycles() -> None:
    assert cycles(edges(SOURCE)) == []


def test_files_are_short() -> None:
    lengths = {
        name.removeprefix(f"{PACKAGE}."): len(path.read_text().splitlines())
        for name, path in modules(SOURCE).items()
        if name != PACKAGE  # the list of public names
    }
    assert {name: count for name, count in lengths.items() if count > MOST_LINES} == {}


def test_every_part_has_its_place() -> None:
    assert {layer(module) for module in modules(SOURCE)} == set(ORDER)


def test_an_import_is_found_wherever_it_stands(tmp_path: Path) -> None:
    files = {
        "__init__": "",
        "data/__init__": "",
        "data/x": "def f():\n    from evenhand.training.y import g\n",
        "data/z": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import evenhand.data.v\n",
        "data/v": "from evenhand.data import z\nfrom os import path\n",
        "training/__init__": "import importlib\nimportlib.import_module(f'evenhand.studies.{1}')\n",
        "training/y": "from evenhand import data\n",
        "studies/__init__": "",
    }
    for name, text in files.items():
        path = tmp_path / PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = edges(tmp_path)
    assert found == {
        Edge("evenhand.data.x", "evenhand.training.y"),
        Edge("evenhand.data.z", "evenhand.data.v"),
        Edge("evenhand.data.v", "evenhand.data.z"),
        Edge("evenhand.training", "evenhand.studies"),
        Edge("evenhand.training.y", "evenhand.data"),
    }
    assert upward(found) == [
        "evenhand.data.x imports evenhand.training.y: data is below training",
        "evenhand.training imports evenhand.studies: training is below studies",
    ]
    assert cycles(found) == [
        "evenhand.data.z imports evenhand.data.v:"
        " evenhand.data.v -> evenhand.data.z -> evenhand.data.v"
    ]
