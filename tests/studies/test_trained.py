"""Models of finished runs: predictions for tables and arrays, checked against the run's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import evenhand as eh
from evenhand.errors import DataError
from evenhand.studies.runs.trained import trained_model
from tests.support.commands import invoke
from tests.support.visits import train, visits, write

TABLE = visits()
# a network in float32 can give a sample another last digit among other samples
CLOSE = 1e-6
BOTH = ("-a", "fedavg", "-a", "ditto", "-a", "localonly", "--no-reference")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("visits")
    write(TABLE, directory / "visits.csv")
    return directory


@pytest.fixture(scope="module")
def stages(place: Path) -> eh.Study:
    """Three classes, one shared model."""
    return eh.load(train(place / "visits.csv", "stage", place / "stages", "-a", "fedavg"))


@pytest.fixture(scope="module")
def ill(place: Path) -> eh.Study:
    """A label of 0 and 1, and a model for each client; with validation data for thresholds."""
    split = ("--split", "val=0.2,test=0.3")
    return eh.load(train(place / "visits.csv", "ill", place / "ill", *BOTH, *split))


@pytest.fixture(scope="module")
def weights(place: Path) -> eh.Study:
    """A regression with a small network."""
    given = ("-a", "ditto", "--no-reference", "--model", "mlp:hidden=[8]")
    return eh.load(train(place / "visits.csv", "weight", place / "weights", *given))


@pytest.fixture
def runs(stages: eh.Study, ill: eh.Study, weights: eh.Study) -> dict[str, eh.Study]:
    return {"stage": stages, "ill": ill, "weight": weights}


@pytest.mark.parametrize(
    ("label", "method"),
    [
        ("stage", "fedavg"),
        ("ill", "fedavg"),
        ("ill", "ditto"),
        ("ill", "localonly"),
        ("weight", "ditto"),
    ],
)
def test_predictions_for_the_test_rows_are_the_runs_own(
    runs: dict[str, eh.Study], label: str, method: str
) -> None:
    run, own = runs[label], runs[label].predictions(method)
    found = run.model(method).predict(TABLE)
    assert (found.index == TABLE.index).all()
    assert found.iloc[own["row"]].tolist() == own["prediction"].tolist()
    rows = TABLE.iloc[own["row"]]
    assert rows[label].tolist() == own["label"].tolist()
    assert rows["site"].tolist() == own["client"].tolist()
    assert rows["sex"].tolist() == own["group"].tolist()
    assert own["row"].is_unique
    assert len(own) == len(run.trial(method).values)


def test_accuracy_by_client_of_the_predictions_is_that_of_the_scores(ill: eh.Study) -> None:
    own = ill.predictions("ditto")
    right = (own["label"] == own["prediction"]).groupby(own["client"]).mean()
    scores = ill.trial("ditto").scores.query("by == 'client'").set_index("name")["accuracy"]
    assert right.to_dict() == pytest.approx(scores.to_dict())


def test_probabilities_are_those_of_the_run_and_of_torch(stages: eh.Study, ill: eh.Study) -> None:
    own, model = ill.predictions("ditto"), ill.model("ditto")
    found = model.predict_proba(TABLE)
    assert found.columns.tolist() == ["0", "1"]
    rows = own["row"]
    assert found["1"].iloc[rows].to_numpy() == pytest.approx(own["probability"], abs=CLOSE)
    west = TABLE[TABLE["site"] == "West"]
    x = model.trial.encoding.transform(west)
    with torch.no_grad():
        expected = model.module("West")(x).softmax(-1).numpy()
    assert model.predict_proba(west).to_numpy() == pytest.approx(expected, abs=1e-6)

    own, found = stages.predictions(), stages.model().predict_proba(TABLE)
    assert found.columns.tolist() == ["high", "low", "middle"]
    most = found.iloc[own["row"]].max(axis=1)
    assert most.to_numpy() == pytest.approx(own["probability"], abs=CLOSE)


def test_labels_come_back_as_names_or_values(runs: dict[str, eh.Study]) -> None:
    assert runs["stage"].model().labels == ("high", "low", "middle")
    assert set(runs["stage"].model().predict(TABLE)) <= {"high", "low", "middle"}
    numbers = runs["ill"].model("fedavg")
    assert numbers.labels == (0, 1)
    assert numbers.predict(TABLE).dtype == np.int64
    assert runs["weight"].model().labels == ()


def test_a_regression_predicts_in_the_unit_of_its_label(weights: eh.Study) -> None:
    model = weights.model()
    assert model.trial.encoding is not None
    north = TABLE[TABLE["site"] == "North"]
    x = model.trial.encoding.transform(north)
    own = weights.predictions()
    # the mean and spread of the training rows, as the encoding must have found them
    training = TABLE["weight"].drop(own["row"])
    with torch.no_grad():
        scaled = model.module("North")(x).flatten().double().numpy()
    expected = scaled * training.std(ddof=0) + training.mean()
    assert model.predict(north).to_numpy() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="predict_proba is for classifiers; this run is a regr"):
        model.predict_proba(north)


def test_features_and_columns_are_named(stages: eh.Study) -> None:
    model = stages.model()
    assert model.columns == ("age", "sex", "pay", "ward")
    assert len(model.features) == next(model.network.parameters()).shape[1]
    assert model.features[:3] == ("age", "age missing", "sex=m")
    assert repr(model) == "<TrainedModel fedavg, seed 0>"


def test_what_is_new_in_a_table_is_listed(ill: eh.Study) -> None:
    model = ill.model("ditto")
    new = TABLE[:4].assign(pay=["barter", "barter", "cash", "gift"])
    (found,) = (one for one in model.differences(new) if one.kind == "unknown")
    assert (found.column, found.rows, found.total) == ("pay", 3, 4)
    assert found.values == (("barter", 2), ("gift", 1))
    assert model.differences(pl.from_dicts(new.to_dict("records"))) == model.differences(new)
    with pytest.raises(DataError, match="the table has no column 'pay'"):
        model.differences(new.drop(columns="pay"))
    with pytest.raises(TypeError, match="x is no table"):
        model.differences(np.zeros((2, len(model.features))))


def test_polars_and_pandas_tables_give_the_same(runs: dict[str, eh.Study], place: Path) -> None:
    polars = pl.read_csv(place / "visits.csv", schema_overrides={"ward": pl.String})
    for label, run in runs.items():
        model = run.model("ditto" if label != "stage" else None)
        found, expected = model.predict(polars), model.predict(TABLE)
        assert isinstance(found, pl.Series)
        assert found.name == "prediction"
        assert found.to_list() == expected.tolist()
    chances = runs["ill"].model("ditto").predict_proba(polars)
    assert isinstance(chances, pl.DataFrame)
    assert chances.columns == ["0", "1"]
    assert (chances.to_numpy() == runs["ill"].model("ditto").predict_proba(TABLE)).all(axis=None)
    with pytest.raises(TypeError, match=r"x is a LazyFrame; pass x.collect\(\)"):
        runs["stage"].model().predict(polars.lazy())


def test_arrays_and_tensors_give_an_array(ill: eh.Study, weights: eh.Study) -> None:
    for run, method in ((ill, "ditto"), (weights, None)):
        model = run.model(method)
        x = model.trial.encoding.transform(TABLE)
        expected = model.predict(TABLE).to_numpy()
        for given in (x, x.numpy(), x.double()):
            found = model.predict(given, TABLE["site"])
            assert isinstance(found, np.ndarray)
            assert found.tolist() == expected.tolist()


def test_arrays_of_pandas_are_taken_though_they_are_read_only(ill: eh.Study) -> None:
    model = ill.model("fedavg")
    x = pd.DataFrame(model.trial.encoding.transform(TABLE).numpy()).to_numpy()
    x.flags.writeable = False
    assert model.predict(x).tolist() == model.predict(TABLE).tolist()


def test_an_index_is_kept_and_other_columns_do_not_matter(ill: eh.Study) -> None:
    model = ill.model("ditto")
    few = TABLE.iloc[::-7].drop(columns=["ill", "stage", "weight"]).assign(extra="x")
    found = model.predict(few)
    assert (found.index == few.index).all()
    assert found.tolist() == model.predict(TABLE).loc[few.index].tolist()


def test_each_client_has_its_own_model(ill: eh.Study) -> None:
    model = ill.model("ditto")
    row = TABLE.drop(columns="site")
    by_site = {site: model.predict_proba(row, site)["1"] for site in ("East", "West")}
    assert not np.allclose(by_site["East"], by_site["West"])
    mixed = model.predict_proba(TABLE)["1"]
    for site, found in by_site.items():
        member = TABLE["site"] == site
        assert mixed[member].tolist() == pytest.approx(found[member].tolist(), abs=CLOSE)


def test_the_shared_model_predicts_for_new_clients_if_asked(ill: eh.Study) -> None:
    model, strangers = ill.model("ditto"), TABLE.assign(site="Moon")
    with torch.no_grad():
        x = model.trial.encoding.transform(TABLE)
        expected = model.module()(x).softmax(-1)[:, 1].numpy()
    found = model.predict_proba(strangers, shared=True)["1"]
    assert found.to_numpy() == pytest.approx(expected, abs=1e-6)
    without = model.predict_proba(TABLE.drop(columns="site"), shared=True)["1"]
    assert without.tolist() == found.tolist()
    own = model.predict_proba(TABLE)["1"]
    half = pd.concat([TABLE[:50], strangers[50:]])
    both = model.predict_proba(half, shared=True)["1"]
    assert both[:50].tolist() == pytest.approx(own[:50].tolist(), abs=CLOSE)
    assert both[50:].tolist() == pytest.approx(found[50:].tolist(), abs=CLOSE)
    with pytest.raises(ValueError, match="localonly has no shared model, only one for each client"):
        ill.model("localonly").predict(strangers, shared=True)


@pytest.mark.parametrize(
    ("x", "client", "message"),
    [
        (
            TABLE.drop(columns="site"),
            None,
            r"say which client each row belongs to: a table with 'site', or client= \(--for-cl"
            r".*\); the clients with a model are East, North, West",
        ),
        (
            TABLE.assign(site=["Moon", *TABLE["site"][1:]]),
            None,
            "row 1: client 'Moon' is not known; the clients with a model are East, North, West;"
            r" name one of them, or use the shared model with shared=True \(--shared\)",
        ),
        (
            TABLE.assign(site=["East", None, *TABLE["site"][2:]]),
            None,
            "row 2: the client is missing;",
        ),
        (TABLE, "Moon", "row 1: client 'Moon' is not known"),
        (TABLE, ["East"], "x has 240 rows, but 1 names were given for them"),
        (TABLE.drop(columns=["age", "pay"]), None, "the table has no columns 'age', 'pay'; the"),
        (TABLE.drop(columns=["age"]), None, "the table has no column 'age'; the model needs it"),
        (TABLE[:0], None, "the table has no rows"),
        (TABLE.assign(age="old"), None, "column 'age': 'old' in rows 1, 2, .* not numbers; corr"),
        (np.zeros((0, 3)), "East", "x has no samples"),
        ("new.csv", None, "x must hold samples, got the path 'new.csv'; read the file first"),
        (np.zeros((2, 3)), "East", r"the network does not take x of shape \[2, 3\]"),
        ({"age": [1.0]}, "East", "the network does not take x: "),
        (np.array(["a"]), "East", "x must be an array or a tensor of numbers, or a dict of them"),
    ],
)
def test_unsuitable_rows_are_refused_in_one_line(
    ill: eh.Study, x: Any, client: Any, message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        ill.model("ditto").predict(x, client)
    assert "\n" not in str(caught.value)


def test_rows_without_a_score_are_refused(ill: eh.Study) -> None:
    model = ill.model("fedavg")
    x = model.trial.encoding.transform(TABLE[:3])
    x[1, 0] = torch.nan
    for ask in (model.predict, model.predict_proba):
        with pytest.raises(ValueError, match=r"predicts nothing \(NaN\) for 1 of 3 samples"):
            ask(x)


def test_thresholds_of_a_run_decide(place: Path, ill: eh.Study) -> None:
    name = str(place / "ill")
    given = ("--notion", "demographic-parity", "--bound", "0.1", "-q")
    assert invoke("thresholds", name, "--method", "fedavg", *given)[0] == 0
    try:
        study = eh.load(name)
        model, decision = study.model("fedavg"), study.trial("fedavg").decision
        assert decision is not None
        plain, chances = ill.model("fedavg"), model.predict_proba(TABLE)
        expected = decision.predict(chances["1"], TABLE["sex"], seed=3)
        assert model.predict(TABLE, seed=3).tolist() == expected.tolist()
        assert (chances == plain.predict_proba(TABLE)).all(axis=None)
        # a table of one group, names given by hand, and arrays
        women = TABLE[TABLE["sex"] == "f"]
        given = model.predict(women.assign(sex="f"), seed=4).tolist()
        x = model.trial.encoding.transform(women)
        assert given == model.predict(x, group="f", seed=4).tolist()
        with pytest.raises(ValueError, match="row 1: group 'x' is not known; the groups with a th"):
            model.predict(TABLE.assign(sex="x"))
        with pytest.raises(ValueError, match=r"say which group each row belongs to: group= \(--gr"):
            model.predict(x)
        # what was predicted at the end of training stays
        own = study.predictions("fedavg")
        assert own.equals(ill.predictions("fedavg"))
    finally:
        assert invoke("thresholds", name, "--remove", "-q")[0] == 0
    assert eh.load(name).model("fedavg").predict(TABLE).equals(ill.model("fedavg").predict(TABLE))


def test_thresholds_by_client_decide(ill: eh.Study) -> None:
    trial = ill.trial("ditto")
    fair = trial.using(trial.thresholds("demographic parity", 0.2, by="client"))
    model = trained_model(fair)
    chances = model.predict_proba(TABLE)["1"]
    assert fair.decision is not None
    expected = fair.decision.predict(chances, TABLE["site"], seed=1)
    assert model.predict(TABLE, seed=1).tolist() == expected.tolist()


def test_groups_of_conditions_are_found_in_any_table(place: Path) -> None:
    given = ("-a", "fedavg", "--group", "age > 50", "--group", "pay == cash", "--group", "ward")
    run = eh.load(train(place / "visits.csv", "ill", place / "conditions", *given))
    trial = run.trial()
    own = run.predictions()
    model = trained_model(trial.using(trial.thresholds("demographic parity", 0.9)))
    rows = TABLE.iloc[own["row"]]
    chances = model.predict_proba(rows)["1"]
    assert model.trial.decision is not None
    expected = model.trial.decision.predict(chances, own["group"], seed=0)
    assert model.predict(rows, seed=0).tolist() == expected.tolist()
    # one row at a time: no other row says what a value can be
    for place_, group in enumerate(own["group"][:12]):
        one = rows.iloc[[place_]]
        with torch.no_grad():
            expected = model.trial.decision.predict(chances.iloc[[place_]], [group], seed=0)
        assert model.predict(one, seed=0).tolist() == expected.tolist()


def test_a_method_and_a_seed_are_chosen(place: Path, ill: eh.Study, stages: eh.Study) -> None:
    assert stages.model().trial.method.label == "fedavg"
    with pytest.raises(ValueError, match="choose a method of ill: fedavg, ditto, localonly"):
        ill.model()
    with pytest.raises(ValueError, match="unknown method 'dito'; did you mean 'ditto'"):
        ill.model("dito")
    with pytest.raises(ValueError, match=r"ditto was not trained with seed 7; choose from 0"):
        ill.model("ditto", seed=7)
    several = train(
        place / "visits.csv",
        "ill",
        place / "seeds",
        "-a",
        "qffl",
        "--no-reference",
        "--seeds",
        "2",
        command="compare",
    )
    study = eh.load(several)
    assert study.model().trial.seed == 0
    second = study.model(seed=1)
    own = study.predictions(seed=1)
    assert own["prediction"].tolist() == second.predict(TABLE).iloc[own["row"]].tolist()
    assert not second.predict_proba(TABLE).equals(study.model().predict_proba(TABLE))


def test_folds_predict_every_row_once_and_leave_no_model(place: Path) -> None:
    given = ("-a", "fedavg", "--no-reference", "--folds", "3")
    study = eh.load(
        train(place / "visits.csv", "stage", place / "folds", *given, command="compare")
    )
    own = study.predictions()
    assert sorted(own["row"]) == list(range(len(TABLE)))
    assert own.set_index("row")["label"].sort_index().tolist() == TABLE["stage"].tolist()
    accuracy = study.trial().scores.query("by == 'group'").set_index("name")["accuracy"]
    right = (own["label"] == own["prediction"]).groupby(own["group"]).mean()
    assert right.to_dict() == pytest.approx(accuracy.to_dict())
    with pytest.raises(ValueError, match="cross-validation with 3 models of fedavg, one for each"):
        study.model()


def test_a_run_of_an_earlier_version_is_rebuilt(stages: eh.Study, weights: eh.Study) -> None:
    for study in (stages, weights):
        trial = study.trial()
        assert trial.source is not None
        about = {key: value for key, value in trial.source.about.items() if key != "model"}
        earlier = replace(trial, source=trial.source._replace(about=about))
        assert trained_model(earlier).predict(TABLE).equals(study.model().predict(TABLE))


def test_a_data_set_by_name_needs_no_data_to_predict(tmp_path: Path) -> None:
    given = ("--data", "digits:clients=4", "-a", "fedavg", "--rounds", "2", "--no-report", "-q")
    assert invoke("run", *given, "--out", str(tmp_path / "digits"))[0] == 0
    study = eh.load(tmp_path / "digits")
    fed = eh.datasets.digits(clients=4)
    assert fed.test is not None
    own, model = study.predictions(), study.model()
    assert model.labels == tuple(range(10))
    assert model.predict(fed.test.x).tolist() == own["prediction"].astype(int).tolist()
    # an earlier version did not write the shape of a sample
    trial = study.trial()
    assert trial.source is not None
    about = {key: value for key, value in trial.source.about.items() if key != "model"}
    earlier = trained_model(replace(trial, source=trial.source._replace(about=about)))
    assert earlier.predict(fed.test.x).tolist() == model.predict(fed.test.x).tolist()
    with pytest.raises(TypeError, match="this run was not trained on a table; x must be an array"):
        model.predict(TABLE)


def test_a_module_of_the_users_own_is_asked_for(tmp_path: Path) -> None:
    fed = eh.Federation.from_frame(TABLE, client="site", label="stage", drop=["ill", "weight"])
    net = torch.nn.Linear(fed.train.x.shape[1], 3)
    result = eh.fit(net, fed, eh.FedAvg(), rounds=2, out=tmp_path / "mine")
    study = eh.load(tmp_path / "mine")
    with pytest.raises(ValueError, match="network of this run is a module of your own, Linear, wh"):
        study.model()
    with pytest.raises(ValueError, match=r"it has 'weight' of shape \[3, 2\], the trained model "):
        study.model(module=torch.nn.Linear(2, 3)).predict(TABLE)
    model = study.model(module=net)
    names = np.array(fed.label_names)
    assert fed.test is not None
    expected = names[result.predict(fed.test.x)].tolist()
    assert model.predict(TABLE.iloc[fed.test.rows.numpy()]).tolist() == expected
    assert model.predict_proba(fed.test.x) == pytest.approx(result.predict_proba(fed.test.x))


def test_labels_of_minus_one_and_one_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = np.where(x[:, 0] + 0.3 > 0, 1, -1)
    rows = [{"x": x[:30], "y": y[:30]}, {"x": x[30:], "y": y[30:]}]
    net = torch.nn.Linear(3, 1)
    eh.fit(
        net,
        eh.Federation.from_arrays(rows, rows),
        eh.FedAvg(),
        rounds=5,
        loss="hinge",
        out=tmp_path / "hinge",
    )
    study = eh.load(tmp_path / "hinge")
    found = study.model(module=net).predict(x)
    assert set(found) == {-1, 1}
    own = study.predictions()
    assert own["prediction"].tolist() == found.tolist()
    assert own["label"].tolist() == y.tolist()
    assert own["row"].tolist() == [*range(30), *range(30)]


def test_samples_of_several_inputs_are_predicted(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(3, 2)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.a(left) + self.b(right)}

    rng = np.random.default_rng(1)
    x = {"left": rng.normal(size=(8, 2)), "right": rng.normal(size=(8, 3))}
    rows = [{"x": x, "y": np.arange(8) % 2}]
    net, fed = Sum(), eh.Federation.from_arrays(rows, rows)
    take = {"output": lambda found: found["out"]}
    result = eh.fit(net, fed, eh.FedAvg(), rounds=1, out=tmp_path / "two", **take)
    with torch.no_grad():
        inputs = {name: torch.from_numpy(values).float() for name, values in x.items()}
        expected = result.module()(**inputs)["out"]
    assert result.predict(x).tolist() == expected.argmax(1).tolist()
    model = eh.load(tmp_path / "two").model(module=net, **take)
    assert model.predict(x).tolist() == expected.argmax(1).tolist()
    assert model.predict_proba(x) == pytest.approx(expected.softmax(1).numpy(), abs=1e-6)
    with pytest.raises(TypeError, match="returned a dict without 'logits'"):
        eh.load(tmp_path / "two").model(module=net).predict(x)


def test_a_damaged_encoding_is_named(place: Path, stages: eh.Study) -> None:
    path = place / "stages" / "encoding.json"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-9])
        with pytest.raises(eh.RunError, match=r"encoding.json is damaged: it has .* bytes instead"):
            eh.load(place / "stages").model()
    finally:
        path.write_bytes(whole)


def test_a_comparison_in_memory_predicts() -> None:
    fed = eh.Federation.from_frame(TABLE, client="site", label="ill", drop=["stage", "weight"])
    found = eh.compare("linear", fed, ["ditto"], rounds=1, seeds=1, references=())
    model, own = found.study.model("ditto"), found.study.predictions("ditto")
    predicted = model.predict(TABLE, TABLE["site"])
    assert predicted.iloc[own["row"]].tolist() == own["prediction"].tolist()
