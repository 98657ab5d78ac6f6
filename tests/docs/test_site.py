"""The built docs site: links lead somewhere, nothing comes from a network, nothing is missing."""

from __future__ import annotations

import importlib
import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

import evenhand as eh
from evenhand.algorithms import ALGORITHMS
from evenhand.cli import main
from evenhand.studies.specs.schema import spec_schema
from tools.site import commands, relinked

ROOT = Path(__file__).parents[2]
# what a page loads by itself; a person follows the links of <a>
LOADING = {"script", "img", "link", "iframe", "source", "video", "audio", "object", "embed"}
# modules whose names are public: those reached from evenhand, and Flower
MODULES = (
    *("algorithms", "datasets", "engines", "metrics", "models", "simplex", "testing", "theory"),
    *("data.partitions", "page.figures", "flower", "sklearn"),
)


class Reference(NamedTuple):
    """A link of a page, or something that it loads."""

    tag: str
    target: str


class Parsed(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[Reference] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        for name in ("href", "src", "data", "poster"):
            if name in given and (tag, name) != ("data", "data"):
                self.references.append(Reference(tag, given[name]))
        for part in given.get("srcset", "").split(","):
            if part.strip():
                self.references.append(Reference(tag, part.split()[0]))


@cache
def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text(encoding="utf-8"))


def broken(directory: Path) -> list[str]:
    """Links and loaded files that lead nowhere."""
    found = []
    for page in sorted(directory.rglob("*.html")):
        for tag, target in parsed(page).references:
            url = urlsplit(target)
            if url.scheme or url.netloc or (page.name == "404.html" and target.startswith("/")):
                continue
            path = (page.parent / unquote(url.path)).resolve() if url.path else page
            path = path / "index.html" if path.is_dir() else path
            where = f"{page.relative_to(directory)}: <{tag}> {target}"
            if not path.is_file() or directory not in path.parents:
                found.append(f"{where} leads nowhere")
            elif path.suffix == ".html" and unquote(url.fragment) not in parsed(path).anchors:
                found.append(f"{where} has no such anchor")
    return found


def loaded_from_elsewhere(directory: Path) -> list[str]:
    """What pages and style sheets load from a network."""
    found = [
        f"{page.relative_to(directory)}: {reference}"
        for page in sorted(directory.rglob("*.html"))
        for reference in parsed(page).references
        if reference.tag in LOADING and re.match(r"\w+:|//", reference.target)
        if not reference.target.startswith("data:")
    ]
    for sheet in sorted(directory.rglob("*.css")):
        addresses = re.findall(
            r"(?:url\(|@import\s+)['\"]?((?:https?:)?//[^'\")]+)", sheet.read_text()
        )
        found += [f"{sheet.relative_to(directory)}: {address}" for address in addresses]
    return found


def test_every_link_image_and_anchor_is_there(site: Path) -> None:
    assert broken(site) == []


def test_nothing_is_loaded_from_a_network(site: Path) -> None:
    assert loaded_from_elsewhere(site) == []


def test_the_checks_find_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="#here">x</a><a href="b.html#there">x</a><img src="no.png"><a href="//host/x">x</a>'
        '<script src="https://host/a.js"></script><img srcset="//host/b.png 2x"><a href="..">x</a>'
    )
    (tmp_path / "b.html").write_text('<p id="elsewhere"><link href="a.css">')
    (tmp_path / "a.css").write_text("p { background: url(https://host/c.png) }")
    assert broken(tmp_path.resolve()) == [
        "index.html: <a> #here has no such anchor",
        "index.html: <a> b.html#there has no such anchor",
        "index.html: <img> no.png leads nowhere",
        "index.html: <a> .. leads nowhere",
    ]
    assert len(loaded_from_elsewhere(tmp_path)) == 3


def test_every_page_on_disk_is_in_the_site_and_its_navigation(site: Path) -> None:
    shown = {target for _, target in parsed(site / "index.html").references}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        address = f"{name.parent if name.name == 'index' else name}/"
        assert (site / address / "index.html").is_file(), page
        assert page.name == "index.md" or address in shown, page


def test_every_public_name_is_in_the_api_reference(site: Path) -> None:
    anchors = set()
    for page in (site / "reference" / "api").rglob("*.html"):
        anchors |= parsed(page).anchors
    public = {f"evenhand.{name}" for name in eh.__all__} - {"evenhand.algorithms"}
    for module in MODULES:
        home = f"evenhand.{module}".replace(".data.", ".").replace(".page.", ".")
        loaded = importlib.import_module(f"evenhand.{module}")
        # what is public in evenhand itself is there under that name
        own = (name for name in loaded.__all__ if not _same(name, loaded))
        public |= {f"{home}.{name}" for name in own}
    assert sorted(public - anchors) == []


def _same(name: str, module: ModuleType) -> bool:
    return getattr(eh, name, None) is getattr(module, name)


def test_every_method_has_its_page_and_its_row(site: Path) -> None:
    methods = site / "reference" / "methods"
    listed = (methods / "index.html").read_text()
    for name in ALGORITHMS:
        assert (methods / name / "index.html").is_file(), name
        assert f'href="{name}/"' in listed, name


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    text = (site / "reference" / "command-line" / "index.html").read_text()
    for path, command in commands(main, "evenhand"):
        assert f"<code>{path}</code>" in text, path
        for option in command.params:
            for name in option.opts if option.param_type_name == "option" else ():
                assert re.search(rf"<dt><code>[^<]*{name}\b", text), (path, name)


def test_the_schema_is_published(site: Path) -> None:
    published = site / "reference" / "spec.schema.json"
    assert json.loads(published.read_text()) == spec_schema()


def test_links_out_of_the_docs_lead_to_pages_of_the_site() -> None:
    text = (
        "[a](../../src/evenhand/algorithms/pages/afl.md#formula) [b](run.md)\n"
        "[c]: ../../CONTRIBUTING.md\n"
        "```text\n[d](../../CHANGELOG.md)\n```\n"
        "![e](../../examples/quickstart.py) [f](https://example.org/x.md)\n"
    )
    assert relinked(text, "how-to/run.md") == (
        "[a](../reference/methods/afl.md#formula) [b](run.md)\n"
        "[c]: ../project/contributing.md\n"
        "```text\n[d](../../CHANGELOG.md)\n```\n"
        "![e](../source/examples/quickstart.py.md) [f](https://example.org/x.md)\n"
    )
    changelog = relinked(
        "[g](docs/how-to/run.md) [h](src/evenhand/tree.py)", "project/changelog.md"
    )
    assert changelog == "[g](../how-to/run.md) [h](../source/src/evenhand/tree.py.md)"


@pytest.mark.parametrize("page", ["errors", "spec", "run-directory"])
def test_what_reference_pages_quote_is_in_the_code(page: str) -> None:
    """Messages in quotation marks; those that a command prints are compared by test_pages.py."""
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    prose = re.sub(r"```.*?```|<!--.*?-->|`[^`]*`", "", text, flags=re.DOTALL)
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    quoted = re.findall(r'"([^"]{6,})"', prose)
    assert [message for message in quoted if message not in source] == []
    assert quoted or page != "errors"
