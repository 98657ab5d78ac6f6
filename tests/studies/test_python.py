"""Comparisons, sweeps and pages from Python, with a module, data and methods of the user's own."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import evenhand as eh
from evenhand.errors import RunError, SpecError
from evenhand.studies.runs.executing import check
from evenhand.studies.specs.spec import Spec
from tests.support.commands import invoke, results
from tests.support.own_method import PowerLoss, TwoLayers, clinics

SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "local": eh.LocalSGD(lr=0.2, epochs=1, batch_size=8),
    "cohort": eh.Uniform(4),
    "seeds": 2,
}
METHODS = {"FedAvg": eh.FedAvg(), "mine": PowerLoss(1.5), "half": ("qffl:q=1", {"lr": 0.1})}


def module(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TwoLayers()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[eh.Findings, Path]:
    out = tmp_path_factory.mktemp("python") / "mine"
    return eh.compare(TwoLayers, clinics(), METHODS, out=out, **SETTINGS), out


# ---- compare


def test_a_comparison_has_every_method_and_the_missing_reference(
    compared: tuple[eh.Findings, Path],
) -> None:
    findings, out = compared
    assert findings.study.labels == ("FedAvg", "mine", "half", "localonly")
    assert findings.study.seeds == (0, 1)
    assert findings.study.reference == "FedAvg"
    assert findings.study.alone == "localonly"
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["seed-0", "seed-1"]


def test_each_run_of_a_comparison_is_the_one_that_fit_gives(
    compared: tuple[eh.Findings, Path],
) -> None:
    study = compared[0].study
    for seed in (0, 1):
        settings = {key: value for key, value in SETTINGS.items() if key != "seeds"}
        for label, algorithm in (("FedAvg", eh.FedAvg()), ("mine", PowerLoss(1.5))):
            alone = eh.fit(module(seed), clinics(), algorithm, seed=seed, **settings)
            trial = study.trial(label, seed)
            assert list(trial.params) == list(alone.params)
            for name, value in alone.params.items():
                assert torch.equal(trial.params[name], value)
            assert trial.summary == pytest.approx(alone.summary)
            assert trial.scores["accuracy"].tolist() == pytest.approx(
                alone.scores["accuracy"].tolist(), nan_ok=True
            )
            assert trial.history["lr"].tolist() == alone.history["lr"].tolist()
    changed = {**settings, "local": eh.LocalSGD(lr=0.1, epochs=1, batch_size=8)}
    alone = eh.fit(module(0), clinics(), eh.QFFL(q=1), seed=0, **changed)
    assert torch.equal(study.trial("half", 0).params["last.bias"], alone.params["last.bias"])


def test_a_module_starts_every_seed_at_its_own_parameters() -> None:
    whole: dict[str, Any] = {**SETTINGS, "cohort": eh.Full()}
    whole["local"] = eh.LocalSGD(lr=0.2, epochs=1)  # all data at once: nothing is left to chance
    same = eh.compare(module(), clinics(), [eh.FedAvg()], references=(), **whole).study
    assert torch.equal(
        same.trial(seed=0).params["last.bias"], same.trial(seed=1).params["last.bias"]
    )
    drawn = eh.compare(TwoLayers, clinics(), [eh.FedAvg()], references=(), **whole).study
    assert not torch.equal(
        drawn.trial(seed=0).params["last.bias"], drawn.trial(seed=1).params["last.bias"]
    )
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    eh.compare(TwoLayers, clinics(), [eh.FedAvg()], references=(), **whole)
    assert torch.equal(torch.random.get_rng_state(), state)  # the program's own draws stay


def test_every_setting_of_fit_reaches_the_runs_of_a_comparison(tmp_path: Path) -> None:
    settings = {
        **{key: value for key, value in SETTINGS.items() if key != "seeds"},
        "evaluate": "with training",
        "eval_every": 1,
        "weights": "uniform",
        "engine": "vmap",
    }
    found = eh.compare(module(), clinics(), PowerLoss(1.5), seeds=[2], references=(), **settings)
    alone = eh.fit(module(), clinics(), PowerLoss(1.5), seed=2, **settings)
    trial = found.study.trial()
    assert trial.history["scores_after"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(trial.history["mean"], alone.history["mean"])
    assert torch.equal(trial.params["last.bias"], alone.params["last.bias"])
    assert found.study.specs[0].evaluate == "with training"
    # a spec file has them, too
    spec = Spec(
        rounds=2, data={"name": "synthetic", "clients": 3}, precision="bf16", weights="uniform"
    ).with_methods([{"name": "fedavg"}])
    ready = check(spec)
    assert ready.model(spec.methods[0]).precision == "bf16"
    assert ready.settings(spec.methods[0]).weights == "uniform"


def test_what_is_printed_is_what_the_command_prints(
    compared: tuple[eh.Findings, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # which some test runners set
    spec = tmp_path / "spec.toml"
    spec.write_text(
        "rounds = 2\ndata = { name = 'synthetic', clients = 4 }\nmodel = { name = 'linear' }\n"
        "methods = [{ name = 'fedavg' }, { name = 'qffl', q = 0.5 }]\n"
    )
    code, printed, _ = invoke("compare", "spec.toml", "--seeds", "2", "--out", "there")
    assert code == 0
    findings = eh.compare(spec, seeds=2, out=tmp_path / "here")
    text, places = printed.split("\n\nReport: ")
    assert places == "there/report.html\nTables: there/\n"
    shown, more = str(findings).split("\n\nMore: ")
    assert text.rstrip() == shown.rstrip()
    assert max(map(len, str(findings).splitlines())) <= 80
    assert ".table(name)" in more
    assert ".show(verbose=True)" in more
    _, verbose, _ = invoke("resume", "there", "-v")
    findings.show(verbose=True, console=Console(file=(everything := io.StringIO()), width=130))
    assert everything.getvalue().rstrip() == verbose.split("\n\nReport: ")[0].rstrip()
    # every file of every seed
    assert results(tmp_path / "there") == results(tmp_path / "here")
    assert "mine" in repr(compared[0])


def test_tables_come_as_data_frames_and_are_those_on_disk(
    compared: tuple[eh.Findings, Path],
) -> None:
    findings, out = compared
    for name in ("comparison", "differences", "ledger", "gaps", "clients"):
        frame, read = findings.table(name), pd.read_csv(out / f"{name}.csv", keep_default_na=True)
        assert len(frame) == len(read)
        assert set(frame.columns) == set(read.columns)
    with pytest.raises(ValueError, match="unknown table 'ledgr'; did you mean 'ledger'"):
        findings.table("ledgr")


def test_resuming_gives_the_same_files_and_trains_nothing_that_is_done(
    compared: tuple[eh.Findings, Path], tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        assert total == 2 * 4 * 3
        if done > total // 2:
            raise Stop

    arguments = (TwoLayers, clinics(), METHODS)
    with pytest.raises(Stop):
        eh.compare(*arguments, out=tmp_path, progress=stop, **SETTINGS)
    with pytest.raises(RunError, match=r"is not empty; resume it with resume=True"):
        eh.compare(*arguments, out=tmp_path, **SETTINGS)
    with pytest.raises(RunError, match=r"is not finished.*resume=True"):
        eh.load(tmp_path)
    again = eh.compare(*arguments, out=tmp_path, resume=True, **SETTINGS)
    mine, theirs = results(tmp_path), results(compared[1])
    named = lambda files: {  # noqa: E731 (the directory's name stands in its specs)
        name: content.replace(tmp_path.name.encode(), b"mine") for name, content in files.items()
    }
    assert named(mine) == named(theirs)
    assert again.sentences == compared[0].sentences
    with pytest.raises(RunError, match="other settings"):
        eh.compare(*arguments, out=tmp_path, resume=True, **{**SETTINGS, "rounds": 4})
    with pytest.raises(RunError, match="data have changed"):
        eh.compare(TwoLayers, clinics(1), METHODS, out=tmp_path, resume=True, **SETTINGS)


def test_without_a_directory_nothing_stays_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    findings = eh.compare(module(), clinics(), "fedavg", **SETTINGS)
    assert not list(tmp_path.iterdir())
    assert "Test accuracy across clients" in str(findings)
    assert eh.report(findings, "page.html").page.read_text().startswith("<!doctype html>")


def test_data_that_a_function_deals_differ_between_seeds() -> None:
    findings = eh.compare(TwoLayers, clinics, [eh.FedAvg()], **SETTINGS)
    assert not findings.study.same_data
    sizes = [findings.study.about[seed]["data"] for seed in (0, 1)]
    assert sizes[0] != sizes[1]
    with pytest.raises(SpecError, match="use over seeds instead of samples"):
        eh.compare(TwoLayers, clinics, [eh.FedAvg()], over="samples", **SETTINGS)


def test_a_model_by_name_and_methods_suit_the_data() -> None:
    settings = {"rounds": 2, "seeds": [3]}
    study = eh.compare("auto", clinics(), **settings).study
    assert study.labels == (
        "fedavg",
        "qffl",
        "afl",
        "fedminmax",
        "gifair",
        "ditto",
        "localonly",
    )
    assert study.seeds == (3,)
    assert study.specs[0].model == {"name": "linear"}
    regression = eh.compare("mlp:hidden=[3]", clinics(regression=True), "fedavg", **settings).study
    assert regression.specs[0].loss == "mse"
    assert regression.measure.name == "error (RMSE)"


def a_huber_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.huber_loss(output.reshape(target.shape), target, reduction="none")


def a_focal_loss(output: Tensor, target: Tensor) -> Tensor:
    chance = output.softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return -((1 - chance) ** 2) * chance.log()


def test_a_loss_of_ones_own_is_what_errors_are_judged_by(tmp_path: Path) -> None:
    def one() -> nn.Module:
        return TwoLayers(1)

    data = clinics(regression=True)
    found = eh.compare(one, data, PowerLoss(1.2), loss=a_huber_loss, out=tmp_path / "a", **SETTINGS)
    study = found.study
    assert study.measure.name == "loss"
    assert study.specs[0].loss == "a_huber_loss"
    scores = study.trial("PowerLoss", 0).scores.query("by == 'client'")
    np.testing.assert_allclose(study.merits("PowerLoss", 0), -scores["loss"])
    pooled = -np.average(scores["loss"], weights=scores["count"])
    per_seed = [
        -np.average(one["loss"], weights=one["count"])
        for seed in (0, 1)
        for one in [study.trial("PowerLoss", seed).scores.query("by == 'client'")]
    ]
    assert per_seed[0] == pytest.approx(pooled)
    assert found.comparison.rows["PowerLoss"]["pooled"].value == pytest.approx(np.mean(per_seed))
    gains = {entry.name: entry for entry in found.entries if entry.against == "fedavg"}
    plain = study.trial("fedavg", 0).scores.query("by == 'client'")
    both = study.trial("fedavg", 1).scores.query("by == 'client'")
    mine = study.trial("PowerLoss", 1).scores.query("by == 'client'")
    for place, name in enumerate(plain["name"]):
        fall = (plain["loss"] + both["loss"] - scores["loss"] - mine["loss"]).iloc[place] / 2
        entry = next(e for e in found.entries if e.name == name and e.method == "PowerLoss")
        assert entry.gain.value == pytest.approx(fall)
        assert entry.gain.low < fall < entry.gain.high
    assert gains
    with pytest.raises(ValueError, match="are for rates and squared errors"):
        eh.analyse(study, over="samples")
    alone = eh.compare(one, data, PowerLoss(1.2), loss=a_huber_loss, **{**SETTINGS, "seeds": 1})
    assert alone.comparison.over == "nothing"
    assert alone.sentences[-1].startswith("With one seed, loss has no intervals; run more seeds")
    assert "loss" in eh.report(tmp_path / "a", tmp_path / "page.html").page.read_text()
    single = eh.fit(one(), data, eh.FedAvg(), loss=a_huber_loss, rounds=2, out=tmp_path / "b")
    assert eh.load(tmp_path / "b").measure == study.measure
    assert single.scores["loss"].tolist() == pytest.approx(
        eh.load(tmp_path / "b").trial().scores["loss"].tolist()
    )


def test_a_classifying_loss_of_ones_own_is_judged_by_accuracy(tmp_path: Path) -> None:
    found = eh.compare(module(), clinics(), "fedavg", loss=a_focal_loss, out=tmp_path, **SETTINGS)
    assert found.study.measure.name == "accuracy"
    assert found.entries


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((TwoLayers(), clinics(), eh.FedAvg), {}, TypeError, r"did you mean FedAvg\(\)"),
        ((TwoLayers(), clinics(), [3]), {}, TypeError, "each of methods must be an Algorithm"),
        ((TwoLayers(),), {}, TypeError, "a TwoLayers needs data to train on; pass a Federation"),
        ((7, clinics()), {}, TypeError, "model must be a torch module, a function .* got int"),
        ((lambda: 7, clinics()), {}, TypeError, r"the result of model\(\) must be a Module"),
        ((TwoLayers(), [1, 2]), {}, TypeError, "federation must be a Federation object"),
        ((TwoLayers(), clinics()), {"seed": 3}, TypeError, "give seeds=5, or"),
        ((TwoLayers(), clinics()), {"seeds": 0}, ValueError, "seeds must be a whole number >= 1"),
        ((TwoLayers(), clinics()), {"seeds": [1, 1]}, SpecError, "seeds must be different"),
        (
            (TwoLayers(), clinics()),
            {"round": 3},
            TypeError,
            "unknown keyword 'round'; did you mean",
        ),
        ((TwoLayers(), clinics()), {"rounds": 0}, ValueError, "rounds must be a whole number"),
        ((TwoLayers(), clinics()), {"resume": True}, ValueError, "resume needs out"),
        (
            (TwoLayers(), clinics(), {"a/b": eh.FedAvg()}),
            {},
            SpecError,
            "label must be a plain file name",
        ),
        ((TwoLayers(), clinics(), "qfl"), {}, SpecError, "unknown method 'qfl'; did you mean"),
        (("nowhere.toml",), {}, SpecError, "cannot read nowhere.toml"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_slip_is_one_line_before_anything_is_trained(
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        eh.compare(*arguments, **{"rounds": 1, "seeds": 1, **options})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


# ---- sweep


def test_a_sweep_over_a_method_of_ones_own_chooses_on_validation_data(tmp_path: Path) -> None:
    grid = {"power": [1.0, 2.0], "local.lr": [0.1, 0.3]}
    found = eh.sweep(
        module(), clinics(), {"mine": PowerLoss()}, grid, rule="worst10", out=tmp_path, **SETTINGS
    )
    assert found.sweep is not None
    points = found.table("sweep").set_index("label")
    assert list(points.index) == [
        "fedavg",
        "localonly",
        *(f"mine power={power} local.lr={lr}" for power in (1.0, 2.0) for lr in (0.1, 0.3)),
    ]
    assert points["power"].tolist()[2:] == [1.0, 1.0, 2.0, 2.0]  # the last is the default
    assert points["local.lr"].tolist()[2:] == [0.1, 0.3, 0.1, 0.3]
    best = points.drop("localonly")["validation_worst10"].idxmax()
    chosen = found.sweep.choice.label
    assert points.loc[chosen, "validation_worst10"] == points.loc[best, "validation_worst10"]
    assert set(found.study.labels) == {"fedavg", "localonly", chosen}
    assert found.sweep.reason in " ".join(str(found).split())
    trial = eh.load(tmp_path).trial("mine power=2.0 local.lr=0.3", 1)
    settings = {key: value for key, value in SETTINGS.items() if key != "seeds"}
    settings["local"] = eh.LocalSGD(lr=0.3, epochs=1, batch_size=8)
    alone = eh.fit(module(), clinics().with_validation(0.2, 0), PowerLoss(2.0), seed=1, **settings)
    torch.testing.assert_close(trial.params, alone.params)
    page = eh.report(found, tmp_path / "page.html")
    assert page.findings.answer.sentences[0].startswith("Chosen on validation data: ")
    assert "mine power=1.0 local.lr=0.1" in page.page.read_text()  # all points are drawn
    assert page.findings.sentences == eh.report(tmp_path, tmp_path / "b.html").findings.sentences


def test_a_sweep_takes_inner_methods_ranges_and_several_methods() -> None:
    wrapped = eh.FedProx(mu=0.1, inner=PowerLoss())
    found = eh.sweep(
        module(),
        clinics(),
        [wrapped, "qffl"],
        {"fedprox.inner.power": [1.0, 2.0], "qffl.q": "log:0.1:1:2"},
        references=(),
        rounds=1,
        seeds=1,
    )
    assert found.sweep is not None
    assert found.sweep.study.labels == (
        "fedavg",
        "fedprox inner.power=1.0",
        "fedprox inner.power=2.0",
        "qffl q=0.1",
        "qffl q=1",
    )
    method = found.sweep.study.specs[0].methods[1]
    assert method.parameters["inner"]["power"] == 1.0


@pytest.mark.parametrize(
    ("methods", "grid", "message"),
    [
        (
            PowerLoss(),
            {"powr": [1.0]},
            "unknown keyword of PowerLoss: 'powr'; did you mean 'power'",
        ),
        (PowerLoss(), {"power": [0.5]}, "PowerLoss: power must be at least 1, got 0.5"),
        (PowerLoss(), {"power.x": [1.0]}, "begins with 'power'"),
        (PowerLoss(), None, "a sweep needs values to try"),
        (None, {"q": [1.0]}, "a sweep needs a method, such as qffl"),
        ("qffl", {"q": []}, "has no values"),
        ("qffl", {"q": [1, 1]}, "has 1 twice"),
    ],
)
def test_a_wrong_grid_is_refused(methods: Any, grid: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        eh.sweep(module(), clinics(), methods, grid, rounds=1, seeds=1)


# ---- runs of fit


def test_a_run_of_fit_can_be_loaded_reported_and_resumed(tmp_path: Path) -> None:
    settings = {key: value for key, value in SETTINGS.items() if key != "seeds"}

    def fit(algorithm: eh.Algorithm, name: str, **options: Any) -> eh.Result:
        return eh.fit(module(), clinics(), algorithm, out=tmp_path / name, **settings, **options)

    result = fit(PowerLoss(1.5), "mine", track_weights=True)
    ditto = fit(eh.Ditto(lam=0.5), "ditto")
    fit(eh.FedAvg(), "fedavg")
    trial = eh.load(tmp_path / "mine").trial()
    assert trial.method.name == "tests.support.own_method:PowerLoss"
    assert trial.method.parameters == {"power": 1.5}
    assert trial.method.algorithm() == PowerLoss(1.5)
    for name, value in result.params.items():
        assert torch.equal(trial.params[name], value)
    pd.testing.assert_frame_equal(trial.scores, result.scores, check_dtype=False)
    assert list(trial.history) == list(result.history)
    assert trial.summary == pytest.approx(result.summary)
    personal = eh.load(tmp_path / "ditto").trial().personal
    assert personal is not None
    assert ditto.personal is not None
    for mine, theirs in zip(personal, ditto.personal, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    # together
    study = eh.load(tmp_path / "mine", tmp_path / "ditto", tmp_path / "fedavg")
    assert study.labels == ("PowerLoss", "ditto", "fedavg")
    page = eh.report([tmp_path / "fedavg", tmp_path / "mine"], tmp_path / "page.html")
    text = page.page.read_text()
    assert "A Python program trained its own model on its own data with these settings" in text
    assert f"evenhand report {tmp_path / 'fedavg'} {tmp_path / 'mine'}" in text
    code, printed, _ = invoke(
        "report",
        str(tmp_path / "fedavg"),
        str(tmp_path / "mine"),
        "--out",
        str(tmp_path / "c.html"),
        "-v",
    )
    assert code == 0
    said = [*page.findings.answer.lines(), *page.findings.sentences]
    assert printed.splitlines()[: len(said)] == said
    # again
    files = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    again = fit(PowerLoss(1.5), "mine", track_weights=True, resume=True)
    assert torch.equal(again.params["last.bias"], result.params["last.bias"])
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    with pytest.raises(RunError, match="checkpoint of an earlier run"):
        fit(PowerLoss(1.5), "mine")


def test_an_interrupted_run_of_fit_says_how_to_go_on(tmp_path: Path) -> None:
    def stop(done: int, row: Any) -> None:
        if done == 3:
            raise KeyboardInterrupt

    def fit(**options: Any) -> eh.Result:
        return eh.fit(
            module(), clinics(), eh.FedAvg(), rounds=5, checkpoint_every=1, out=tmp_path, **options
        )

    with pytest.raises(KeyboardInterrupt):
        fit(progress=stop)
    with pytest.raises(RunError, match=r"holds a run that is not finished.*resume=True"):
        eh.load(tmp_path)
    whole = eh.fit(module(), clinics(), eh.FedAvg(), rounds=5)
    assert torch.equal(fit(resume=True).params["last.bias"], whole.params["last.bias"])
    assert len(eh.load(tmp_path).trial().history) == 5


@pytest.mark.parametrize(
    "other", [{"checkpoint_every": 1}, {"engine": "loop"}, {"keep_predictions": True}]
)
def test_a_run_goes_on_with_settings_that_change_no_model(
    other: dict[str, Any], tmp_path: Path
) -> None:
    eh.fit(module(), clinics(), eh.FedAvg(), rounds=2, out=tmp_path)
    more = eh.fit(module(), clinics(), eh.FedAvg(), rounds=3, out=tmp_path, resume=True, **other)
    assert len(more.history) == len(eh.load(tmp_path).trial().history) == 3


def test_a_result_is_saved_like_a_run_with_out(tmp_path: Path) -> None:
    def fit(**options: Any) -> eh.Result:
        return eh.fit(module(), clinics(), PowerLoss(), rounds=2, seed=4, **options)

    fit(out=tmp_path / "one")
    result = fit()
    assert result.save(tmp_path / "two") == tmp_path / "two"
    one, two = (results(tmp_path / name) for name in ("one", "two"))
    assert one.pop("checkpoint.safetensors")
    assert one.pop("spec.toml").replace(b'"one"', b'"two"') == two.pop("spec.toml")
    assert one == two
    result.save(tmp_path / "two")  # the same run again
    with pytest.raises(RunError, match="holds another run"):
        eh.fit(module(), clinics(), PowerLoss(), rounds=3).save(tmp_path / "two")
    with pytest.raises(RunError, match="holds another run; use another directory"):
        eh.fit(module(), clinics(), PowerLoss(), rounds=3, out=tmp_path / "two")
    assert results(tmp_path / "two") == two | {
        "spec.toml": (tmp_path / "two/spec.toml").read_bytes()
    }


def test_runs_of_fit_many_are_run_directories_too(tmp_path: Path) -> None:
    runs = [eh.Run(PowerLoss(), seed=seed, out=tmp_path / str(seed)) for seed in range(3)]
    many = eh.fit_many(module(), clinics(), runs, rounds=2)
    study = eh.load(*(tmp_path / str(seed) for seed in range(3)))
    assert study.seeds == (0, 1, 2)
    for seed, result in enumerate(many):
        assert torch.equal(study.trial(seed=seed).params["last.bias"], result.params["last.bias"])
    many[0].save(tmp_path / "saved")
    assert eh.load(tmp_path / "saved").trial().seed == 0


def test_a_method_that_no_spec_can_make_again_is_named_by_its_class(tmp_path: Path) -> None:
    class Local(PowerLoss):
        """Of this function alone."""

    eh.fit(module(), clinics(), Local(3.0), rounds=1, out=tmp_path / "a")
    method = eh.load(tmp_path / "a").trial().method
    assert (method.name, method.parameters) == ("Local", {"power": 3.0})
    with pytest.raises(SpecError, match="unknown method 'Local'"):
        method.algorithm()
    code, _, err = invoke("resume", str(tmp_path / "a"))
    assert code == 1
    assert err == (
        "evenhand: the data of this run came from a Python program; resume it there: repeat the"
        " call with resume=True\n"
    )


def test_load_says_what_there_is(compared: tuple[eh.Findings, Path]) -> None:
    study = eh.load(compared[1])
    assert repr(study) == "<Study mine: localonly, FedAvg, mine, half; 2 seeds>"
    assert study.trial().method.label == "localonly"
    with pytest.raises(ValueError, match="unknown method 'mien'; did you mean 'mine'"):
        study.trial("mien")
    with pytest.raises(ValueError, match=r"mine was not trained with seed 9; choose from 0, 1"):
        study.trial("mine", 9)
    analysed = eh.analyse(study, over="samples", level=0.9)
    assert analysed.comparison.level == 0.9
    with pytest.raises(TypeError, match="findings are already analysed; leave out over"):
        eh.report(analysed, over="seeds")
