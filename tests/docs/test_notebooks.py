"""Every notebook runs, and shows what it is stored with."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import NOTEBOOKS, execute, outputs
from tests.support.transcripts import matches

MOST_BYTES = 100_000

# what the text of a notebook says, in terms of its variables
CLAIMS = {
    "01-first-steps": """
assert result.summary["mean"] > 0.8 and 0.4 < result.summary["worst10"] < 0.6
lifted = found.table("differences").query("statistic == 'worst10' and better").method.tolist()
assert sorted(lifted) == ["afl", "qffl"]
values = found.table("comparison").query("statistic == 'worst10'").set_index("method").value
assert values.idxmax() == "afl"
paid = found.table("ledger").query("by == 'group' and verdict == 'harmed'")
assert paid[["method", "name"]].values.tolist() == [["afl", "upright"]]
""",
    "02-own-data-to-report": """
assert fed.describe().set_index("client").test["St Anne"] == 26
rows = found.table("ledger").query("by == 'client' and against == 'fedavg'")
clients = found.table("clients").query("method == 'fedavg'").groupby("client").accuracy.mean()
assert clients.idxmin() == "St Anne"
gains = rows.query("verdict == 'gains'")[["method", "name"]].values.tolist()
assert ["ditto", "St Anne"] in gains and ["localonly", "St Anne"] in gains
assert rows.query("method == 'ditto' and verdict == 'harmed'").empty
""",
    "03-own-method-and-benchmark": """
assert all(one.passed for one in outcomes)
assert low < 0 < high
""",
}


def test_every_notebook_has_claims_to_check() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(CLAIMS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_is_stored_with(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    executed = execute(path, tmp_path, CLAIMS[path.stem])
    for old, new in zip(stored.cells, executed.cells, strict=True):
        for kept, printed in zip(outputs(old), outputs(new), strict=True):
            assert matches(kept, printed), f"stored:\n{kept}\n--- now:\n{printed}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_been_run_in_order(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "%pip install" in cells[0].source
    assert any(list(outputs(cell)) for cell in cells)
    errors = [one for cell in cells for one in cell.outputs if one.output_type == "error"]
    assert errors == []
