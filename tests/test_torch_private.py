"""Private names of torch are looked up in one module, which says what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

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


def test_gradients_are_those_of_torch() -> None:
    def objective(variables: dict[str, Tensor], x: Tensor) -> Tensor:
        noise = torch.rand(())  # the same numbers are drawn
        return ((x @ variables["w"]).tanh().square().sum() + noise * variables["b"]).sin()

    torch.manual_seed(0)
    variables = {"w": torch.randn(4, 3), "b": torch.randn(4), "unused": torch.randn(4, 2)}
    x = torch.randn(4, 5, 3)
    for theirs, ours in (
        (torch.func.grad(objective), torch_private.grad(objective)),
        (
            torch.func.grad(lambda v, x: torch.func.grad(objective)(v, x)["w"].sum()),
            torch_private.grad(lambda v, x: torch_private.grad(objective)(v, x)["w"].sum()),
        ),
    ):
        found = []
        for function in (theirs, ours):
            torch.manual_seed(1)
            with torch.no_grad():
                found.append(torch.func.vmap(function, randomness="different")(variables, x))
        assert not found[1]["unused"].any()
        for name, slope in found[0].items():
            assert torch.equal(found[1][name], slope), name
            assert not found[1][name].requires_grad
    nothing = torch_private.grad(lambda v: torch.ones(()))({"w": torch.randn(3)})
    assert nothing["w"].tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match=r"needs a single number, got \[3\]"):
        torch_private.grad(lambda v: v)(torch.ones(3))


def test_a_traced_function_without_its_original_computes_the_same() -> None:
    constant = torch.randn(3)

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ w + constant).relu(), x

    x, w = torch.randn(4, 3), torch.randn(3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(function, (x, w), check_trace=False)  # type: ignore[no-untyped-call]
    alone = torch_private.freed_when_unused(traced)
    assert not list(traced.graph.nodes())  # torch holds this one until the end
    del traced
    for _ in range(3):  # torch makes a plan in the first calls
        found, same = alone(x, w)
        assert torch.equal(found, function(x, w)[0])
        assert torch.equal(same, x)


def test_training_loads_no_compiler() -> None:
    program = """
import sys, torch, evenhand as eh
fed = eh.datasets.population(clients=20, samples=(1, 5), features=3)
for method in (eh.FedAvg(), eh.Ditto()):
    eh.fit(torch.nn.Linear(3, 2), fed, method, rounds=8, engine="auto")
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_tested_versions_begin_where_the_dependency_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (torch_needed,) = (it for it in project["dependencies"] if it.startswith("torch"))
    assert torch_private.TESTED.startswith(torch_needed.removeprefix("torch") + ",")
