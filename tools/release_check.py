"""Check what a release would publish: build it, look inside, install it and use it.

    python -m tools.release_check

Everything happens in a temporary directory, outside the checkout. Takes a few minutes, most of them
to install torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from evenhand.version import __version__

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evenhand"
LARGEST = 10_000_000  # bytes of an archive
# what somebody who builds a distribution from the sdist needs, and must not find
IN_SDIST = ("tests/conftest.py", "docs", "examples/quickstart.py", "constraints.txt", "Makefile")
NOT_IN_SDIST = (".data", "runs", ".venv", ".github")  # folders
FIELDS = {
    "Name": "evenhand",
    "Version": __version__,
    "License-Expression": "Apache-2.0",
    "Requires-Python": ">=3.11",
    "Description-Content-Type": "text/markdown",
    "Author": "The evenhand developers",
}


def build(place: Path, *kinds: str) -> None:
    """Build the sdist and the wheel, or those of ``kinds``, from a copy of the checkout."""
    copy = place / "source"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    # --no-isolation: the environment has setuptools, and an isolated one would need the network
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", place / "dist"]
    subprocess.run([*command, copy], check=True, stdout=subprocess.DEVNULL)


def package_data() -> set[str]:
    """The files in the package that are not Python, as a wheel names them."""
    return {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }


def faults_of_wheel(wheel: Path) -> list[str]:
    """What is wrong with the contents and the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(about).decode())
    faults = [f"the wheel has no {name}" for name in sorted(package_data() - names)]
    others = {name.split("/")[0] for name in names} - {"evenhand", about.split("/")[0]}
    faults += [f"the wheel has {name}, which is not the package" for name in sorted(others)]
    return faults + faults_of_metadata(metadata)


def faults_of_metadata(metadata: Message) -> list[str]:
    """What is wrong with the metadata of a package."""
    faults = [
        f"{field} is {metadata[field]!r}, not {wanted!r}"
        for field, wanted in FIELDS.items()
        if metadata[field] != wanted
    ]
    labels = {entry.split(",")[0] for entry in metadata.get_all("Project-URL") or []}
    faults += [
        f"[project.urls] has no {name}"
        for name in sorted({"Homepage", "Source", "Issues", "Changelog"} - labels)
    ]
    if len(metadata.get_payload()) < 500:
        faults.append("the description is not the README")
    return faults


def faults_of_sdist(sdist: Path) -> list[str]:
    """What is missing in an sdist, and what should not be there."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    faults = [
        f"the sdist has no {name}"
        for name in (*IN_SDIST, *(f"src/{name}" for name in sorted(package_data())))
        if name not in names
    ]
    faults += [
        f"the sdist has {name}"
        for name in NOT_IN_SDIST
        if any(it == name or it.startswith(f"{name}/") for it in names)
    ]
    if sdist.stat().st_size > LARGEST:
        faults.append(f"the sdist has {sdist.stat().st_size} bytes, more than {LARGEST}")
    return faults


def use(wheel: Path, place: Path) -> None:
    """Install the wheel into a new environment and train with it, away from the checkout."""
    environment, away = place / "environment", place / "away"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    away.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def call(*command: str | Path) -> str:
        print("$", *(str(part).removeprefix(f"{place}/") for part in command), flush=True)
        done = subprocess.run(
            [environment / "bin" / command[0], *command[1:]],
            cwd=away,
            env=clean,
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\nthis command failed with exit code {done.returncode}")
        return done.stdout

    constraints = ("--constraint", ROOT / "constraints.txt")
    pip = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(*pip, *constraints, f"{wheel}[plots]")
    where = call("python", "-c", "import evenhand; print(evenhand.__file__)")
    if not Path(where.strip()).is_relative_to(environment):
        sys.exit(f"{where.strip()} was imported, not the wheel")
    if __version__ not in call("evenhand", "--version"):
        sys.exit("evenhand --version is not the version of the wheel")
    shutil.copy(ROOT / "examples" / "quickstart.py", away)
    print(call("python", "quickstart.py"))
    print(call("evenhand", "run", "--out", "first"))
    call("evenhand", "report", "first", "--out", "report.html")
    call("evenhand", "algorithms", "fafl")  # pages of methods
    call("evenhand", "reproduce", "list")  # the papers' tables
    call("evenhand", "benchmark", "--list")  # records
    if "<html" not in (away / "report.html").read_text(encoding="utf-8"):
        sys.exit("evenhand report wrote no page")


def main() -> None:
    """Build, check and use; exit with the faults that were found."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        build(place)
        (wheel,), (sdist,) = (list((place / "dist").glob(end)) for end in ("*.whl", "*.tar.gz"))
        faults = faults_of_wheel(wheel) + faults_of_sdist(sdist)
        if faults:
            sys.exit("\n".join(faults))
        for archive in (sdist, wheel):
            print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB")
        use(wheel, place)
    print(f"evenhand {__version__} can be released")


if __name__ == "__main__":
    main()
