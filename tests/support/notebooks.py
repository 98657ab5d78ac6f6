"""Execute notebooks and compare their outputs with those they are stored with.

python -m tests.support.notebooks [NOTEBOOK ...]    execute notebooks and store their outputs
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 600  # of one cell, on a busy machine


def execute(path: Path, directory: Path, last: str = "") -> NotebookNode:
    """The notebook after a run in a copy of its surroundings; ``last`` is one more cell."""
    inside = directory / "notebooks"
    inside.mkdir()
    shutil.copytree(ROOT / "examples", directory / "examples")
    notebook = nbformat.read(path, as_version=4)
    if last:
        notebook.cells.append(nbformat.v4.new_code_cell(last))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the client, which are not ours
        client = NotebookClient(
            notebook, timeout=SECONDS, resources={"metadata": {"path": str(inside)}}
        )
        client.execute()
    if last:
        notebook.cells.pop()
    return notebook


def outputs(cell: NotebookNode) -> Iterator[str]:
    """What a code cell printed and showed, as text."""
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            yield output.text
        elif output.output_type in ("execute_result", "display_data"):
            yield output.data.get("text/plain", "")


def main() -> None:
    """Execute notebooks and store their outputs."""
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as directory:
            notebook = execute(path, Path(directory))
        for cell in notebook.cells:  # the same file for the same outputs
            cell.metadata.pop("execution", None)
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
