"""The model card: its numbers are those of the findings, and no name becomes markup."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import evenhand as eh
from evenhand.page.card.blocks import Bullets, Code, Table
from evenhand.page.card.caution import limits, privacy
from evenhand.page.card.metadata import yaml
from evenhand.page.card.results import by_client, by_group, compared, overall
from evenhand.page.card.subject import Subject
from evenhand.page.card.training import data, method, settings, summary
from evenhand.page.card.writing import html, markdown, subject_of
from evenhand.page.document import page
from evenhand.studies.findings import analyse
from tests.support.commands import invoke
from tests.support.studies import FIVE, NASTY, make_study, study_of

PATIENTS = Path(__file__).parent.parent.parent / "examples" / "patients.csv"
ROLES = ("--client", "hospital", "--label", "complication", "--group", "sex")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of a personal method with two seeds, on disk."""
    directory = tmp_path_factory.mktemp("runs") / "patients"
    given = ("-a", "ditto:lam=0.5", "--rounds", "3", "--seeds", "2", "--no-report", "-q")
    asked = ("compare", "--data", str(PATIENTS), *ROLES, *given, "--out", str(directory))
    assert invoke(*asked) == (0, "", "")
    return directory


@pytest.fixture(scope="module")
def ditto(run: Path) -> Subject:
    return subject_of(run, "ditto")


@pytest.fixture(scope="module")
def five() -> Subject:
    study = make_study(FIVE, seeds=2, clients=12, samples=40, teams=("city", "land"))
    return subject_of(study, "qffl", purpose="To test\nthe card.")


def exact(**settings: Any) -> Subject:
    """Client 0 has 8 of 10 samples right, client 1 has 3 of 4."""
    label = [1, 0] * 7
    client = [0] * 10 + [1] * 4
    right = [1] * 8 + [0] * 2 + [1] * 3 + [0]
    predicted = [y if hit else 1 - y for y, hit in zip(label, right, strict=True)]
    return subject_of(study_of({"qffl": [predicted]}, label, client, **settings))


def rows(section: Any, number: int = 0) -> dict[str, list[str]]:
    """The rows of a section's table, by name."""
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return {name: list(rest) for name, *rest in tables[number].rows}


def words(section: Any) -> str:
    return " ".join(
        " ".join(getattr(block, "items", [getattr(block, "text", "")])) for block in section.blocks
    )


def test_the_accuracy_of_a_client_has_wilsons_interval_by_hand() -> None:
    """8 of 10: (8 + 1.9208) / (10 + 3.8415) = 0.7167, half-width 0.2266."""
    found = rows(by_client(exact()))
    assert found["client 0"] == ["10", "80.0 % [49.0, 94.3]"]
    assert list(found) == ["client 1", "client 0"]  # worst first


def test_the_error_of_a_client_has_students_interval() -> None:
    study = make_study({"fedavg": (0.8, 0.0)}, seeds=1, clients=3, samples=30, regression=True)
    found = rows(by_client(subject_of(study)))
    trial = study.trial("fedavg")
    for client in range(3):
        squares = trial.values[trial.sample_client == client]
        ends = stats.t.interval(0.95, 29, squares.mean(), stats.sem(squares))
        low, high = 10 * np.sqrt(np.maximum(ends, 0))
        value = 10 * np.sqrt(squares.mean())
        assert found[f"client {client}"] == ["30", f"{value:.2f} [{low:.2f}, {high:.2f}]"]


def test_results_are_those_of_the_findings(five: Subject) -> None:
    study, row = five.study, five.findings.comparison.rows["qffl"]
    found = rows(overall(five))
    for name, heading in (("mean", "Mean over clients"), ("worst10", "Worst 10 % of clients")):
        value, low, high = (100 * number for number in row[name])
        assert found[heading] == [f"{value:.1f} % [{low:.1f}, {high:.1f}]"]
    groups = by_group(five)
    view = five.findings.groups["group"]["qffl"]
    rate = view.rates["true-positive rate", "south"].interval
    tables = [block for block in groups.blocks if isinstance(block, Table)]
    column = tables[0].headings.index("true-positive rate") - 1
    expected = [100 * number for number in rate]
    assert rows(groups)["south"][column] == "{:.1f} % [{:.1f}, {:.1f}]".format(*expected)
    gap = [100 * number for number in view.gaps["equal opportunity"].interval]
    assert rows(groups, 1)["true-positive rate (equal opportunity)"][
        0
    ] == "{:.1f} [{:.1f}, {:.1f}]".format(*gap)
    assert set(rows(groups, 2)) == {"city", "land"}
    merits = np.mean([study.merits("qffl", seed) for seed in study.seeds], 0)
    worst = study.names("client")[int(merits.argmin())]
    assert next(iter(rows(by_client(five)))) == worst


def test_the_comparison_has_the_answer_and_what_concerns_the_method(five: Subject) -> None:
    section = compared(five)
    told = words(section)
    for sentence in five.findings.answer.sentences:
        assert sentence in told
    own = [
        line for line in five.findings.sentences if line.startswith("Compared with FedAvg, qffl")
    ]
    assert own
    assert all(line in told for line in own)
    change = five.findings.comparison.differences["qffl"]["mean"].interval
    sign = "+" if change.value > 0 else "\u2212"
    assert rows(section)["Mean over clients"][0].startswith(f"{sign}{abs(100 * change.value):.1f}")
    lost = [e for e in five.findings.entries if e.by == "client" and e.method == "qffl"]
    harmed = sum(e.verdict == "harmed" for e in lost if e.against == "fedavg")
    assert re.search(rf"Compared with FedAvg, of 12 clients, \d+ gains? and {harmed} loses?", told)


def test_one_method_alone_says_that_nothing_is_compared() -> None:
    subject = exact()
    assert "no baseline" in words(compared(subject))
    assert "no groups" in words(by_group(subject))
    assert "one training run" in words(limits(subject))
    assert "2 clients have fewer than 11" in words(
        limits(subject_of(analyse(subject.study, least=11)))
    )
    assert "1 client has fewer than 10 test samples" in words(limits(subject))


def test_many_clients_are_percentiles() -> None:
    study = make_study({"qffl": (0.8, 0.2)}, seeds=1, clients=60, samples=20)
    section = by_client(subject_of(study))
    merits = study.merits("qffl", 0)
    found = rows(section)
    assert found["median"] == [f"{100 * np.median(merits):.1f} %"]
    assert found["worst"] == [f"{100 * merits.min():.1f} %"]
    assert len(found) == 7
    assert study.names("client")[int(np.argsort(merits, kind="stable")[0])] in words(section)


def test_a_server_that_saw_sums_only_has_no_results_by_client() -> None:
    study = make_study({"fedavg": (0.8, 0.0)}, seeds=1, clients=4)
    trials = {}
    for key, trial in study.trials.items():
        columns = {
            name: list(np.asarray(values)[3:]) for name, values in trial.score_columns.items()
        }
        columns["by"][0] = "everyone"
        over = {"clients": 4, "mean": 0.8, "worst10": 0.6, "best10": 0.9, "worst": 0.6, "std": 0.1}
        trials[key] = replace(
            trial, score_columns=columns, counts=None, values=None, over_clients=over
        )
    about = {
        "server": {"fedavg": {"sees": ["its loss"], "stays": []}},
        "federation": {"clients": [{}] * 4},
        "data": "",
    }
    # a run's folder of one method is the method's
    placed = {key: replace(trial, folder=Path("runs/x/fedavg")) for key, trial in trials.items()}
    study = replace(study, trials=placed, about=(about,), directories=(Path("runs/x"),))
    subject = subject_of(study)
    assert "results by client are unknown" in words(by_client(subject))
    assert "the samples stayed with 4 clients" in " ".join(summary(subject))
    section = privacy(subject)
    assert section.heading == "What the server learned about single clients"
    assert "simulation" not in words(section)
    assert rows(section)["seen of one client in training"] == ["its loss"]
    assert markdown(subject).startswith("---\n")


def test_settings_data_and_server_come_from_the_run(ditto: Subject) -> None:
    subject = ditto
    about, spec = subject.about, subject.spec
    found = rows(settings(subject))
    assert found["rounds"] == ["3"]
    assert found["local solver"] == ["sgd, lr = 0.1, epochs = 1, batch_size = 32"]
    assert found["training runs"] == ["2 training runs (seeds 0, 1)"]
    assert f"torch {about['versions']['torch']}" in found["versions"][0]
    count = sum(leaf.numel() for leaf in subject.trial.params.values())
    assert found["trained parameters"] == [f"{count} for each client"]
    assert rows(method(subject))["hyper-parameters"] == ["lam = 0.5"]
    assert "ICML 2021" in rows(method(subject))["described in"][0]
    facts = rows(data(subject))
    federation = spec.build_data()
    assert facts["fingerprint"] == [federation.fingerprint()]
    assert facts["training samples"] == [f"{len(federation.train.x):,}"]
    assert facts["test samples"] == [f"{len(federation.test.x):,}"]
    assert facts["groups"] == ["2: female, male"]
    assert facts["data"] == ["the file patients.csv"]
    server = rows(privacy(subject))
    assert server["seen of one client in training"] == ["nothing: sums only"]
    assert server["stored only by the client"] == ["personal"]
    assert "no differential privacy" in words(privacy(subject))
    assert "each client has a model of its own" in " ".join(summary(subject))


def test_a_simulation_with_masked_sums_says_so(tmp_path: Path) -> None:
    module, fed = torch.nn.Linear(64, 10), eh.datasets.digits(clients=4, seed=0)
    engine = eh.Masked(eh.SecureSums(), masks=False)
    eh.fit(module, fed, eh.FedAvg(), rounds=1, engine=engine, out=tmp_path / "run")
    subject = subject_of(tmp_path / "run")
    said = words(privacy(subject))
    assert said.startswith("Replies were summed as masked sums do it: in a federation")
    assert "evenhand added no differential privacy." in said
    assert "did not mask" not in said
    assert "of 4 clients" in words(limits(subject))
    whole = page(subject.findings)
    assert "Replies were summed as masked sums do it" in whole
    assert "messages reach the server one by one" not in whole
    assert "4</b> clients" in whole


def test_the_code_of_the_card_runs(
    run: Path, ditto: Subject, tmp_path: Path, monkeypatch: Any
) -> None:
    """The Python block loads the model and predicts; the command exports it."""
    from evenhand.page.card.usage import load

    monkeypatch.chdir(tmp_path)
    shutil.copy(PATIENTS, "new.csv")
    section = load(ditto)
    python, command = (block for block in section.blocks if isinstance(block, Code))
    names: dict[str, Any] = {}
    exec(python.text, names)
    table, trial = eh.read_table(PATIENTS), ditto.trial
    expected = eh.load(run).model("ditto").predict(table, client="Eastgate")
    assert names["predictions"].tolist() == expected.tolist()
    own = trial.personal[0]
    assert all((value == own[key]).all() for key, value in names["network"].state_dict().items())
    assert command.text.startswith(f"evenhand export {run} --method ditto --client Eastgate")
    python = load(exact()).blocks[0]
    assert isinstance(python, Code)
    compile(python.text, "card", "exec")


def test_a_run_of_a_python_program_has_a_card(tmp_path: Path) -> None:
    """Its method's files are in the directory itself."""
    module, fed = torch.nn.Linear(64, 10), eh.datasets.digits(clients=3, seed=0)
    eh.fit(module, fed, eh.FedFV(), rounds=1, out=tmp_path / "run")
    subject = subject_of(tmp_path / "run")
    seen = ", ".join(subject.about["server"]["fedfv"]["sees"])
    assert seen
    assert rows(privacy(subject))["seen of one client in training"] == [seen]
    assert rows(data(subject))["data"] == ["samples of a Python program"]
    text = markdown(subject)
    assert "A Python program trained its own model" in text
    assert 'model = run.model("fedfv", module=...)  # the network that was trained\n' in text
    assert "evenhand export" not in text


def test_clients_that_keep_their_batchnorm_have_models_of_their_own(tmp_path: Path) -> None:
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
    )
    fed = eh.datasets.digits(clients=3, seed=0)
    eh.fit(net, fed, eh.FedAvg(), rounds=1, normalisation="local", out=tmp_path / "run")
    subject = subject_of(tmp_path / "run")
    text = markdown(subject)
    assert "each client has a model of its own" in text
    assert "A new client has none until it has trained one; there is no shared one." in text
    client = fed.name(0)
    assert f'predictions = model.predict(rows, client="{client}")\n' in text
    model = eh.load(tmp_path / "run").model("fedavg", module=net)
    assert model.predict(fed.test.x[:3], client=client).shape == (3,)


def test_a_new_client_can_use_the_shared_model(ditto: Subject) -> None:
    assert "until it has trained one; until then it can use the shared model" in markdown(ditto)


def test_local_training_alone_is_a_baseline_without_an_empty_list() -> None:
    study = make_study({"qffl": (0.8, 0.1), "localonly": (0.7, 0.1)}, seeds=1, clients=3)
    section = compared(subject_of(study, "qffl"))
    assert "Compared with local-only training, of 3 clients" in words(section)
    assert all(block.items for block in section.blocks if isinstance(block, Bullets))
    assert "no baseline" in words(compared(subject_of(study, "localonly")))


def test_a_run_that_stopped_early_has_the_rounds_it_trained(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    asked = (
        "run",
        "--data",
        str(PATIENTS),
        *ROLES,
        "-a",
        "fedavg",
        "--rounds",
        "30",
        "--no-report",
    )
    stop = ("--stop-early", "worst10:2", "-q", "--out", str(directory))
    assert invoke(*asked, *stop)[0] == 0
    subject = subject_of(directory)
    stopped = subject.trial.stopped
    assert stopped is not None
    assert stopped.round < 30
    assert subject.rounds == f"{stopped.round} rounds"
    assert rows(settings(subject))["rounds"] == [str(stopped.round)]
    assert "after 30 rounds" not in markdown(subject)


def test_metrics_of_ones_own_are_on_the_card(tmp_path: Path) -> None:
    def far(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (output.argmax(1) - y).abs().double()

    fed, module = eh.datasets.digits(clients=3, seed=0), torch.nn.Linear(64, 10)
    metrics = {"far": eh.Metric(far, better="lower")}
    result = eh.fit(module, fed, eh.FedAvg(), rounds=2, metrics=metrics, out=tmp_path / "run")
    subject = subject_of(tmp_path / "run")
    text = markdown(subject)
    mean = result.scores.query("by == 'client'")["far"].mean()
    line = next(line for line in text.splitlines() if line.startswith("| far | lower |"))
    assert float(line.split("|")[3].split()[0]) == pytest.approx(mean, abs=0.005)
    assert "[" in line
    assert "Other metrics" in html(subject)


def test_thresholds_in_use_are_on_the_card(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    asked = ("run", "--data", str(PATIENTS), *ROLES, "--split", "val=0.3,test=0.3", "-a", "fedavg")
    assert invoke(*asked, "--rounds", "2", "--no-report", "-q", "--out", str(directory))[0] == 0
    before = markdown(subject_of(directory))
    assert invoke("thresholds", str(directory), "-q")[0] == 0
    text = markdown(subject_of(directory))
    assert "## Thresholds" in text
    assert "## Thresholds" not in before
    decision = eh.load(directory).trial().decision
    assert decision is not None
    assert next(decision.sentences()) in text
    assert "| validation samples |" in text


def test_an_unknown_positive_label_is_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    given = ("--method", "ditto", "--positive", "maybe", "--out", str(tmp_path / "card"))
    expected = (1, "", "evenhand: unknown positive label 'maybe'; choose from no, yes\n")
    for measure in ("accuracy", "recall"):
        assert invoke("card", str(run), *given, "--measure", measure) == expected


def test_folds_are_one_result(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    asked = ("compare", "--data", str(PATIENTS), *ROLES, "-a", "fedavg", "--no-reference")
    given = ("--folds", "2", "--rounds", "2", "--no-report", "-q", "--out", str(directory))
    assert invoke(*asked, *given)[0] == 0
    subject = subject_of(directory)
    assert "means over 2 folds of a cross-validation" in " ".join(summary(subject))
    assert "2 folds, each sample tested once" in rows(data(subject))["split"][0]
    assert int(rows(data(subject))["test samples"][0].replace(",", "")) == len(
        eh.read_table(PATIENTS)
    )
    assert f'run = eh.load("{directory / "seed-0"}")' in markdown(subject)
    with pytest.raises(ValueError, match="this is a cross-validation with 2 models of fedavg"):
        eh.export(directory, tmp_path / "m.pt2")


def test_a_model_hub_reads_the_front_matter(five: Subject, ditto: Subject) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    card = hub.ModelCard(markdown(five))
    metrics = {one.metric_name.partition(":")[0]: one for one in card.data.eval_results}
    mean = metrics["accuracy, mean over clients"]
    row = five.findings.comparison.rows["qffl"]
    assert mean.metric_value == pytest.approx(row["mean"].value, abs=1e-6)
    assert (mean.metric_type, mean.dataset_split) == ("accuracy", "test")
    assert card.data.datasets == ["digits"]
    assert "license" not in card.data.to_dict()
    card = hub.ModelCard(markdown(replace(ditto, license="apache-2.0")))
    assert card.data.license == "apache-2.0"
    assert card.data.pipeline_tag == "tabular-classification"
    assert {"federated-learning", "ditto", "personalised"} <= set(card.data.tags)
    assert card.data.datasets is None  # a user's own table is not public
    errors = make_study({"fedavg": (0.8, 0.0)}, seeds=1, clients=3, regression=True)
    found = hub.ModelCard(markdown(subject_of(errors))).data.eval_results[0]
    assert found.metric_type == "rmse"
    assert found.metric_value > 0


def test_yaml_holds_any_text() -> None:
    import yaml as reader

    texts = [
        "yes",
        "- a",
        "a: b # c",
        "\u2028\x85\ufeff",
        'q"\\',
        "é ünï 😀",
        "",
        "1.5",
        "~",
        "-",
        "---",
        *NASTY,
    ]
    value = {"texts": texts, "nested": [{"x": {"y": [1, 0.5, True]}, "z": "null"}]}
    assert reader.safe_load(yaml(value)) == value


@pytest.fixture(scope="module")
def nasty() -> Subject:
    names = [*NASTY, "[x](javascript:alert(1))", "a|b", "`code`", "*b* _i_ ~~s~~"]
    study = make_study(
        {"fedavg": (0.8, 0.0), "afl": (0.7, 0.3)},
        seeds=1,
        names=names,
        clients=len(names),
        groups=names[:2],
        labels={"afl": "a<b>&[/c]"},
    )
    return subject_of(study, "a<b>&[/c]", purpose="<b>bold</b> | # [y](z)")


def test_no_name_becomes_markup(nasty: Subject) -> None:
    subject = nasty
    text = markdown(subject)
    render = pytest.importorskip("markdown", reason="mkdocs brings it")
    body = text.partition("\n---\n")[2]
    made = render.markdown(body, extensions=["tables", "fenced_code"])
    assert "<script" not in made
    assert "javascript:" not in re.sub(r">[^<]*<", "><", made)
    for tag in ("<b>", "<em>", "<a ", "<del>"):
        assert tag not in made, tag
    clients = made.partition("Results by client")[2].partition("<h2>")[0]
    assert clients.count("<tr>") == 1 + len(subject.study.names("client"))
    page = html(subject)
    assert "<script>alert" not in page
    assert "<b>bold" not in page


def test_the_files_and_their_mistakes(run: Path, ditto: Subject, tmp_path: Path) -> None:
    out = tmp_path / "cards"
    code, told, err = invoke("card", str(run), "--method", "ditto", "--out", str(out))
    assert (code, err) == (0, "")
    assert told == f"Card: {out / 'README.md'}\nCard: {out / 'card.html'}\n"
    one = tmp_path / "one.html"
    made = eh.card(ditto.findings, one, method="ditto", purpose="Triage.")
    assert (made.files, made.method) == ([one], "ditto")
    assert "Triage." in one.read_text(encoding="utf-8")
    assert eh.card(made.findings, tmp_path / "two.md", method="fedavg").files[0].exists()
    (tmp_path / "notes").touch()
    for given, message in (
        (
            ("--method", "ditto", "--out", str(tmp_path / "notes")),
            "must end in .md or .html, got 'notes'",
        ),
        ((), "choose a method of patients: fedavg, localonly, ditto"),
        (("--method", "dito"), "did you mean 'ditto'?"),
        (("--method", "ditto", "--out", "card.pdf"), "must end in .md or .html, got 'card.pdf'"),
    ):
        code, told, err = invoke("card", str(run), *given)
        assert (code, told) == (1, "")
        assert message in err
        assert err.count("\n") == 1


def test_the_page_in_a_browser(five: Subject, nasty: Subject, tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    chrome = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    if chrome is None:
        pytest.skip("the browser test needs Chrome or Chromium; apt-get install chromium")
    trouble: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome)
        for name, subject in (("usual", five), ("nasty", nasty)):
            path = tmp_path / f"{name}.html"
            path.write_text(html(subject), encoding="utf-8")
            for width in (360, 1280):
                window = browser.new_page(viewport={"width": width, "height": 800})
                window.on("console", lambda one: trouble.append(one.text))
                window.on("pageerror", lambda one: trouble.append(str(one)))
                window.goto(path.as_uri())
                assert window.evaluate("document.documentElement.scrollWidth") <= width
                assert window.title() == f"Model card: {subject.title}"
                if width == 360:
                    found = axe.Axe().run(window).response["violations"]
                    assert [one["id"] for one in found] == []
                window.close()
        browser.close()
    assert trouble == []
