"""Every code block of the docs runs, and prints what the page shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.pages import Page, PageError, blocks, faults, front_matter

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_say_what_they_are(name: str) -> None:
    assert list(faults((ROOT / name).read_text(encoding="utf-8"))) == []


def _asked(name: str) -> str:
    return front_matter((ROOT / name).read_text(encoding="utf-8")).get("tests", "")


def _run(name: str, slow: bool) -> None:
    if "data" in _asked(name) and "EVENHAND_DATA" not in os.environ:
        pytest.skip("needs the published data sets; EVENHAND_DATA says where they are")
    Page(ROOT / name, slow).run()


@pytest.mark.parametrize("name", [name for name in NAMES if "slow" not in _asked(name)])
def test_a_page_prints_what_it_shows(name: str) -> None:
    _run(name, slow=False)


SLOW = [
    name
    for name in NAMES
    if "slow" in _asked(name)
    or any(block.directive == "slow" for block in blocks((ROOT / name).read_text(encoding="utf-8")))
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_page_prints_what_it_shows(name: str) -> None:
    _run(name, slow=True)


PAGE = """\
# A page

<!-- file: mine.py -->
```python
def twice(x):
    return 2 * x
```

<!-- setup
echo 1,2 > table.csv
-->
```python
from mine import twice

print(twice(21))
```

```text
%s
```

```sh
cat table.csv
```

```text
1,2
```
"""


def test_a_page_that_shows_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE % 42)
    Page(page).run()
    page.write_text(PAGE % 43)
    with pytest.raises(PageError, match=r"shows\n43\n.*printed:\n42"):
        Page(page).run()
    Page(page, update=True).run()
    assert page.read_text() == PAGE % 42


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("```\nx\n```", "give the block a language"),
        ("```text\nx\n```", "follows no code"),
        ("<!-- not run -->\n```sh\nx\n```", "say more: show the block"),
    ],
)
def test_faults_are_found(block: str, fault: str) -> None:
    assert fault in "".join(faults(block))


def test_a_failing_block_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nevenhand run --rounds none\n```\n")
    with pytest.raises(PageError, match="exit status 2"):
        Page(page).run()
    page.write_text("```python\n1 / 0\n```\n")
    with pytest.raises(PageError, match="ZeroDivisionError"):
        Page(page).run()
