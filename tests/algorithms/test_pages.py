"""The pages of the methods: complete, true to the code, and printed by the command line."""

from __future__ import annotations

import dataclasses
import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import evenhand as eh
from evenhand.algorithm import visible
from evenhand.cli import main
from evenhand.studies.methods import INNER, NOTHING, learned, learned_table
from evenhand.studies.specs.method import build_algorithm
from evenhand.studies.specs.parsing import parse_method
from tests.support.federations import METHODS as METHODS_IN_ALL_FORMS
from tests.support.federations import ragged

HEADINGS = [
    "Formula",
    "What is sent",
    "Hyper-parameters",
    "Where the paper is wrong or silent, and what we do",
    "Special cases",
    "A small result",
    "Example in Python",
]
METHODS = sorted(eh.ALGORITHMS)
ROOT = Path(__file__).parents[2]
ADVICE = ROOT / "docs" / "explanation" / "choosing-a-method.md"
SEEN = ROOT / "docs" / "explanation" / "what-the-server-sees.md"
RESULT = re.compile(r"^ +([\w-]+)" + 5 * r" +(\d+\.\d)" + r"(?: +(\d+) +(\d+))?$", re.MULTILINE)


def page(name: str) -> str:
    return (resources.files("evenhand.algorithms") / "pages" / f"{name}.md").read_text(
        encoding="utf-8"
    )


def section(name: str, heading: str) -> str:
    return page(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def methods_on_command_lines(text: str) -> list[str]:
    """What follows every -a, in command blocks and in the comments and prose."""
    return re.findall(r"-a ([\w:.,=-]*\w)", text)


def settings(name: str) -> dict[str, str]:
    """The table of hyper-parameters: name and default as written."""
    return dict(
        re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", section(name, "Hyper-parameters"), re.MULTILINE)
    )


def call(*arguments: str) -> tuple[int, str]:
    # nothing that feigns a terminal
    done = CliRunner(env={"FORCE_COLOR": None, "TTY_COMPATIBLE": None}).invoke(
        main, list(arguments)
    )
    return done.exit_code, done.output


# ---- what a page holds


def test_every_method_has_a_page_and_every_page_a_method() -> None:
    files = {file.name for file in (resources.files("evenhand.algorithms") / "pages").iterdir()}
    assert files == {f"{name}.md" for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_a_page_has_a_title_a_problem_and_all_headings_in_order(name: str) -> None:
    text = page(name)
    title, problem = text.split("\n\n")[:2]
    assert re.fullmatch(r"# \S.*\(.*\)", title)
    assert problem.count(".") >= 2
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert all(section(name, heading).strip() for heading in HEADINGS)
    assert max(map(len, text.splitlines())) <= 140
    assert text.count("```") % 2 == 0


@pytest.mark.parametrize("name", METHODS)
def test_the_table_names_every_hyper_parameter_with_its_default(name: str) -> None:
    true = {field.name: shown(field.default) for field in dataclasses.fields(eh.ALGORITHMS[name])}  # type: ignore[arg-type]
    assert settings(name) == true


def shown(value: Any) -> str:
    """A default as a page writes it."""
    if isinstance(value, str):
        return f'"{value}"'
    return f"{type(value).__name__}()" if isinstance(value, eh.Algorithm) else repr(value)


@pytest.mark.parametrize("name", METHODS)
def test_a_page_says_what_the_server_sees_as_the_method_does(name: str) -> None:
    told = section(name, "What is sent").partition("**The server learns of one client:**")[2]
    seen = visible(eh.ALGORITHMS[name](), eh.datasets.digits(clients=4).census())
    assert ("nothing: sums only" in told) == (not seen)
    for what in seen:
        assert what in told
    assert set(re.findall(r"^\| (Task|Reply)", section(name, "What is sent"), re.MULTILINE)) == {
        "Task",
        "Reply",
    }


@pytest.mark.parametrize("name", METHODS)
def test_every_method_named_on_a_command_line_can_be_built(name: str) -> None:
    given = methods_on_command_lines(page(name))
    assert name in {text.partition(":")[0] for text in given}
    for text in given:
        table = parse_method(text)
        eh.LocalSGD(**{"lr": 0.1, "epochs": 1, **table.pop("local", {})})
        build_algorithm(table)


@pytest.mark.parametrize("name", METHODS)
def test_the_small_result_has_a_row_for_fedavg_and_each_method_of_its_command(name: str) -> None:
    text = section(name, "A small result")
    (command,), (printed,) = blocks(text, "sh"), blocks(text, "text")
    words = shlex.split(command)
    assert words[:2] == ["evenhand", "run"]
    given = [
        word.partition(":")[0] for word, at in zip(words[1:], words, strict=False) if at == "-a"
    ]
    labels = [
        f"{method}-{count}" if (count := given[: i + 1].count(method)) > 1 else method
        for i, method in enumerate(given)
    ]
    rows = RESULT.findall(printed)
    assert [row[0] for row in rows] == (labels if "fedavg" in given else ["fedavg", *labels])
    # one reference on all pages with the example's own settings
    if "--weights" not in words:
        reference = ("83.7", "45.7", "98.7", "42.9", "17.2")
    else:
        reference = ("85.3", "59.5", "96.2", "57.1", "13.0")
    assert [row[1:6] for row in rows if row[0] == "fedavg"] == [reference]
    for _, mean, worst10, best10, worst, _, _, _ in rows:
        assert float(worst) <= float(worst10) <= float(mean) <= float(best10)
    assert "seed" in text


@pytest.mark.parametrize("name", METHODS)
def test_the_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks(section(name, "Example in Python"), "python")
    methods: list[eh.Algorithm] = []

    def one_round(
        module: Any, federation: Any, algorithm: eh.Algorithm, **options: Any
    ) -> eh.Result:
        methods.append(algorithm)
        assert options["rounds"] == 80
        return fit(module, federation, algorithm, **{**options, "rounds": 1})

    fit = eh.fit
    monkeypatch.setattr(eh, "fit", one_round)
    exec(compile(example, f"{name}.md", "exec"), {})
    assert [type(method) for method in methods] == [eh.ALGORITHMS[name]]
    for text in methods_on_command_lines(example):
        # the command line in a comment makes the same method
        assert build_algorithm(parse_method(text)) == methods[0]


def test_pages_promise_nothing_that_a_measure_cannot_show() -> None:
    for text in (*map(page, METHODS), ADVICE.read_text(), SEEN.read_text()):
        assert not re.search(
            r"(?i)removes? bias|eliminat\w+ bias|bias-free|perfectly fair|guarantees? fairness",
            text,
        )


# ---- the command line and the index


def test_algorithms_lists_every_method_with_one_line_and_what_the_server_sees() -> None:
    code, out = call("algorithms")
    assert code == 0
    listed, _, legend = out.partition("\n\n")
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in listed.splitlines()}
    assert list(lines) == list(eh.ALGORITHMS)
    assert all(line.endswith((".", ")")) for _, line in lines.values())
    seen = {name: word for name, (word, _) in lines.items()}
    assert {name: seen[name] for name in ("fedavg", "afl", "gifair", "term", "fedprox")} == {
        "fedavg": "sums",
        "afl": "single",
        "gifair": "either",
        "term": "either",
        "fedprox": "either",
    }
    assert all(word in legend for word in set(seen.values()))


# ---- what the server learns of a single client


def test_the_docs_say_what_the_server_learns_as_the_methods_do() -> None:
    text = SEEN.read_text()
    begin = text.index("| method | when | evenhand's server uses of one client |")
    assert text[begin : text.index("\n\n", begin) + 1] == learned_table()


@pytest.mark.parametrize("teams", [True, False])
def test_the_table_has_a_case_for_every_form_of_a_method(teams: bool) -> None:
    census = ragged(teams=teams).census()
    rows: dict[str, set[str]] = {}
    for row in learned():
        rows.setdefault(row.method, set()).add(row.seen)
        assert row.secure == {NOTHING: "yes", INNER: "as the inner method"}.get(row.seen, "no")
    assert sum(INNER in seen for kinds in rows.values() for seen in kinds) == sum(
        issubclass(kind, eh.Wrapper) for kind in eh.ALGORITHMS.values()
    )
    assert list(rows) == list(eh.ALGORITHMS)
    more = [
        eh.TERM(exact=True),
        eh.TERM(t=-25.0),
        eh.TERM(t=30.0, level="team"),
        eh.TERM(t=25.0, exact=False),
        eh.FAFL(eta0="quantile"),
    ]
    for method in (*METHODS_IN_ALL_FORMS.values(), *more):
        name = type(method).__name__.lower()
        if isinstance(method, eh.Wrapper):
            inner = visible(method.inner, census)
            own = tuple(what for what in visible(method, census) if what not in inner)
            assert visible(method, census) == (*own, *inner)
            assert rows[name] == {", ".join([*own, INNER])}, method
            continue
        seen = ", ".join(visible(method, census)) or NOTHING
        assert seen in rows[name], method


def test_the_readme_counts_the_methods() -> None:
    counts = re.findall(r"\*\*Methods\.\*\* (\d+) ", (ROOT / "README.md").read_text())
    assert counts == [str(len(eh.ALGORITHMS))]


@pytest.mark.parametrize("name", ["fafl", "FAFL", "lossguard"])
def test_algorithms_with_a_name_prints_its_page(name: str) -> None:
    assert call("algorithms", name) == (0, page(name.lower()) + "\n")


def test_algorithms_describes_a_method_of_the_users_own() -> None:
    assert call("algorithms", "tests.support.own_method:PowerLoss") == (
        0,
        "# tests.support.own_method:PowerLoss\n\nDescend f^power / power on every client, so that"
        " high losses take longer steps.\n\nHyper-parameters:\n\n* `power`, by default 2.0\n",
    )
    code, out = call("algorithms", "tests.support.own_method:PowerLos")
    assert code == 1
    assert "'PowerLos'; did you mean" in out or "choose from PowerLoss" in out


def test_algorithms_with_an_unknown_name_names_the_nearest() -> None:
    assert call("algorithms", "qfl") == (
        1,
        "evenhand: unknown method 'qfl'; did you mean 'qffl'?\n",
    )
    code, out = call("algorithms", "scaffold")
    assert code == 1
    assert re.fullmatch(
        r"evenhand: unknown method 'scaffold'; choose from fedavg, .*private\n", out
    )


def test_the_table_of_what_the_server_sees_links_every_page() -> None:
    text = SEEN.read_text()
    links = dict(re.findall(r"^\[(\w+)\]: (\S+)$", text, re.MULTILINE))
    assert set(links) == set(METHODS)
    assert set(re.findall(r"^\| \[(\w+)\]\[\]", text, re.MULTILINE)) == set(METHODS)
    assert all(
        link == f"../../src/evenhand/algorithms/pages/{name}.md" for name, link in links.items()
    )


def test_the_advice_places_every_method_in_a_family_and_names_methods_that_there_are() -> None:
    text = ADVICE.read_text()
    questions, _, rest = text.partition("## The families")
    links = re.findall(
        r"\]\(\.\./\.\./src/evenhand/algorithms/pages/(\w+)\.md\)", rest.partition("\n## ")[0]
    )
    assert set(links) == set(METHODS) - {"fedavg"}
    # `afl`, `term:level=team`; what else stands in backquotes are hyper-parameters
    named = set(re.findall(r"`([a-z]+)(?::[^`]*)?`", questions)) - {"t", "tail", "alpha"}
    assert len(named) > 10
    assert named <= set(METHODS)
    for given in methods_on_command_lines(text):
        build_algorithm(
            {key: value for key, value in parse_method(given).items() if key != "local"}
        )
