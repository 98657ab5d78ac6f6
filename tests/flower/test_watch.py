"""What is noted of a run while it goes on, its metrics and its logs."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.flower import journal, metrics
from evenhand.flower.faults import note_fault
from evenhand.flower.link import Limits
from evenhand.flower.logs import LOGGERS, VARIABLE, event_of, log_as_json
from evenhand.flower.watch import Now, Watch
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import Setting

SIZES = (9, 7, 12)
LIMITS = Limits(deadline=20, patience=30)


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path, tmp_path / "fedavg", 5, LIMITS)


# ---- the journal


def test_a_half_written_line_is_not_read_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    journal.append(path, {"round": 1})
    with path.open("ab") as file:
        file.write(b'{"round": 2, "seco')  # killed here

    assert journal.read(path) == journal.Lines([{"round": 1}], 0)
    assert journal.read_from(path, 0) == ([{"round": 1}], 13)

    journal.append(path, {"round": 2})

    # the half line is one that nobody will finish
    assert journal.read(path) == journal.Lines([{"round": 1}, {"round": 2}], 1)
    assert journal.read_from(path, 13)[0] == [{"round": 2}]


def test_a_file_that_cannot_be_written_costs_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lines.jsonl").mkdir()
    journal.append(tmp_path / "lines.jsonl", {"round": 1})
    assert (
        f"{tmp_path}/lines.jsonl cannot be written: Is a directory; training continues without it"
        in caplog.text
    )


def test_lines_of_several_threads_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"

    def write(who: int) -> None:
        for i in range(100):
            journal.append(path, {"who": who, "i": i, "text": "x" * 200})

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = journal.read(path)
    assert found.damaged == 0
    assert sorted((line["who"], line["i"]) for line in found.records) == [
        (who, i) for who in range(4) for i in range(100)
    ]


# ---- a run


def test_a_run_notes_its_rounds_and_who_answered(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.spoil = lambda node, reply: [] if node == 2 and _round(reply) == 1 else [reply]
    setting.run(METHODS["fedavg"], rounds=3, deadline=0.5)

    lines = journal.read(tmp_path / "run" / journal.PROGRESS).records
    assert [line["event"] for line in lines] == [
        "start",
        "rounds",
        "round",
        "round",
        "round",
        "end",
    ]
    assert [line["clients"] for line in lines[2:5]] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert [(line["asked"], line["answered"]) for line in lines[2:5]] == [(3, 3), (3, 2), (3, 3)]
    start = lines[0]
    assert (start["rounds"], start["deadline"], start["patience"]) == (3, 0.5, 600)
    assert start["pid"] == os.getpid()
    assert lines[3]["seconds"] >= 0.5 > lines[2]["seconds"]  # it waited for the deadline
    assert all(line["time"].endswith("+00:00") for line in lines)
    assert lines[5]["round"] == 3


def test_a_run_that_goes_on_counts_the_rounds_before(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.run(METHODS["fedavg"], rounds=2)
    watch = Watch(tmp_path / "run", tmp_path / "run" / "fedavg", 2, LIMITS)
    watch.begins(3)
    assert watch.now.done == 2


def test_the_history_is_the_simulators_whether_or_not_somebody_looks_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories = []
    for name, address in (("without", ""), ("with", "127.0.0.1:0")):
        monkeypatch.setenv(metrics.VARIABLE, address)
        Setting(tmp_path / name, ragged(SIZES), network()).run(METHODS["afl"], rounds=3)
        histories.append((tmp_path / name / "run" / "afl" / "history.csv").read_bytes())
    assert histories[0] == histories[1]


def _round(reply: Any) -> int | None:
    return reply.content["about"].get("round") if "about" in reply.content else None


# ---- metrics


def test_numbers_are_those_of_the_run(watch: Watch, tmp_path: Path) -> None:
    watch.begins(4)
    watch.round(1, {"asked": 4, "answered": 4})
    note_fault(tmp_path / "fedavg", 2, 1, "north", "gone", "its node is gone (Flower's error 5)")
    note_fault(tmp_path / "fedavg", 2, 3, "west", "refused", "not finite: total/delta")
    note_fault(tmp_path / "fedavg", 1, 3, "west", "refused", "not finite: total/delta")
    watch.round(2, {"asked": 4, "answered": 2, "loss": 0.5, "mean": 0.75, "worst": math.nan})

    text = metrics.metrics(watch.now, watch.left_out(), at=watch.now.moved + 3)
    values = parsed(text)

    assert values["evenhand_rounds_done"] == 2
    assert values["evenhand_rounds"] == 5
    assert values["evenhand_finished"] == 0
    assert values["evenhand_clients_registered"] == 4
    assert values["evenhand_clients_present"] == 3
    assert values["evenhand_clients_asked"] == 4
    assert values["evenhand_clients_answered"] == 2
    assert values["evenhand_quiet_seconds"] == pytest.approx(3)
    assert 0 <= values["evenhand_round_seconds"] < 5
    assert values['evenhand_left_out_total{reason="gone"}'] == 1
    assert values['evenhand_left_out_total{reason="late"}'] == 0
    assert values['evenhand_left_out_total{reason="refused"}'] == 2
    assert values['evenhand_score{measure="mean"}'] == 0.75
    assert math.isnan(values['evenhand_score{measure="worst"}'])
    assert any(name.startswith("evenhand_build_info{") for name in values)


def test_the_text_is_what_prometheus_reads(watch: Watch) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    watch.begins(4)
    watch.round(1, {"asked": 4, "answered": 4, "loss": 0.5, "mean": math.inf})
    text = metrics.metrics(watch.now, {"not shared": 2}, at=watch.now.moved)
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["evenhand_left_out"].type == "counter"
    assert families["evenhand_rounds_done"].samples[0].value == 1
    assert set(parsed(text)) == {
        sample.name + _labels(sample.labels)
        for family in families.values()
        for sample in family.samples
    }


def test_the_page_names_metrics_that_there_are(watch: Watch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "operate.md").read_text()
    watch.begins(4)
    watch.round(1, {"asked": 4, "answered": 4, "loss": 0.5})
    known = {name.partition("{")[0] for name in parsed(metrics.metrics(watch.now, {}, 0.0))}
    named = set(re.findall(r"\bevenhand_[a-z_]+", page))
    assert len(named) >= 8
    assert named <= known
    assert f"`{VARIABLE}=" in page
    assert f"`{metrics.VARIABLE}=" in page


@pytest.mark.parametrize(
    ("change", "quiet", "well", "words"),
    [
        ({"begun": False}, 79.9, True, "waiting for nodes, last activity 80 s ago"),
        ({"begun": True, "done": 2}, 79.9, True, "round 2 of 5 done, last activity 80 s ago"),
        (
            {"begun": True, "done": 2},
            80.1,
            False,
            "nothing has moved for 80 s, longer than deadline",
        ),
        ({"finished": True, "begun": True}, 1e6, True, "finished"),
    ],
)
def test_health_ends_where_nothing_moves_for_longer_than_it_may(
    change: dict[str, Any], quiet: float, well: bool, words: str
) -> None:
    now = dataclasses.replace(Now(5, moved=100.0), **change)
    # 20 s of deadline, 30 s of patience, 30 s of slack
    found, line = metrics.health(now, LIMITS.patience, LIMITS.deadline, at=100 + quiet)
    assert found is well
    assert words in line


def test_metrics_are_served_while_the_run_goes_on(watch: Watch) -> None:
    with metrics.served(watch, "0") as port:
        assert _get(port, "/healthz") == (200, "waiting for nodes, last activity 0 s ago\n")
        watch.begins(3)
        watch.round(1, {"asked": 3, "answered": 3})
        assert parsed(_get(port, "/metrics")[1])["evenhand_rounds_done"] == 1
        assert _get(port, "/")[0] == 404
        watch._now = dataclasses.replace(watch.now, moved=time.monotonic() - 81)
        assert _get(port, "/healthz")[0] == 503
    with pytest.raises(urllib.error.URLError):
        _get(port, "/metrics")


def test_a_port_that_is_taken_costs_a_line_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv(metrics.VARIABLE, str(taken.getsockname()[1]))
        result = Setting(tmp_path, ragged(SIZES), network()).run(METHODS["fedavg"], rounds=1)
    assert len(result.history_rows) == 1
    assert caplog.text.count("cannot serve metrics on") == 1
    assert "Address already in use; choose a free port; training continues without" in caplog.text


def test_an_address_that_is_none_costs_a_line(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    for address in ("nine", "99999999", "127.0.0.1:x"):
        with metrics.served(watch, address) as port:
            assert port is None
        assert f"cannot serve metrics on {address}: " in caplog.text
    assert metrics.read_address("9464") == ("127.0.0.1", 9464)
    assert metrics.read_address("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert metrics.read_address("[::1]:9464") == ("::1", 9464)


def parsed(text: str) -> dict[str, float]:
    """Values by name and labels; every line must be of Prometheus' text format."""
    name, label = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'[a-z]+="[^"\\\n]*"'
    number = r"(?:[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|Inf)|NaN)"
    found, described = {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if told := re.fullmatch(rf"# (?:HELP|TYPE) ({name}) .+", line):
            described.add(told[1])
            continue
        match = re.fullmatch(rf"({name})((?:\{{{label}(?:,{label})*\}})?) ({number})", line)
        assert match, line
        assert match[1] in described
        assert match[1] + match[2] not in found
        found[match[1] + match[2]] = float(match[3])
    return found


def _labels(labels: dict[str, str]) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _get(port: int | None, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


# ---- logs


@pytest.fixture
def _loggers() -> Iterator[None]:
    """Loggers as they were."""
    before = {
        name: (list(logging.getLogger(name).handlers), logging.getLogger(name).level)
        for name in LOGGERS
    }
    yield
    for name, (handlers, level) in before.items():
        logging.getLogger(name).handlers = handlers
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("_loggers")
def test_logs_are_one_object_per_line_in_a_file_and_words_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "log.jsonl"))
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.spoil = lambda node, reply: [] if node == 2 and _round(reply) == 1 else [reply]
    setting.run(METHODS["fedavg"], rounds=2, deadline=0.5)

    lines = journal.read(tmp_path / "log.jsonl").records
    assert all(
        set(line) == {"time", "level", "event", "round", "client", "text", "process", "pid"}
        for line in lines
    )
    rounds = [line for line in lines if line["event"] == "round"]
    assert [(line["round"], line["level"]) for line in rounds] == [(1, "info"), (2, "info")]
    assert rounds[1]["text"] == "round 2 of 2: 2 of 3 clients have answered"
    late = next(line for line in lines if line["event"] == "left_out")
    assert (late["round"], late["client"], late["level"]) == (2, 1, "warning")
    assert "client 1 has not answered within 0.5 s" in capsys.readouterr().err


@pytest.mark.usefixtures("_loggers")
def test_logs_on_standard_error_are_lines_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_as_json("node", "1")
    logging.getLogger("evenhand.flower.client").warning("process %d hangs\nfor long", 7)
    logging.getLogger("flwr").info("")  # Flower logs empty lines
    try:
        raise KeyError("ward")
    except KeyError:
        logging.getLogger("evenhand.flower.client").exception("a task failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["text"] for line in lines] == [
        "process 7 hangs\nfor long",
        "a task failed: KeyError: 'ward'",
    ]
    assert [line["event"] for line in lines] == ["log", "failed"]
    assert {line["process"] for line in lines} == {"node"}


@pytest.mark.usefixtures("_loggers")
def test_logs_stay_words_unless_lines_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for off in ("", "0"):
        monkeypatch.setenv(VARIABLE, off)
        before = list(logging.getLogger("flwr").handlers)
        log_as_json("server")
        assert logging.getLogger("flwr").handlers == before


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("round 3 of 9: 4 of 4 clients have answered", "round"),
        ("client 1 (north) is skipped: its node is gone (Flower's error 5)", "left_out"),
        ("node 77 cannot take part: node has no training samples", "refused"),
        ("no client has a node any more; round 2 waits up to 600 s for one", "waiting"),
        ("client 1 has a new node", "node_back"),
        ("Start `flwr-serverapp` process", "log"),
    ],
)
def test_lines_say_what_has_happened(text: str, event: str) -> None:
    assert event_of(text) == event
