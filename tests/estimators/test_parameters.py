"""Parameters: those of methods and local solvers, clones, pickles."""

from __future__ import annotations

import copy
import pickle

import joblib
import pytest
from sklearn.base import clone

import evenhand as eh
from tests.support.sites import patients


def test_hyperparameters_of_the_method_are_parameters() -> None:
    model = eh.sklearn.FairClassifier(eh.FedAvgM(inner=eh.QFFL(q=2.0)), local=eh.LocalSGD(lr=0.5))
    deep = model.get_params()
    assert deep["algorithm__inner__q"] == 2.0
    assert deep["local__lr"] == 0.5
    assert not any("__" in name for name in model.get_params(deep=False))
    model.set_params(algorithm__inner__q=5.0, algorithm__momentum=0.5, rounds=3)
    assert model.algorithm == eh.FedAvgM(inner=eh.QFFL(q=5.0), momentum=0.5)
    assert model.rounds == 3


def test_a_method_and_its_hyperparameter_may_be_set_together() -> None:
    model = eh.sklearn.FairClassifier().set_params(algorithm__q=3.0, algorithm=eh.QFFL())
    assert model.algorithm == eh.QFFL(q=3.0)
    model.set_params(
        algorithm__inner__q=4.0, algorithm=eh.Averaged(eh.AFL()), algorithm__inner=eh.QFFL()
    )
    assert model.algorithm == eh.Averaged(eh.QFFL(q=4.0))


def test_settings_of_the_default_solver_are_parameters() -> None:
    model = eh.sklearn.FairRegressor()
    assert model.get_params()["local__lr"] == 0.1
    assert model.local is None
    model.set_params(local__lr=0.3, local__batch_size=None)
    assert model.local == eh.LocalSGD(lr=0.3, epochs=1)
    model.set_params(cohort=eh.Uniform(2)).set_params(cohort__k=1)
    assert model.cohort == eh.Uniform(1)


def test_setting_a_parameter_leaves_the_object_that_was_given_unchanged() -> None:
    method = eh.QFFL(q=1.0)
    first = eh.sklearn.FairClassifier(method)
    second = clone(first).set_params(algorithm__q=2.0)
    assert (method.q, first.algorithm.q, second.algorithm.q) == (1.0, 1.0, 2.0)
    assert first.algorithm is method


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm__r": 1}, r"unknown parameter of algorithm=QFFL\(\.\.\.\): 'r'; choose from q"),
        (
            {"local__lrr": 1},
            r"unknown parameter of local=LocalSGD\(\.\.\.\): 'lrr'; did you mean 'lr'",
        ),
        ({"algorithm__q": -1.0}, "q must be"),
        ({"round": 1}, "Invalid parameter 'round'"),
    ],
)
def test_an_unknown_parameter_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.sklearn.FairClassifier(eh.QFFL()).set_params(**changes)


@pytest.mark.parametrize("method", [eh.AFL(), eh.Ditto(), eh.FAFL(alpha=0.7), eh.FedMinMax()])
def test_a_pickled_model_predicts_the_same_and_holds_no_training_data(method: eh.Algorithm) -> None:
    data = patients()
    model = eh.sklearn.FairClassifier(method, rounds=2, module="mlp")
    model.fit(data.X, data.y, client=data.site, group=data.sex)
    expected = model.predict_proba(data.X, client=data.site).tolist()
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert twin.predict_proba(data.X, client=data.site).tolist() == expected
        assert twin.result_.origin is None
        assert twin.result_.summary == model.result_.summary
        assert twin.score(data.X, data.y) == model.score(data.X, data.y)
        with pytest.raises(eh.RunError, match="not pickled; save or export it right after"):
            twin.result_.export("model.onnx")
    assert model.result_.origin is not None


def test_the_size_of_a_pickle_is_that_of_the_model(tmp_path: object) -> None:
    data = patients(count=2000)
    model = eh.sklearn.FairClassifier(rounds=2).fit(data.X, data.y, client=data.site)
    file = f"{tmp_path}/model.joblib"
    joblib.dump(model, file)
    assert joblib.load(file).score(data.X, data.y) == model.score(data.X, data.y)
    assert len(pickle.dumps(model)) < 40_000 < data.X.nbytes


def test_an_unfitted_model_is_cloned_and_shown() -> None:
    model = eh.sklearn.FairClassifier(eh.QFFL(q=2.0), rounds=5)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert repr(twin).startswith("FairClassifier(algorithm=QFFL(q=2.0")
    assert "algorithm__q" in twin._repr_html_()
