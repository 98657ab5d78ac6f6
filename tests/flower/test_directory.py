"""The run directory of a real federation: read like a simulator's, with nothing in it that clients
did not share."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.data.federation import Federation
from evenhand.errors import RunError
from evenhand.files import read_rows, read_tensors
from evenhand.page.document import page
from evenhand.studies.analysis.comparison import compare
from evenhand.studies.analysis.gaps import gaps
from evenhand.studies.analysis.statistics import across_clients, statistics
from evenhand.studies.findings import analyse
from evenhand.studies.runs.directories import load_spec
from evenhand.studies.runs.study import Study
from tests.support.commands import invoke
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_faults import Dying, Killed
from tests.support.flower_nodes import FAST, Setting

SIZES = (4, 12, 7, 20)
FROM_SUMS = (
    "mean",
    "pooled",
    "worst10",
    "best10",
    "min",
    "std",
    "variance",
    "variation",
    "jain",
    "cosine",
)


def run(directory: Path, method: str = "fedavg", out: str = "run", **settings: Any) -> eh.Result:
    """Three rounds of a federation of four."""
    setting = Setting(directory, ragged(SIZES), network())
    return setting.run(
        METHODS[method], rounds=3, out=directory / out, **{**FAST, "by_client": False, **settings}
    )


def simulated(method: str = "fedavg", **settings: Any) -> eh.Result:
    return eh.fit(
        network(), ragged(SIZES), METHODS[method], rounds=3, engine="loop", **{**FAST, **settings}
    )


def text_of(html: str) -> str:
    """What one reads on a page."""
    body = re.sub(r"<script.*?</script>|<style.*?</style>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def section(html: str, key: str) -> str:
    found = re.search(rf'<section id="{key}".*?</section>', html, re.DOTALL)
    return text_of(found[0]) if found else ""


def figures(html: str) -> set[str]:
    return set(re.findall(r'<figure id="figure-([\w-]+)"', html))


# ---- what is written


def test_a_run_from_sums_leaves_what_the_simulator_leaves_but_nothing_of_samples(
    tmp_path: Path,
) -> None:
    result = run(tmp_path)
    found = {
        str(path.relative_to(tmp_path / "run"))
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    of_method = (
        "checkpoint.safetensors",
        "history.csv",
        "manifest.json",
        "medians.jsonl",
        "model.safetensors",
        "over_clients.json",
        "scores.csv",
        "tally.safetensors",
    )
    assert found == {
        "spec.toml",
        "about.json",
        "manifest.json",
        "run-name",
        "roster.json",
        "progress.jsonl",
        *(f"fedavg/{name}" for name in of_method),
    }
    model, _ = read_tensors(tmp_path / "run/fedavg/model.safetensors")
    assert all(torch.equal(model[name], value) for name, value in simulated().params.items())
    assert model.keys() == result.params.keys()
    with (tmp_path / "run/fedavg/scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["by"], row["name"]) for row in rows] == [
        ("everyone", "everyone"),
        ("group", "a"),
        ("group", "b"),
        ("group", "c"),
    ]
    assert {name for row in rows for name, cell in row.items() if cell == ""} == {"team"}
    assert [row["round"] for row in read_rows(tmp_path / "run/fedavg/history.csv")] == [1, 2, 3]
    assert json.loads((tmp_path / "run/fedavg/over_clients.json").read_text())["clients"] == 4


def test_the_spec_says_how_models_are_evaluated(tmp_path: Path) -> None:
    run(tmp_path, evaluate="with training")
    spec = load_spec(tmp_path / "run")
    assert spec.evaluate == "with training"
    with pytest.raises(RunError, match=r"started with other settings \(evaluate\)"):
        run(tmp_path)
    # earlier versions did not write it: then the checkpoint tells
    path = tmp_path / "run" / "spec.toml"
    path.write_text(path.read_text().replace('evaluate = "with training"\n', ""))
    assert load_spec(tmp_path / "run").evaluate == "after training"
    run(tmp_path, evaluate="with training")
    with pytest.raises(RunError, match="a checkpoint of a run with other settings or data"):
        run(tmp_path)


def test_a_local_solver_may_be_written_with_or_without_its_defaults(tmp_path: Path) -> None:
    """Earlier versions wrote all of them where a solver was given, and none where it was not."""
    local = eh.LocalSGD(lr=0.1, epochs=1, batch_size=32)
    run(tmp_path, local=None)
    run(tmp_path, local=local)
    assert load_spec(tmp_path / "run").local == {"lr": 0.1, "epochs": 1, "batch_size": 32}
    path = tmp_path / "run" / "spec.toml"
    path.write_text(
        path.read_text().replace("lr = 0.1\n", "lr = 0.1\nmomentum = 0.0\ndecay = 1.0\n")
    )
    run(tmp_path, local=local)
    with pytest.raises(RunError, match=r"started with other settings \(local\)"):
        run(tmp_path, local=eh.LocalSGD(lr=0.1, epochs=1, batch_size=32, momentum=0.5))


def test_it_says_what_each_client_told(tmp_path: Path) -> None:
    run(tmp_path)
    federation = ragged(SIZES)
    about = json.loads((tmp_path / "run/about.json").read_text())
    assert about["federation"]["by_client"] is False
    assert [client["name"] for client in about["federation"]["clients"]] == ["0", "1", "2", "3"]
    assert [client["team"] for client in about["federation"]["clients"]] == [
        "even",
        "odd",
        "even",
        "odd",
    ]
    for number, client in enumerate(about["federation"]["clients"]):
        for kind in ("train", "test"):
            codes = getattr(federation, kind).client(number)[2].tolist()
            assert client["samples"][kind] == {
                name: codes.count(code) for code, name in enumerate(federation.group_names)
            }
    assert about["server"] == {"fedavg": {"sees": [], "stays": []}}
    assert "flwr" in about["versions"]


@pytest.mark.parametrize(
    ("method", "sees", "stays"),
    [
        ("afl", ["its loss"], []),
        ("fedfv", ["its update", "its loss"], []),
        ("ditto", [], ["personal"]),
        ("gifair_per", [], ["loss", "heard", "model"]),
        ("finetuned", [], ["loss", "heard"]),
    ],
)
def test_it_says_what_the_server_sees_and_what_stays_with_clients(
    method: str, sees: list[str], stays: list[str], tmp_path: Path
) -> None:
    run(tmp_path, method)
    about = json.loads((tmp_path / "run/about.json").read_text())
    assert list(about["server"].values()) == [{"sees": sees, "stays": stays}]
    assert about["federation"]["by_client"] is False


def test_a_finished_run_that_is_started_again_leaves_the_same_files(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())

    def files() -> dict[str, bytes]:
        setting.run(METHODS["afl"], rounds=3, **FAST)
        found = {path.name: path for path in (tmp_path / "run").rglob("*") if path.is_file()}
        # which counts how often the server was started, and which notes each start
        del found["roster.json"], found["progress.jsonl"]
        return {name: path.read_bytes() for name, path in found.items()}

    assert files() == files()


def test_a_directory_can_be_moved_and_goes_on(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    first = setting.run(METHODS["fedavg"], rounds=3, **FAST)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    again = setting.run(METHODS["fedavg"], rounds=3, out=tmp_path / "elsewhere", **FAST)
    assert again.history_rows == first.history_rows


@dataclasses.dataclass(frozen=True)
class Mine(eh.Algorithm):
    """A method that no spec knows."""

    strength: float = 0.5
    parts: tuple[int, ...] = (1, 2)


def test_a_method_of_ones_own_leaves_a_directory_too(tmp_path: Path) -> None:
    Setting(tmp_path, ragged(SIZES), network(), algorithm=Mine()).run(
        Mine(), rounds=2, by_client=False
    )
    study = Study.load([tmp_path / "run"])
    assert study.labels == ("Mine",)
    assert study.first.method.parameters == {"strength": 0.5}
    assert "Mine nothing: sums only" in section(page(analyse(study)), "server")


# ---- what is read


def test_numbers_over_clients_are_the_simulators(tmp_path: Path) -> None:
    run(tmp_path)
    study, reference = Study.load([tmp_path / "run"]), simulated()
    found = across_clients(study, "fedavg", FAST["seed"])
    columns = reference.score_columns
    expected = statistics(study, columns["accuracy"][:4], columns["count"][:4].astype(np.float64))
    for name in FROM_SUMS:
        # half a cell of the histogram
        close = 6e-4 if name in ("worst10", "best10", "min") else 1e-9
        assert float(found[name]) == pytest.approx(float(expected[name]), abs=close), name
    assert [name for name, value in found.items() if np.isnan(value)] == ["max", "gini", "entropy"]
    assert (study.clients, study.samples, study.names("client"), study.names("team")) == (
        4,
        36,
        (),
        (),
    )


def test_gaps_between_groups_are_the_simulators(tmp_path: Path) -> None:
    run(tmp_path)
    run(tmp_path, out="by-client", by_client=True)
    sums, rows = (gaps(Study.load([tmp_path / name]))["fedavg"] for name in ("run", "by-client"))
    assert sums.keys() == rows.keys()
    assert {kind: interval.value for kind, interval in sums.items()} == pytest.approx(
        {kind: one.value for kind, one in rows.items()}, nan_ok=True
    )
    accuracy = [
        row["accuracy"]
        for row in simulated().score_rows
        if row["by"] == "group" and row["count"] >= 10
    ]
    assert sums["accuracy parity"].value == pytest.approx(max(accuracy) - min(accuracy))


def test_where_clients_are_seen_there_is_a_row_for_each(tmp_path: Path) -> None:
    run(tmp_path, by_client=True)
    study, reference = Study.load([tmp_path / "run"]), simulated()
    assert study.names("client") == ("0", "1", "2", "3")
    assert study.merits("fedavg", FAST["seed"]).tolist() == pytest.approx(
        reference.score_columns["accuracy"][:4].tolist()
    )
    html = page(analyse(study))
    assert {"overview", "distribution", "front", "learning"} <= figures(html)
    assert "not shared" not in section(html, "methods") + section(html, "clients")
    assert section(html, "server").count("yes, but not its evaluation by client") == 1
    assert "Per-sample results were not shared" in section(html, "ledger")


def test_several_seeds_give_intervals_without_single_clients(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        run(tmp_path, out=f"seed-{seed}", seed=seed)
    study = Study.load([tmp_path / f"seed-{seed}" for seed in (1, 2, 3)])
    comparison = compare(study)
    means = [simulated(seed=seed).summary["mean"] for seed in (1, 2, 3)]
    interval = comparison.rows["fedavg"]["mean"]
    assert comparison.over == "seeds"
    assert interval.value == pytest.approx(np.mean(means))
    # Student's t with two degrees of freedom; where seeds agree, one sample may still be another
    half = 4.302652729911275 * max(np.std(means, ddof=1) / 3**0.5, 1 / study.samples)
    assert (interval.low, interval.high) == pytest.approx(
        (np.mean(means) - half, np.mean(means) + half)
    )


# ---- the page


def test_the_page_of_a_run_from_sums_says_what_was_not_shared_and_draws_the_rest(
    tmp_path: Path,
) -> None:
    run(tmp_path)
    html = page(analyse(Study.load([tmp_path / "run"])))
    assert figures(html) == {"overview", "front", "gaps-group", "members-group", "learning"}
    assert (
        "Not shared: with fedavg the server got scores as sums over clients, not client by client."
        in section(html, "clients")
    )
    assert "Not recorded: with fedavg the server stored no effective weights." in section(
        html, "weights"
    )
    assert "The server saw no scores client by client" in text_of(html)
    assert not re.search(r"\bnan\b", text_of(html), re.IGNORECASE)
    assert "gini" not in section(html, "methods").lower().replace(
        "smaller is better for std and gini", ""
    )
    assert "4 clients" in text_of(html)
    assert "36 test samples" in text_of(html)
    assert "no intervals" in text_of(html)
    assert "A Flower app ran with these settings" in section(html, "reproduce")
    assert "evenhand run" not in section(html, "reproduce")


def test_the_page_says_what_the_server_learned(tmp_path: Path) -> None:
    run(tmp_path, "afl", out="afl", by_client=True)
    run(tmp_path, "ditto", out="ditto")
    found = section(page(analyse(Study.load([tmp_path / "afl", tmp_path / "ditto"]))), "server")
    assert found.startswith("What the server learned about single clients")
    assert (
        "afl its loss its scores: counts of predictions by label and group, and losses - no"
        in found
    )
    assert (
        "ditto nothing: sums only nothing client by client: sums, and how many clients have which"
        " accuracy personal yes" in found
    )
    federation = ragged(SIZES)
    first = [str(federation.train.client(0)[2].tolist().count(code)) for code in range(3)]
    assert (
        f"client team train, a train, b train, c test, a test, b test, c 0 even {' '.join(first)}"
        in found
    )


def test_the_page_does_not_deny_what_the_method_saw_client_by_client(tmp_path: Path) -> None:
    run(tmp_path, "afl", out="afl")  # reads each client's loss, but shares no scores
    html = page(analyse(Study.load([tmp_path / "afl"])))
    assert "afl its loss nothing client by client: sums" in section(html, "server")
    assert "the server got scores as sums over clients" in section(html, "clients")
    assert "they need by_client=True and track_weights=True" in section(html, "weights")
    assert "sums only" not in section(html, "clients") + section(html, "weights")


def test_sums_beside_rows_of_clients_are_not_made_up(tmp_path: Path) -> None:
    """FedAvg from sums, AFL with a row per client: numbers that sums do not give are missing for
    the one and there for the other."""
    run(tmp_path, out="fedavg")
    run(tmp_path, "afl", out="afl", by_client=True)
    study = Study.load([tmp_path / "fedavg", tmp_path / "afl"])
    html = page(analyse(study))
    assert not {"distribution", "sorted", "weights"} & figures(html)
    assert "A report on only the other methods has these figures." in section(html, "clients")
    rows = compare(study).rows
    assert np.isnan(rows["fedavg"]["gini"].value)
    assert rows["afl"]["gini"].value == pytest.approx(
        float(eh.metrics.spread.gini(simulated("afl").score_columns["accuracy"][:4]))
    )
    head, _, rest = section(html, "methods").partition("fedavg reference")
    assert "Gini" in head
    assert rest.split()[:11].count("shared") == 1
    differences = (
        section(html, "methods").partition("points of accuracy.")[2].partition("More metrics")[0]
    )
    assert "afl" in differences
    assert "Gini" not in differences.partition("method")[2]
    mean = compare(study).differences["afl"]["mean"].interval
    assert mean.value == pytest.approx(
        simulated("afl").summary["mean"] - simulated().summary["mean"]
    )
    assert np.isnan(mean.low)
    assert "Compared with FedAvg, afl changes accuracy by" in text_of(html)
    assert "significantly" not in text_of(html)


def test_a_difference_to_what_was_not_shared_is_not_made_up(tmp_path: Path) -> None:
    run(tmp_path, out="fedavg", by_client=True)
    run(tmp_path, "afl", out="afl", by_client=True)
    run(tmp_path, "qffl", out="qffl")
    study = Study.load([tmp_path / name for name in ("fedavg", "afl", "qffl")])
    table = (
        section(page(analyse(study)), "methods")
        .partition("points of accuracy.")[2]
        .partition("More metrics")[0]
    )
    of_afl, of_qffl = table.partition(" afl ")[2].split(" qffl ")
    assert table.count("not shared") == 1
    assert of_qffl.split()[-2:] == ["not", "shared"]
    assert len(of_afl.split()) == len(of_qffl.split()) - 1


def test_an_error_is_reported_from_sums_too(tmp_path: Path) -> None:
    """A regression: over all samples it follows from sums, over clients it does not."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(9, 3)), "y": rng.normal(size=9)} for _ in range(3)]
    data = [Federation.from_arrays([client], test=[client]) for client in clients]
    setting = Setting(
        tmp_path,
        Federation.from_arrays(clients, test=clients),
        torch.nn.Linear(3, 1).double(),
        data,
    )
    result = setting.run(eh.FedAvg(), rounds=2, loss="mse", by_client=False, eval_every=1)
    study = Study.load([tmp_path / "run"])
    found = across_clients(study, "fedavg", 3)
    assert float(found["pooled"]) == pytest.approx(-(float(result.score_columns["loss"][0]) ** 0.5))
    assert all(np.isnan(value) for name, value in found.items() if name != "pooled")
    html = page(analyse(study))
    assert figures(html) == {"learning"}
    assert not re.search(r"\bnan\b", text_of(html), re.IGNORECASE)


def test_who_gave_no_last_answer_is_not_among_those_counted(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())

    def lose(node: int, reply: Any) -> list[Any]:
        about = reply.content.get("about", {})
        return [] if node == 2 and about.get("work") == "evaluate" else [reply]

    setting.grid.spoil = lose
    setting.run(METHODS["fedavg"], rounds=2, deadline=0.3, by_client=False)
    assert "over 3 of 4 clients" in section(
        page(analyse(Study.load([tmp_path / "run"]))), "methods"
    )


# ---- runs that did not end


def test_a_run_that_was_ended_says_how_far_it_came(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.__class__ = Dying
    setting.grid.moment = ("push", "train", 2)  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        setting.run(METHODS["afl"], rounds=3, **FAST)
    directory = str(tmp_path / "run")
    code, out, err = invoke("report", directory)
    assert (code, out) == (1, "")
    told = (
        f"evenhand: {directory} is not finished: it has done 2 of 3 rounds; start its Flower app"
        " again with the same out to resume it"
    )
    assert err.startswith(told)
    assert err.count("\n") == 1
    setting.run(METHODS["afl"], rounds=3, **FAST)
    code, _, err = invoke("report", directory, "--out", str(tmp_path / "page.html"))
    assert (code, err) == (0, "")
    assert "What the server learned about single clients" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "arguments",
    [("resume", "run"), ("run", "run/spec.toml"), ("compare", "run/spec.toml", "--seeds", "2")],
)
def test_other_commands_say_that_the_data_are_elsewhere(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, err = invoke(*arguments)
    assert code == 1
    assert (
        err
        == "evenhand: the data of this run stay with the nodes of a federation; start its Flower"
        " app to run or resume it\n"
    )
