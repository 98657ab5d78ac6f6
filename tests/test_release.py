"""What is released: version, contents, changelog, workflows and files of the repository."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml

import evenhand
from tools import environments, release_check

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [
    path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"
]
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.dependabot": [ROOT / ".github" / "dependabot.yml"],
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
ADDRESS = PYPROJECT["project"]["urls"]["Source"]


def tool(name: str) -> str:
    """A command that is installed beside the Python that runs the tests."""
    return str(Path(sys.executable).parent / name)


# ---- the version


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PYPROJECT["project"]
    (line,) = (ROOT / "src" / "evenhand" / "version.py").read_text("utf-8").splitlines()[2:]
    assert line == f'__version__ = "{evenhand.__version__}"'
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "evenhand.version.__version__"
    }


def test_the_citation_names_the_version_and_the_address() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == evenhand.__version__
    assert citation["repository-code"] == ADDRESS
    assert citation["license"] == PYPROJECT["project"]["license"]


def test_the_changelog_has_the_version_and_known_headings() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## {re.escape(evenhand.__version__)} \(", text, re.MULTILINE)
    known = {kind["name"] for kind in PYPROJECT["tool"]["towncrier"]["type"]}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= known
    assert PYPROJECT["tool"]["towncrier"]["start_string"] in text


# ---- what is installed


def test_wheel_and_sdist_have_every_file_of_the_package(tmp_path: Path) -> None:
    release_check.build(tmp_path)
    (wheel,), (sdist,) = (list((tmp_path / "dist").glob(end)) for end in ("*.whl", "*.tar.gz"))
    assert release_check.faults_of_wheel(wheel) == []
    assert release_check.faults_of_sdist(sdist) == []


def test_files_of_the_package_that_are_not_python_are_known() -> None:
    found = release_check.package_data()
    assert {"evenhand/py.typed", "evenhand/page/page.html"} <= found
    assert not [name for name in found if name.endswith((".py", ".pyc"))]


def test_faults_of_metadata_are_named() -> None:
    metadata = Message()
    for field, value in release_check.FIELDS.items():
        metadata[field] = "0.0.0" if field == "Version" else value
    metadata["Project-URL"] = "Homepage, https://example.org"
    metadata.set_payload("short")
    assert release_check.faults_of_metadata(metadata) == [
        f"Version is '0.0.0', not '{evenhand.__version__}'",
        "[project.urls] has no Changelog",
        "[project.urls] has no Issues",
        "[project.urls] has no Source",
        "the description is not the README",
    ]


def test_every_dependency_has_a_lower_bound_that_can_be_installed() -> None:
    project = {
        "dependencies": ["numpy>=1.26", "torch>=2.8,<3"],
        "optional-dependencies": {name: ["pyarrow>=15"] for name in environments.EXTRAS},
    }
    assert environments.lowest(project)[:3] == ["numpy==1.26", "torch==2.8", "pyarrow==15"]
    with pytest.raises(SystemExit, match=r"numpy<2 in pyproject.toml has no lower bound"):
        environments.lowest({**project, "dependencies": ["numpy<2"]})
    assert len(environments.lowest(PYPROJECT["project"])) > 10
    assert all((ROOT / path).exists() for path in environments.TESTS)


def test_constraints_keep_to_the_bounds() -> None:
    pinned = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    )
    declared = [
        *PYPROJECT["project"]["dependencies"],
        *(
            it
            for extra in environments.EXTRAS
            for it in PYPROJECT["project"]["optional-dependencies"][extra]
        ),
    ]

    def numbers(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]

    for requirement in declared:
        name, bound = re.match(r"([\w.-]+)>=([\w.]+)", requirement).groups()  # type: ignore[union-attr]
        assert numbers(pinned[name]) >= numbers(bound)


def test_flower_is_pinned_alike_everywhere() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from evenhand.flower import FLOWER

    assert FLOWER in PYPROJECT["project"]["optional-dependencies"]["flower"]
    source = (ROOT / "src" / "evenhand" / "flower" / "project" / "templates.py").read_text("utf-8")
    assert "flwr>=" not in source  # apps get it from FLOWER


# ---- changelog fragments


def fragments(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name not in ("README.md", ".gitignore")]


def known_types() -> set[str]:
    return {kind["directory"] for kind in PYPROJECT["tool"]["towncrier"]["type"]}


def is_fragment(name: str) -> bool:
    """Whether a file in changelog.d has a name that towncrier reads."""
    parts = name.split(".")
    return len(parts) >= 3 and parts[-1] == "md" and parts[1] in known_types()


def test_every_fragment_has_a_known_type_and_one_line() -> None:
    for path in fragments(ROOT / "changelog.d"):
        assert is_fragment(path.name), f"{path.name}: see changelog.d/README.md"
        assert len(path.read_text("utf-8").strip().splitlines()) == 1, path.name
    assert is_fragment("+resume.fixed.md")
    assert not is_fragment("+resume.faster.md")
    assert not is_fragment("resume.md")


def draft(folder: Path, fragment: str) -> subprocess.CompletedProcess[str]:
    """What `make changelog` would print with one more fragment."""
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "changelog.d", folder / "changelog.d")
    (folder / "changelog.d" / fragment).write_text("Resuming works.\n")
    command = [tool("towncrier"), "build", "--draft", "--version", "9.9.9"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_towncrier_makes_a_section_of_fragments(tmp_path: Path) -> None:
    done = draft(tmp_path, "+resume.fixed.md")
    assert done.returncode == 0, done.stderr
    assert "## 9.9.9 (" in done.stdout
    fixed = done.stdout.partition("### Fixed\n\n")[2].partition("\n### ")[0]
    assert "- Resuming works." in fixed.splitlines()


def test_towncrier_refuses_a_fragment_of_an_unknown_type(tmp_path: Path) -> None:
    done = draft(tmp_path, "+resume.faster.md")
    assert done.returncode == 1
    assert "Invalid news fragment name: +resume.faster.md" in done.stdout + done.stderr


# ---- files for the host of the repository


@pytest.mark.parametrize(
    ("schema", "path"),
    [(schema, path) for schema, paths in SCHEMAS.items() for path in paths],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_files_keep_to_their_schema(schema: str, path: Path) -> None:
    done = subprocess.run(
        [tool("check-jsonschema"), "--builtin-schema", schema, str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_a_workflow_that_breaks_its_schema_is_found(tmp_path: Path) -> None:
    (tmp_path / "ci.yml").write_text("on: push\njobs:\n  test:\n    runs-on: x\n    stepz: []\n")
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows"]
    assert subprocess.run([*command, tmp_path / "ci.yml"], capture_output=True).returncode == 1


def commands(workflow: str) -> list[str]:
    """The shell commands of a workflow."""
    jobs = yaml.safe_load(workflow)["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_every_target_that_workflows_make_is_in_the_makefile() -> None:
    assert WORKFLOWS
    made = {
        target
        for path in WORKFLOWS
        for command in commands(path.read_text("utf-8"))
        for target in re.findall(r"\bmake ([\w./-]+)", command)
    }
    assert {"test", "lowest", "newest", "docs", "release-check", "dist"} <= made
    assert made <= targets()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_have_versions_jobs_have_limits_and_rights_are_few(path: Path) -> None:
    content = yaml.safe_load(path.read_text("utf-8"))
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            assert re.search(r"@(v\d+|release/v\d+)$", step.get("uses", "@v1"))


def test_workflows_test_every_version_of_python_that_is_declared() -> None:
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    tested = matrix["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    declared = [
        entry.rpartition(" ")[2]
        for entry in PYPROJECT["project"]["classifiers"]
        if entry.startswith(prefix)
    ]
    assert tested == declared
    assert PYPROJECT["project"]["requires-python"] == f">={declared[0]}"


def test_hooks_are_commands_of_the_environment() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    for repository in hooks["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            command = hook["entry"].split()[0]
            assert command.startswith(".venv/bin/")
            assert Path(tool(Path(command).name)).exists()


# ---- how to install


FROM_AN_INDEX = re.compile(r"pip install ['\"]?evenhand")


def test_nothing_installs_evenhand_from_an_index() -> None:
    """Until there is a release, `pip install evenhand` would find nothing, or a stranger's package."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and FROM_AN_INDEX.search(node.value)
    ]
    pages = (
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "notebooks").rglob("*.ipynb"),
    )
    found += [page.name for page in pages if FROM_AN_INDEX.search(page.read_text("utf-8"))]
    assert found == []
