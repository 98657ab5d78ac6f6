from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

# the same examples every time, as far as Hypothesis can (it also tries constants of the modules
# that happen to be loaded): a new counterexample is found by whoever looks for one
# (HYPOTHESIS_PROFILE=search), not by CI
# and a busy machine is no failure
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow,),
)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# started in the background, a shell has commands ignore Ctrl-C and perhaps hang-ups, and those that
# tests start would inherit that
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# tests start many processes: each would compile the package anew, and use all cores for small
# tensors
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")

Call = Callable[..., tuple[int, str, str]]

# the tests of a file run at one worker, which makes once what they share; these files run at one
# worker together: federations of real processes would take each other's cores, and others share what
# they train or start
TOGETHER = {
    "tests/flower/test_processes.py": "processes",
    "tests/flower/test_up.py": "processes",
    "tests/flower/test_operating.py": "processes",
    **dict.fromkeys(("tests/report/test_browser.py", "tests/report/test_report.py"), "report"),
    **dict.fromkeys(("tests/docs/test_site.py", "tests/docs/test_browser.py"), "site"),
    **dict.fromkeys(("tests/studies/test_compare.py", "tests/studies/test_sweep.py"), "studies"),
}
# files of half a minute and more, about the longest first: they start first, so that no worker is
# left alone with one at the end
LONG = (
    "tests/algorithms/test_conformance.py",
    "tests/docs/test_pages.py",
    "tests/flower/test_processes.py",
    "tests/engines/test_engines.py",
    "tests/papers/test_reproduce.py",
    "tests/cli/test_commands.py",
    "tests/studies/test_compare.py",
    "tests/report/test_report.py",
    "tests/training/test_resume.py",
    "tests/docs/test_notebooks.py",
    "tests/flower/test_join.py",
    "tests/flower/test_masked_processes.py",
    "tests/flower/test_masked_rounds.py",
    "tests/flower/test_rounds.py",
    "tests/studies/test_analysis.py",
    "tests/engines/test_sample_dp.py",
    "tests/engines/test_processes.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests run at one worker. (Marks that say so, with --dist loadgroup, have no effect with
    pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return TOGETHER.get(file, file)

    config.option.loadscopereorder = False  # a file of many tests need not be a long one
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, the others as they were collected."""
    order = {file: place for place, file in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(LONG)))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: collecting garbage need not look at it again (Flower does so
    with every message it reads)."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The command line in this process, in an empty directory: exit code, standard output and
    standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        from evenhand.cli import main

        with pytest.raises(SystemExit) as done:
            main(list(arguments), prog_name="evenhand")
        captured = capsys.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Commands run in this process, and some make the log quiet; the next test hears it again."""
    logger = logging.getLogger("evenhand")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(autouse=True, scope="session")
def _choices_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is chosen by measurement is chosen once in a session, whatever was chosen before on this
    machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVENHAND_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Small tensors: threads would only wait for each other."""
    torch.set_num_threads(1)
