"""One process at a time in a directory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from evenhand.locks import Held, hold

HOLDER = """
import sys, time
from pathlib import Path
from evenhand.locks import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_process_is_named_and_a_killed_one_gives_way(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Held, match=rf"in use by process {other.pid} on .* since 20.*stop it"):
            hold(tmp_path).__enter__()
        other.kill()
    with hold(tmp_path):
        assert f'"pid": {os.getpid()}' in (tmp_path / ".lock.json").read_text()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_somebody_has_removed_is_left_to_the_next_holder(tmp_path: Path) -> None:
    with hold(tmp_path):
        (tmp_path / ".lock").rename(tmp_path / "moved")  # as a file that is removed, with its inode
        with hold(tmp_path):
            pass
        second = hold(tmp_path)
        second.__enter__()
    with pytest.raises(Held):
        hold(tmp_path).__enter__()
    second.__exit__(None, None, None)


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    inside, most = 0, 0
    count = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            try:
                with hold(tmp_path):
                    with count:
                        inside += 1
                        most = max(most, inside)
                    with count:
                        inside -= 1
            except Held:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
