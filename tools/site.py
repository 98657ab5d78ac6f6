"""MkDocs hooks: order the pages on disk, and generate the pages that the code can write itself.

Generated are a page for each method, the command-line reference, the JSON Schema of specs, the
project's own pages (changelog, contributing, architecture), and a page for each source file that
another page links to.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import click
import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
METHODS = "src/evenhand/algorithms/pages"
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
# Folders and pages in the order of the navigation. Pages that are not listed follow by name.
ORDER = {
    "": ["index", "tutorials", "how-to", "explanation", "reference", "results", "project"],
    "tutorials": ["first-fair-model", "own-csv", "own-method", "four-hospitals"],
    "how-to": [
        *(
            "recipes",
            "model-recipes",
            "run",
            "compare",
            "tune-and-sweep",
            "report",
            "audit",
            "thresholds",
        ),
        *("tables", "data-sets", "partitions", "models", "metrics", "transformers"),
        *(
            "local-solvers",
            "callbacks",
            "predict",
            "export",
            "scikit-learn",
            "gpu",
            "several-machines",
        ),
        *("federation", "federation-security", "robust"),
        *("privacy", "masked-sums", "deploy", "operate", "from-flower"),
    ],
    "explanation": [
        *("which-fairness", "choosing-a-method", "intervals", "what-the-server-sees"),
        *("masked-sums", "engines"),
        *("federation", "theory", "hcvar", "bounds", "bounds-and-papers"),
    ],
    "reference": ["index", "api", "methods", "command-line", "spec", "run-directory", "errors"],
    "reference/api": [
        "index",
        "training",
        "methods",
        "data",
        "sklearn",
        "results",
        "metrics",
        "own-method",
    ],
    "reference/methods": ["index"],
    "results": ["index", "reproduction", "benchmark", "speed", "coverage", "answers", "records"],
    "project": ["changelog", "contributing", "architecture"],
}
TITLES = {"index": "Home", "how-to": "How-to guides", "api": "Python API"}
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "sh"}

FENCE = re.compile(r"^ *(```+|~~~+)")
# a link or image in a line, or the definition of one: up to its target, and the target
LINK = re.compile(r"(\]\(|^ {0,3}\[[^\]]+\]:\s+)(?!\w+:|#|/)([^)\s#]+)")
INSERT = re.compile(r"^<!-- insert: (.+) -->$", re.MULTILINE)
# docstrings mark names as Sphinx does
ROLE = re.compile(r":(?:class|func|meth|data|mod|attr|exc):`[~.]?")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and order all of them."""
    pages = {
        **{_address(name): (ROOT / name).read_text("utf-8") for name in PROJECT},
        **method_pages(),
        "reference/command-line.md": command_line(),
        "reference/spec.schema.json": schema(),
    }
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()} | pages
    sources = {
        source
        for page, text in texts.items()
        for source in _outside(text, page)
        if _address(source) not in texts and (ROOT / source).is_file()
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    config.nav = _navigation(file.src_uri for file in files.documentation_pages())
    for source in sorted(sources):
        page = File.generated(
            config,
            _address(source),
            content=_source_page(source),
            inclusion=InclusionLevel.NOT_IN_NAV,
        )
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert what is generated, and point links to files outside docs/ at their pages."""
    here = page.file.src_uri
    return relinked(INSERT.sub(lambda match: _inserted(match[1], here, files), markdown), here)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """An empty cell is no heading; screen readers would announce one without words."""
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)


class Docstrings(griffe.Extension):
    """Docstrings as Markdown: doctests become code, and Sphinx roles plain names."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a name before it is parsed."""
        if obj.docstring is not None:
            text = DOCTEST.sub(r"```pycon\n\g<0>\n```", ROLE.sub("`", obj.docstring.value))
            obj.docstring.value = text


def _inserted(what: str, page: str, files: Files) -> str:
    if what == "spec keys":
        return spec_keys()
    folder = what.removeprefix("pages of ")
    pages = [file for file in files.documentation_pages() if file.src_uri.startswith(f"{folder}/")]
    if not pages:
        raise ValueError(f"{page} inserts {what!r}, which is not known")
    order = _navigation(file.src_uri for file in pages)[0]
    return "\n".join(_entry(uri, files, page) for uri in next(iter(order.values())))


def _entry(uri: str, files: Files, page: str) -> str:
    """A page in a list: its title as a link."""
    file = files.src_uris[uri]
    title = re.search(r"^# (.+)$", file.content_string, re.MULTILINE)
    return f"* [{title[1] if title else uri}]({os.path.relpath(uri, PurePosixPath(page).parent)})"


# The navigation


def _navigation(pages: Iterable[str]) -> list[Any]:
    """The ``nav`` of mkdocs.yml, from the pages that there are."""
    tree: dict[str, Any] = {}
    for page in pages:
        *folders, name = PurePosixPath(page).parts
        folder = tree
        for step in folders:
            folder = folder.setdefault(step, {})
        folder[PurePosixPath(name).stem] = page
    return _section(tree, "")


def _section(tree: Mapping[str, Any], folder: str) -> list[Any]:
    order = ORDER.get(folder, [])
    names = sorted(tree, key=lambda n: (order.index(n) if n in order else len(order), n))
    return [
        ({TITLES[name]: page} if page == "index.md" else page)
        if isinstance(page := tree[name], str)
        else {
            TITLES.get(name, name.capitalize()): _section(tree[name], f"{folder}/{name}".strip("/"))
        }
        for name in names
    ]


# Links to files outside docs/


def relinked(markdown: str, page: str) -> str:
    """The same page with links to its repository's files turned into links within the site."""

    def replace(match: re.Match[str]) -> str:
        source = _target(match[2], page)
        if source is None or not (ROOT / source).is_file():
            return match[0]
        return match[1] + os.path.relpath(_address(source), PurePosixPath(page).parent)

    return "".join(LINK.sub(replace, line) if prose else line for line, prose in _lines(markdown))


def _outside(markdown: str, page: str) -> Iterator[str]:
    """The files outside docs/ that a page links to, relative to the repository."""
    for line, prose in _lines(markdown):
        for match in LINK.finditer(line) if prose else ():
            source = _target(match[2], page)
            if source is not None:
                yield source


def _target(link: str, page: str) -> str | None:
    """What a link leads to, relative to the repository; None for a page or file of docs/."""
    home = _home(page)
    target = os.path.normpath(home.parent / link)
    inside = target.startswith("docs/") and home.parts[0] == "docs"
    return None if inside or target.startswith("..") else target


def _home(page: str) -> PurePosixPath:
    """The file of a page, relative to the repository."""
    name = PurePosixPath(page).name
    if page.startswith("project/"):
        return PurePosixPath(f"{name.removesuffix('.md').upper()}.md")
    if page.startswith("reference/methods/") and name != "index.md":
        return PurePosixPath(METHODS) / name
    return PurePosixPath("docs") / page


def _address(source: str) -> str:
    """The page of the site that shows a file of the repository."""
    path = PurePosixPath(source)
    if source in PROJECT:
        return f"project/{path.stem.lower()}.md"
    if str(path.parent) == METHODS:
        return f"reference/methods/{path.name}"
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return f"source/{source}.md"


def _source_page(source: str) -> str:
    text = (ROOT / source).read_text("utf-8").rstrip("\n")
    language = LANGUAGES.get(PurePosixPath(source).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{source}`\n\n`````{language}\n{text}\n`````\n"


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """The lines of a page, and whether each is prose; the others are code."""
    fence = ""
    for line in markdown.splitlines(keepends=True):
        found = FENCE.match(line)
        yield line, not fence and not found
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence):
            fence = ""


# Methods


def method_pages() -> dict[str, str]:
    """The page of each method, and a table of all."""
    from evenhand.algorithms import ALGORITHMS
    from evenhand.studies.methods import kinds, one_line, page

    pages = {
        f"reference/methods/{name}.md": f"{FRONT.format(kind.__name__)}{page(name)}"
        for name, kind in ALGORITHMS.items()
    }
    seen = kinds()
    rows = (f"| [{name}]({name}.md) | {line} | {seen[name]} |" for name, line in one_line().items())
    pages["reference/methods/index.md"] = METHODS_INDEX + "\n".join(rows) + "\n"
    return pages


FRONT = "---\ntitle: {}\nsearch:\n  boost: 5\n---\n\n"  # a short title, found first
METHODS_INDEX = """# Methods

Use the name in specs and on the command line (`-a qffl:q=2`).
[Choosing a method](../../explanation/choosing-a-method.md) compares them.

The last column says what the server sees. *Sums*: only sums over clients, so secure aggregation
is possible. *Single*: something from each client. *Either*: this depends on hyper-parameters,
teams or the inner method, and the method's page says how.

| method | in one line | server sees |
|---|---|---|
"""


# The command line


def command_line() -> str:
    """The reference of all commands, from the commands themselves."""
    from evenhand.cli import main

    parts = [COMMAND_LINE]
    for path, command in commands(main, "evenhand"):
        context = click.Context(command, info_name=path)
        parts.append(f"{'#' * min(3, 1 + len(path.split()))} `{path}`\n")
        text, examples = told(command)
        parts.append(f"{text}\n")
        usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece)
        parts.append(f"```text\n{path} {usage}\n```\n")
        if examples:
            parts.append("Examples:\n\n```sh\n" + "\n".join(examples) + "\n```\n")
        parts.extend(filter(None, (_option(option, context) for option in command.params)))
    return "\n".join(parts)


COMMAND_LINE = """# Command line

`evenhand COMMAND --help` prints the same in a terminal.
[Exit codes](errors.md#exit-codes) are listed with the errors.
"""


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command and all its subcommands that help shows, with what one types to call them."""
    if command.hidden:
        return
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, f"{path} {name}")


def told(command: click.Command) -> tuple[str, list[str]]:
    """What the help of a command says, and its examples."""
    prose, examples = [], []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = [line.strip() for line in paragraph.replace("\b", "").split("\n") if line.strip()]
        if lines[:1] in (["Examples:"], ["Start here:"]):
            examples += "\n".join(lines[1:]).replace("\\\n", "").split("\n")
        else:
            prose.append(" ".join(lines))
    return "\n\n".join(filter(None, prose)), examples


def _option(option: click.Parameter, context: click.Context) -> str:
    """An option as an entry of a definition list."""
    if not isinstance(option, click.Option):
        return ""
    record = option.get_help_record(context)
    if record is None:
        return ""
    names, text = record
    text = re.sub(r"([\\`*<\[\]])", r"\\\1", " ".join(text.split()))
    return f"`{names}`\n:   {text}\n"


# The schema of specs


def schema() -> str:
    """The JSON Schema of a spec file."""
    from evenhand.studies.specs.schema import spec_schema

    return json.dumps(spec_schema(), indent=2) + "\n"


def spec_keys() -> str:
    """The keys of a spec as a table."""
    from evenhand.studies.specs.schema import spec_schema

    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, entry in spec_schema()["properties"].items():
        values = (f"`{json.dumps(value)}`" for value in entry.get("enum", ()))
        kind = ", ".join(values) or VALUES[entry.get("type", "object")]
        default = f"`{json.dumps(entry['default'])}`" if "default" in entry else ""
        meaning = entry["description"].replace("|", r"\|")
        lines.append(f"| `{key}` | {kind} | {default} | {meaning[0].upper()}{meaning[1:]} |")
    return "\n".join(lines)


VALUES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true`, `false`",
    "array": "list",
    "object": "table",
}
