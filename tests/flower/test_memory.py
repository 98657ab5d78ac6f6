"""What a client remembers on its own disk: a function of the run and of the last round that the
server has counted."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand import files
from evenhand.errors import RunError
from evenhand.flower import memory as module
from evenhand.flower.memory import FIRST, MemoryLost, NodeMemory
from evenhand.tree import Tree

START: Tree = {"personal": {"w": torch.zeros(2, dtype=torch.int64)}}


def after(memory: Tree, round: int) -> Tree:
    """What training makes of a memory: no two histories lead to the same value."""
    return {"personal": {"w": memory["personal"]["w"] * 31 + round + 1}}


def value(memory: Tree) -> list[int]:
    found: list[int] = memory["personal"]["w"].tolist()
    return found


def expected(rounds: list[int]) -> list[int]:
    """The value after training in these rounds."""
    memory = START
    for round in rounds:
        memory = after(memory, round)
    return value(memory)


def train(node: NodeMemory, round: int, counted: int) -> list[int]:
    """One task on a node; its reply tells what it started from."""
    memory = node.recall(START, counted)
    node.remember(round, counted, after(memory, round))
    return value(memory)


def kept(directory: Path, run: str = "run", client: int = 0) -> list[int]:
    return sorted(
        int(path.stem.removeprefix("after-"))
        for path in (directory / run / f"client-{client}").glob("after-*")
    )


def refused(error: pytest.ExceptionInfo[RunError], directory: Path) -> str:
    """The text of an error, which goes to the server: one line, and no path."""
    text = str(error.value)
    assert "\n" not in text
    assert str(directory) not in text
    return text


# rounds


def test_the_first_memory_is_the_methods(tmp_path: Path) -> None:
    assert NodeMemory(tmp_path, "run", 0).recall(START, FIRST) is START


def test_a_round_starts_from_the_one_before(tmp_path: Path) -> None:
    assert train(NodeMemory(tmp_path, "run", 0), 0, FIRST) == expected([])
    # another process, and not every round
    assert train(NodeMemory(tmp_path, "run", 0), 3, 0) == expected([0])
    assert (
        value(NodeMemory(tmp_path, "run", 0).recall(START, 3))
        == expected([0, 3])
        == [31 * 1 + 4] * 2
    )


def test_a_task_executed_again_gives_the_same_reply_and_memory(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    train(node, 0, FIRST)
    replies = [train(node, 1, 0) for _ in range(3)]
    assert replies == [expected([0])] * 3
    assert value(node.recall(START, 1)) == expected([0, 1])


def test_a_reply_that_is_late_leaves_no_trace(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    train(node, 0, FIRST)
    train(node, 1, 0)  # late
    assert train(node, 2, 0) == expected([0])
    assert value(node.recall(START, 2)) == expected([0, 2])


def test_rounds_are_repeated_after_the_server_was_resumed(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    for round in range(5):
        train(node, round, round - 1)
    assert train(node, 4, 3) == expected([0, 1, 2, 3])  # killed before its checkpoint of round 4
    # killed before, and its last checkpoint was lost
    assert train(node, 3, 2) == expected([0, 1, 2])
    assert train(node, 4, 3) == expected([0, 1, 2, 3])
    assert value(node.recall(START, 4)) == expected(list(range(5)))


def test_a_server_that_goes_back_too_far_is_told_the_rounds(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 7)
    for round in range(6):
        train(node, round, round - 1)
    with pytest.raises(MemoryLost) as error:
        node.recall(START, 1)
    assert (
        refused(error, tmp_path)
        == "client 7 has no memory after round 1 of run run; it has those after rounds: 2, 3,"
        " 4, 5. "
        "Start a new run, or resume from a checkpoint after one of these"
    )
    assert train(node, 0, FIRST) == expected([])  # from the start it always can


def test_a_node_that_lost_its_disk_says_so(tmp_path: Path) -> None:
    with pytest.raises(MemoryLost) as error:
        NodeMemory(tmp_path, "run", 1).recall(START, 4)
    assert refused(error, tmp_path).startswith(
        "client 1 has no memory after round 4 of run run; it has those after rounds: none."
    )


def test_reading_removes_nothing(tmp_path: Path) -> None:
    """Evaluation may follow a round before the server has written that round's checkpoint."""
    node = NodeMemory(tmp_path, "run", 0, spare=0)
    train(node, 0, FIRST)
    train(node, 1, 0)
    node.recall(START, 1)
    assert kept(tmp_path) == [0, 1]
    train(node, 2, 1)
    assert kept(tmp_path) == [1, 2]


def test_a_few_memories_are_kept_on_either_side(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    for round in range(6):
        train(node, round, round - 1)
    assert kept(tmp_path) == [2, 3, 4, 5]  # two before round 4, which counts
    for round in range(6, 12):
        train(node, round, 5)  # always late
    assert kept(tmp_path) == [3, 4, 5, 9, 10, 11]
    train(node, 9, 5)  # an old task comes once more: the newer memories stay
    assert kept(tmp_path) == [3, 4, 5, 9, 10, 11]


def test_rounds_sort_as_numbers(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0, spare=1)
    for round, counted in ((2, -1), (9, 2), (10, 9), (100, 10)):
        train(node, round, counted)
    assert kept(tmp_path) == [9, 10, 100]


STEPS = st.sampled_from(
    [
        "counted",
        "late",
        "twice",
        "again after a restart",
        "absent",
        "old task",
        "evaluated",
        "server killed",
    ]
)


@settings(max_examples=60, deadline=None)  # files on a busy disk
@given(st.lists(STEPS, min_size=1, max_size=14))
def test_whatever_happens_memory_is_what_the_counted_rounds_made(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        history: list[int] = []  # rounds counted
        saved: tuple[int, list[int]] = (0, [])  # the checkpoint: next round, and rounds counted
        round, old = 0, (0, FIRST)
        for step in steps:
            node = NodeMemory(Path(directory), "run", 0)
            counted = history[-1] if history else FIRST
            if step == "evaluated":
                assert value(node.recall(START, counted)) == expected(history)
                continue
            if step == "old task":
                if old[1] in kept(Path(directory)):
                    train(node, *old)
                continue
            if step != "absent":
                assert train(node, round, counted) == expected(history)
                old = (round, counted)
            if step in ("twice", "again after a restart"):
                assert train(NodeMemory(Path(directory), "run", 0), round, counted) == expected(
                    history
                )
            if step in ("counted", "twice", "again after a restart", "server killed"):
                history = [*history, round]
            round += 1
            if step == "server killed":
                # evaluated, and then no checkpoint
                assert value(node.recall(START, history[-1])) == expected(history)
                round, history = saved[0], list(saved[1])
            else:
                saved = (round, list(history))
        assert value(
            NodeMemory(Path(directory), "run", 0).recall(START, history[-1] if history else FIRST)
        ) == expected(history)
        assert len(kept(Path(directory))) <= 7


# trees


def test_any_memory_comes_back_to_the_bit_and_in_its_order(tmp_path: Path) -> None:
    first: Tree = {
        "b/c": {"~": torch.zeros(())},
        "a": {"": torch.zeros(2, dtype=torch.bfloat16)},
        "none": {},
        "deep": {"er": {}},
    }
    nan = torch.tensor(0x7FC01234, dtype=torch.int32).view(torch.float32)
    memory: Tree = {
        "b/c": {"~": nan},
        "a": {"": torch.tensor([1.0, -0.0], dtype=torch.bfloat16)},
        "none": {},
        "deep": {"er": {}},
    }
    NodeMemory(tmp_path, "run", 0).remember(0, FIRST, memory)
    found = NodeMemory(tmp_path, "run", 0).recall(first, 0)
    assert list(found) == list(memory)
    assert found["none"] == {}
    assert found["deep"] == {"er": {}}
    assert found["b/c"]["~"].view(torch.int32).item() == 0x7FC01234
    assert found["a"][""].view(torch.int16).tolist() == [0x3F80, -0x8000]


def test_a_method_without_memory_writes_nothing(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    assert node.recall({}, FIRST) == node.recall({}, 5) == {}
    node.remember(0, FIRST, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (
            {"personal": {"w": torch.zeros(3, dtype=torch.int64)}},
            "personal/w is int64 (2,), expected int64 (3,); start a new run",
        ),
        (
            {"personal": {"w": torch.zeros(2)}},
            "personal/w is int64 (2,), expected float32 (2,); start a new run",
        ),
        (
            {"personal": {"v": torch.zeros(2, dtype=torch.int64)}},
            "it has other entries; start a new run",
        ),
        ({"personal": {}}, "it has other entries; start a new run"),
    ],
)
def test_a_memory_that_does_not_fit_is_refused(first: Tree, reason: str, tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 2)
    train(node, 0, FIRST)
    with pytest.raises(RunError) as error:
        node.recall(first, 0)
    assert (
        refused(error, tmp_path)
        == f"the memory of client 2 after round 0 of run run does not fit the model: {reason}"
    )


# runs and clients


def test_a_new_run_starts_anew_and_leaves_the_old_one(tmp_path: Path) -> None:
    train(NodeMemory(tmp_path, "run", 0), 0, FIRST)
    train(NodeMemory(tmp_path, "run.2", 0), 0, FIRST)
    train(NodeMemory(tmp_path, "run.2", 0), 1, 0)
    assert kept(tmp_path) == [0]
    assert value(NodeMemory(tmp_path, "run", 0).recall(START, 0)) == expected([0])
    assert value(NodeMemory(tmp_path, "run.2", 0).recall(START, 1)) == expected([0, 1])


def test_clients_that_share_a_folder_do_not_mix(tmp_path: Path) -> None:
    for client in range(2):
        for round in range(client + 1):
            train(NodeMemory(tmp_path, "run", client), round, round - 1)
    assert value(NodeMemory(tmp_path, "run", 0).recall(START, 0)) == expected([0])
    assert kept(tmp_path, client=0) == [0]
    assert kept(tmp_path, client=1) == [0, 1]


@pytest.mark.parametrize(
    "run", ["", ".", "..", "../up", "/etc", "a/b", "a\\b", "a\n", "x" * 101, ".hidden", "-x", "é"]
)
def test_a_run_names_no_place_outside(run: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"^run must be a name of at most 100 letters, digits, '.', '_' and '-', got ",
    ) as error:
        NodeMemory(tmp_path, run, 0)
    assert "\n" not in str(error.value)


def test_numbers_are_checked(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    with pytest.raises(ValueError, match=r"^client must be a whole number >= 0, got -1$"):
        NodeMemory(tmp_path, "run", -1)
    with pytest.raises(ValueError, match=r"^spare must be a whole number >= 0, got -1$"):
        NodeMemory(tmp_path, "run", 0, -1)
    with pytest.raises(ValueError, match=r"^counted must be a whole number >= -1, got -2$"):
        node.recall(START, -2)
    with pytest.raises(ValueError, match=r"^round must be a whole number >= 4, got 3$"):
        node.remember(3, 3, START)


# what goes wrong


def test_a_damaged_file_is_refused_and_stays(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    train(node, 0, FIRST)
    train(node, 1, 0)
    path = tmp_path / "run" / "client-0" / "after-1.safetensors"
    whole = path.read_bytes()
    spoiled = [
        whole[: len(whole) // 2],
        b"",
        *(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))),
    ]
    told = "client 0 cannot use its memory after round 1 of run run: the file "
    for content in spoiled:
        path.write_bytes(content)
        try:
            found = node.recall(START, 1)
        except RunError as error:
            other = "what client 0 remembers after round 1 of run run does not fit"
            assert str(error).startswith((told, other))  # noqa: PT017
        else:
            # a changed bit that means nothing, such as in "counted"
            assert value(found) == expected([0, 1])
        assert path.read_bytes() == content
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RunError) as caught:
        node.recall(START, 1)
    assert (
        refused(caught, tmp_path) == told + "is damaged; restore it from a copy, or start a new run"
    )
    assert str(path) in str(caught.value.__cause__)  # for the node's own log
    # the round before is whole; training again mends the file
    assert train(node, 1, 0) == expected([0])
    assert value(node.recall(START, 1)) == expected([0, 1])


@pytest.mark.parametrize("content", [b"", b"two", b"\xff", b"9" * 5000])
def test_a_damaged_session_is_refused(content: bytes, tmp_path: Path) -> None:
    train(NodeMemory(tmp_path, "run", 0, session=1), 0, FIRST)
    (tmp_path / "run" / "client-0" / "session").write_bytes(content)
    with pytest.raises(RunError) as caught:
        train(NodeMemory(tmp_path, "run", 0, session=1), 1, 0)
    assert (
        refused(caught, tmp_path) == "client 0 cannot read the last session of run run: the file"
        ' is damaged; remove the file "session" from its memory'
    )


def test_a_file_of_another_run_is_refused(tmp_path: Path) -> None:
    train(NodeMemory(tmp_path, "a", 0), 0, FIRST)
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(RunError) as error:
        NodeMemory(tmp_path, "b", 0).recall(START, 0)
    assert (
        refused(error, tmp_path)
        == "client 0 cannot use its memory after round 0 of run b: the file belongs to another run,"
        " client or round; restore the right one, or start a new run"
    )


@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        (errno.ENOSPC, "free space on its disk"),
        (errno.EDQUOT, "free space on its disk"),
        (errno.EIO, "see its log"),
    ],
)
def test_where_a_disk_is_full_the_old_memories_stay(
    code: int, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeMemory(tmp_path, "run", 0, spare=0)
    for round in range(3):
        train(node, round, round - 1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run" / "client-0").iterdir()}

    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code), str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", fail)
        with pytest.raises(RunError) as error:
            train(node, 3, 2)
    assert (
        refused(error, tmp_path)
        == f"client 0 cannot use its memory folder; nothing there is lost; {way_out}"
    )
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "run" / "client-0").iterdir()
    } == before
    assert train(node, 3, 2) == expected([0, 1, 2])


def test_a_folder_that_cannot_be_made_is_told_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError) as error:
        NodeMemory(tmp_path, "run", 0).recall(START, 0)
    assert (
        refused(error, tmp_path)
        == "client 0 cannot use its memory folder; nothing there is lost; see its log"
    )


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    train(node, 0, FIRST)
    left = tmp_path / "run" / "client-0" / ".after-1.safetensors.x7y8z9a0"
    left.write_bytes(b"half")
    assert value(node.recall(START, 0)) == expected([0])
    train(node, 1, 0)
    assert not left.exists()


HOLD = """
    import sys, time
    from filelock import FileLock
    lock = FileLock(sys.argv[1])
    lock.acquire()
    print("held", flush=True)
    sys.stdin.readline()
    lock.release()
    print("free", flush=True)
    time.sleep(60)
"""


def test_two_processes_of_a_node_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    train(node, 0, FIRST)
    path = tmp_path / "run" / "client-0" / ".lock"
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin
    assert other.stdout
    try:
        assert other.stdout.readline() == "held\n"
        with monkeypatch.context() as patch:
            patch.setattr(module, "PATIENCE", 0.05)
            for act in (lambda: node.recall(START, 0), lambda: node.remember(1, 0, START)):
                with pytest.raises(RunError) as error:
                    act()
                assert (
                    refused(error, tmp_path)
                    == "another process of client 0 has held its memory for 0.05 s; stop one of"
                    " them"
                )
        assert kept(tmp_path) == [0]
        other.stdin.write("\n")
        other.stdin.flush()
        assert train(node, 1, 0) == expected([0])  # waits for its turn
        assert other.stdout.readline() == "free\n"
    finally:
        other.kill()
        other.communicate()


def test_a_process_that_dies_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeMemory(tmp_path, "run", 0)
    train(node, 0, FIRST)
    path = tmp_path / "run" / "client-0" / ".lock"
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout
    try:
        assert other.stdout.readline() == "held\n"
    finally:
        other.kill()
        other.communicate()
    monkeypatch.setattr(module, "PATIENCE", 1)
    assert value(node.recall(START, 0)) == expected([0])
