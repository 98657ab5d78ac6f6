"""Private names of torch are looked up in one module, which says what is missing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch

from evenhand import torch_private
from evenhand.errors import EvenhandError
from evenhand.version import __version__

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evenhand"
PRIVATE = re.compile(
    r"\btorch(\.\w+)*\._(?!_)\w|\bfunctorch\b(?=\s+import|\.)|\baten\._|\._schema\b|torch\.fx\.experimental"
    r"|_dynamo|_inductor"
)


def private_uses(text: str) -> list[str]:
    """The lines of a module, without comments, that use a private name of torch."""
    return [line for line in text.splitlines() if PRIVATE.search(line.partition("#")[0])]


def test_no_other_module_uses_a_private_name_of_torch() -> None:
    found = {
        str(path.relative_to(SOURCE)): uses
        for path in SOURCE.rglob("*.py")
        if path.name != "torch_private.py" and (uses := private_uses(path.read_text("utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from torch._ops import OpOverload",
        "from torch.utils._pytree import tree_map",
        "x = torch._C._are_functorch_transforms_active()",
        "x = torch._VF.lstm(y)",
        "import torch._dynamo",
        "target is aten._unsafe_view.default",
        "user.target._schema.is_mutable",
        "from functorch import vmap",
        "from torch.fx.experimental.proxy_tensor import make_fx",
    ],
)
def test_a_private_name_is_noticed(line: str) -> None:
    assert private_uses(line)


def test_public_names_are_no_private_ones() -> None:
    assert not private_uses("y = torch.func.vmap(f)  # torch._C is private\nself._torch = 1\n")


@pytest.mark.parametrize("name", ["_C._gone", "_gone.function", "utils._pytree.gone"])
def test_a_missing_name_is_one_line_with_version_and_way_out(name: str) -> None:
    with pytest.raises(EvenhandError) as error:
        torch_private.look_up(name)
    assert str(error.value) == (
        f"evenhand {__version__} needs torch.{name}, which torch {torch.__version__} does not have;"
        f" install torch{torch_private.TESTED}"
    )


def test_an_operation_without_a_schema_is_told_in_the_same_way() -> None:
    with pytest.raises(EvenhandError, match=r"needs torch\._ops\.OpOverload\._schema, which torch"):
        torch_private.schema(object())  # type: ignore[arg-type]


def test_the_tested_versions_begin_where_the_dependency_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (torch_needed,) = (it for it in project["dependencies"] if it.startswith("torch"))
    assert torch_private.TESTED.startswith(torch_needed.removeprefix("torch") + ",")
