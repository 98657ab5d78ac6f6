"""Writes a new Flower app that runs as it is, with tables of made-up hospitals or for a user's own
tables."""

from __future__ import annotations

import dataclasses
import keyword
import re
import shlex
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd

from evenhand.algorithm import Algorithm
from evenhand.data.tables.columns import Column
from evenhand.errors import SpecError, require_whole
from evenhand.flower import FLOWER
from evenhand.flower.codebook import Codebook
from evenhand.flower.columns.wanted import Columns
from evenhand.flower.project import secure as masks
from evenhand.flower.project import templates
from evenhand.flower.project.policy import policy
from evenhand.local import LocalSGD
from evenhand.studies.specs.method import build_algorithm
from evenhand.studies.specs.parsing import parse_method

ROUNDS = 10
LOCAL = {"lr": 0.3, "epochs": 1, "batch_size": 32}
LONGEST = 32  # letters of an app's name in Flower
SEED = 2020  # of the made-up rows
# rows of the made-up hospitals, and the share of women in them
SIZES, WOMEN = (800, 480, 240, 160), (0.05, 0.15, 0.4, 0.95)


def write_project(
    directory: Path,
    codebook: Codebook | Columns,
    method: str = "qffl:q=1",
    clients: int = 4,
    tables: Mapping[str, pd.DataFrame] | None = None,
    secure: bool = False,
) -> None:
    """Write a Flower app into a new or empty directory.

    Args:
        codebook: how nodes read their tables; or, if the nodes are to agree on that themselves, the
            label, the groups and columns to drop.
        method: NAME or NAME:key=value,..., as on the command line; local.lr=0.1 changes how nodes
            train.
        clients: nodes to wait for.
        tables: made-up tables for a try-out, written into data/.
        secure: mask what nodes send, so that the server learns sums alone.
    """
    require_whole("clients", clients, 1)
    from_nodes = isinstance(codebook, Columns)
    algorithm, local = _python(method)
    if secure:
        _check_masks(method, clients, from_nodes)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise SpecError(f"{directory} exists and is not empty; choose another directory")
    package = package_name(directory.absolute().name)
    nodes = "" if clients == 4 else f" --nodes {clients}"
    place = shlex.quote(str(directory))
    source = shlex.quote(str(directory / "data")) if tables else "DIRECTORY-OF-CSV-FILES"
    about = (
        "The tables in `data` are made up, one file for each node."
        if tables
        else (
            "DIRECTORY-OF-CSV-FILES has one .csv file for each node, such as made-up rows of the"
            " same form."
        )
    )
    values = {
        "project": package.replace("_", "-"),
        "package": package,
        "flwr": version("flwr"),
        "requirement": FLOWER,
        "rounds": str(ROUNDS),
        "clients": str(clients),
        "method": algorithm,
        "local": local,
        "up": f"evenhand flower up {place} --data {source}{nodes}",
        "about_data": about,
        "columns_file": "columns.toml" if from_nodes else "codebook.toml",
        "about_columns": templates.ABOUT_COLUMNS if from_nodes else templates.ABOUT_CODEBOOK,
        "columns_import": "COLUMNS, make_model" if from_nodes else "make_model",
        "columns": "        columns=COLUMNS,\n" if from_nodes else "",
        "secure": masks.SERVER_SETTINGS if secure else "",
        "secure_constant": masks.SERVER_CONSTANT if secure else "",
        "eval_every": "1" if secure else "5",
        "about_evaluation": "in the message that trains"
        if secure
        else "each evaluation is one more message to every node",
        "about_secure": masks.README if secure else "",
    }
    kit = masks if secure else templates
    files = {
        "pyproject.toml": templates.PYPROJECT,
        "README.md": templates.README,
        f"{package}/model.py": templates.COLUMNS_MODEL if from_nodes else kit.MODEL,
        f"{package}/client_app.py": (
            templates.COLUMNS_CLIENT_APP if from_nodes else kit.CLIENT_APP
        ),
        f"{package}/server_app.py": templates.SERVER_APP,
    }
    texts = {name: Template(text).substitute(values) for name, text in files.items()}
    texts |= {
        "LICENSE": templates.LICENSE,
        f"{package}/__init__.py": "",
        f"{package}/{values['columns_file']}": codebook.to_toml(),
        "policy.toml": policy(secure),
        "data/README.md": templates.DATA_README,
    }
    texts |= {
        f"data/{name}.csv": table.to_csv(index=False, lineterminator="\n")
        for name, table in (tables or {}).items()
    }
    for name, text in texts.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _check_masks(method: str, clients: int, from_nodes: bool) -> None:
    """Raise a SpecError if masked sums cannot be had with these settings."""
    from evenhand.flower.masked.refusing import refuse_method
    from evenhand.secure.settings import SecureSums

    if from_nodes:
        raise SpecError(
            "--secure cannot be combined with --columns-from-nodes, which asks each node for the"
            " names in its table; use --table"
        )
    table = parse_method(method)
    table.pop("local", None)
    try:
        SecureSums().check(clients)
        refuse_method(build_algorithm(table))
    except ValueError as error:
        raise SpecError(str(error)) from error


def package_name(name: str) -> str:
    """Turn the name of a directory into the name of a Python package that no installed module has.

    >>> [package_name(name) for name in ("Fair model 2", "json", "2024-trial", "class")]
    ['fair_model_2', 'json_app', 'app_2024_trial', 'class_app']
    """
    safe = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "fair_app"
    safe = (safe if safe[0].isalpha() else f"app_{safe}")[:LONGEST].rstrip("_")
    return f"{safe}_app" if keyword.iskeyword(safe) or find_spec(safe) is not None else safe


def code(setting: Algorithm | LocalSGD, given: Mapping[str, Any] | None = None) -> str:
    """The Python code for a method or local solver, without settings at their defaults unless they
    were ``given``.

    >>> from evenhand import FedProx, QFFL
    >>> code(FedProx(mu=0.1, inner=QFFL(q=2.0)))
    'eh.FedProx(mu=0.1, inner=eh.QFFL(q=2.0))'
    >>> code(QFFL(), {"q": 1})
    'eh.QFFL(q=1.0)'
    """
    given = given or {}
    shown = []
    for field in dataclasses.fields(setting):  # type: ignore[arg-type]
        value = getattr(setting, field.name)
        if value != field.default or field.name in given:
            inner = given.get(field.name)
            nested = (
                code(value, inner if isinstance(inner, Mapping) else None)
                if isinstance(value, Algorithm)
                else repr(value)
            )
            shown.append(f"{field.name}={nested}")
    return f"eh.{type(setting).__name__}({', '.join(shown)})"


def _python(method: str) -> tuple[str, str]:
    """Python code for the method and the local solver; building both also checks them."""
    table = parse_method(method)
    local: dict[str, Any] = LOCAL | table.pop("local", {})
    if "steps" in local:
        del local["epochs"]
    try:
        return code(build_algorithm(table), table), code(LocalSGD(**local), local)
    except TypeError as error:
        raise SpecError(f"{method!r}: {error}") from error


def example(
    label: str = "disease", group: str = "sex", hospitals: int = 4
) -> tuple[Codebook, dict[str, pd.DataFrame]]:
    """Make a codebook and the tables of made-up hospitals.

    Hospitals differ in size, in their patients' age and in the share of women. The disease shows in
    men's blood pressure and in women's cholesterol, so a model that suits most patients serves
    hospitals with many women badly.
    """
    people = ("female", "male") if group == "sex" else ("a", "b")
    columns = (
        Column("age", "number", mean=60.0, std=12.0),
        Column("pressure", "number", mean=130.0, std=18.0),
        Column("cholesterol", "number", mean=5.4, std=1.1),
        Column("smoker", "yes/no", categories=("no", "yes"), counts=(0, 0)),
        Column(group, "yes/no", categories=people, counts=(0, 0)),
    )
    if label in {column.name for column in columns}:
        raise ValueError(
            f"label: the made-up tables already have a column {label!r}; choose another name, or"
            " give your own table with --table"
        )
    codebook = Codebook(columns, label, ("no", "yes"), (group,))
    return codebook, {
        f"hospital-{i + 1:02d}": _patients(label, group, people, i) for i in range(hospitals)
    }


def _patients(label: str, group: str, people: tuple[str, str], hospital: int) -> pd.DataFrame:
    rng = np.random.default_rng([SEED, hospital])
    rows, women = SIZES[hospital % len(SIZES)], WOMEN[hospital % len(WOMEN)]
    female = rng.random(rows) < women
    age, pressure = rng.normal(56 + 3 * (hospital % 4), 11, rows), rng.normal(130, 18, rows)
    cholesterol, smoker = rng.normal(5.4, 1.1, rows), rng.random(rows) < 0.3
    risk = 0.9 * (age - 60) / 12 + 2 * np.where(female, cholesterol - 5.4, (pressure - 130) / 18)
    ill = rng.random(rows) < 1 / (1 + np.exp(-(risk + 0.8 * smoker - 0.4)))
    return pd.DataFrame(
        {
            "age": age.round().astype(int),
            "pressure": pressure.round().astype(int),
            "cholesterol": cholesterol.round(1),
            "smoker": np.where(smoker, "yes", "no"),
            group: np.where(female, *people),
            label: np.where(ill, "yes", "no"),
        }
    )
