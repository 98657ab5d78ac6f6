"""What ``evenhand flower new --secure`` writes, and what a run with masked sums says about itself."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from click.testing import CliRunner

import evenhand as eh
from evenhand.cli import main
from evenhand.cli.operate import lines
from evenhand.files import read_tensors
from evenhand.flower.policy import Policy
from evenhand.flower.project.new import example, write_project
from evenhand.flower.status import read_status
from evenhand.page.server import MASKED
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_masks import FixedPoint, Masked


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "hidden-app"
    codebook, tables = example()
    write_project(directory, codebook, "fafl:alpha=0.5", tables=tables, secure=True)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.chdir(tmp_path)
    yield directory
    for name in [name for name in sys.modules if name.startswith("hidden_app")]:
        del sys.modules[name]


def test_a_project_with_masks_trains_as_the_simulator_does(app: Path) -> None:
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        importlib.import_module(settings["components"][side].partition(":")[0])
        for side in ("serverapp", "clientapp")
    )
    files = sorted((app / "data").glob("*.csv"))
    policy = app / "owner.toml"
    policy.write_text('order = "server"\nshare = "masked"')
    configs = [
        {
            "partition-id": i,
            "data": str(path),
            "state-dir": str(app / f"state{i}"),
            "policy": str(policy),
        }
        for i, path in enumerate(files)
    ]
    grid = InProcessGrid(client.app, configs)
    context = grid.contexts[1]
    context.run_config = settings["config"] | {"num-rounds": 2}
    server.app(grid, context)

    clients = [client.load_data(config) for config in configs]

    def arrays(part: Any, names: tuple[str, ...]) -> dict[str, Any]:
        return {"x": part.x, "y": part.y, "group": [names[code] for code in part.group]}

    whole = eh.Federation.from_arrays(
        [arrays(one.train, one.group_names) for one in clients],
        test=[arrays(one.test, one.group_names) for one in clients],
    )
    reference = eh.fit(
        importlib.import_module("hidden_app.model").make_model(),
        whole,
        eh.FAFL(alpha=0.5),
        rounds=2,
        weights="uniform",
        evaluate="with training",
        local=eh.LocalSGD(lr=0.3, epochs=1, batch_size=32),
        engine=FixedPoint(),
    )
    found, _ = read_tensors(Path("runs/hidden-app/fafl/model.safetensors"))
    for name, value in reference.params.items():
        assert torch.equal(found[name], value), name
    kinds = {message.metadata.message_type for message in grid.sent}
    assert kinds == {"query.census", "query.count", "train", "evaluate", "query.unmask"}


def test_a_projects_files_say_masked(app: Path) -> None:
    policy = Policy.parse((app / "policy.toml").read_text())
    assert policy == Policy(share="masked", rounds_per_day=1000)
    for name, most in {"client_app": 30, "server_app": 45, "model": 35}.items():
        text = (app / "hidden_app" / f"{name}.py").read_text()
        assert len(text.splitlines()) <= most, name
        assert "$" not in text
    assert (
        "eh.flower.SecureSums(threshold=2 / 3, least=3"
        in (app / "hidden_app/server_app.py").read_text()
    )
    readme = (app / "README.md").read_text()
    for said in ("identity-key", "trusted-keys", "not been audited", "fingerprints"):
        assert said in readme
    # the client's modules load no torch before a message needs it
    loaded = subprocess.run(
        [sys.executable, "-c", "import hidden_app.client_app, sys; print('torch' in sys.modules)"],
        cwd=app,
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "afl"), "masked sums hide single clients, but AFL needs of each client"),
        (("--clients", "2"), "masked sums need at least 3 clients in a cohort, got 2"),
        (
            ("--columns-from-nodes", "--label", "disease"),
            "--secure cannot be combined with --columns-from-nodes",
        ),
    ],
)
def test_what_masks_cannot_have_is_refused_in_one_line_and_nothing_is_written(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, ["flower", "new", "my-app", "--secure", *options])
    assert found.exit_code == 1
    assert message in found.output
    assert not (tmp_path / "my-app").exists()


@pytest.mark.slow
def test_a_new_project_with_masks_runs_as_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evenhand", "flower"]
    subprocess.run([*command, "new", "my-app", "--secure"], cwd=tmp_path, check=True)
    up = subprocess.run(
        [*command, "up", "my-app", "--data", "my-app/data", "-c", "num-rounds=2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert up.returncode == 0, up.stdout + up.stderr
    assert "4 of 4 clients have answered" in up.stdout


# ---- what a run says about itself


def test_a_run_says_that_it_was_masked(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=1)
    run = tmp_path / "run"
    about = json.loads((run / "about.json").read_text())
    assert about["federation"]["masked"] == {
        "threshold": 2 / 3,
        "least": 3,
        "mode": "recover",
        "colluding": 0,
        "counts": "masked",
    }
    words = (
        "the server sees sums alone: masked sums (recover, threshold 0.667, least 3, counts masked)"
    )
    assert words in lines(read_status(run))
    page = eh.report(run, tmp_path / "a.html").page.read_text()
    assert MASKED in page
    assert "Numbers of samples came as a masked sum." in page
    assert "What clients told the server together at the start" in page
    assert "5 clients together" in page
    other = tmp_path / "plain"
    setting.run(rounds=1, secure=None, out=other)
    assert not any("masked" in line for line in lines(read_status(other)))
    assert MASKED not in eh.report(other, tmp_path / "b.html").page.read_text()


def test_a_void_round_is_in_the_status(tmp_path: Path) -> None:
    setting = Masked(tmp_path)
    setting.grid.down = {1, 2}
    setting.grid.spoil = lambda node, reply: [reply]
    # two of five register, and are then silent
    setting.grid.down = set()

    def silence(node: int, reply: Any) -> list[Any]:
        work = dict(reply.content.get("about", {})).get("work")
        return [] if work == "train" and node in (1, 2) else [reply]

    setting.grid.spoil = silence
    with pytest.raises(eh.RunError, match="no client answered in any round"):
        setting.run(rounds=1, deadline=0.5)
    told = lines(read_status(tmp_path / "run"))
    assert (
        "round 1 was void: 3 of 5 clients have answered, and 4 must; the round has no sum" in told
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (eh.flower.SecureSums(), None),
        (None, eh.flower.SecureSums()),
        (eh.flower.SecureSums(), eh.flower.SecureSums(least=4)),
    ],
)
def test_a_run_goes_on_with_the_masks_it_began_with(
    before: Any, after: Any, tmp_path: Path
) -> None:
    setting = Masked(tmp_path)
    setting.run(rounds=1, secure=before, weights="uniform", evaluate="with training")
    with pytest.raises(eh.RunError, match=r"was started with .*; use another directory"):
        setting.run(rounds=2, secure=after, weights="uniform", evaluate="with training")
