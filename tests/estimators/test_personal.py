"""Methods that give each client a model of its own, in the estimators."""

from __future__ import annotations

import numpy as np
import pytest

import evenhand as eh
from tests.support.sites import patients


def test_each_client_is_served_by_its_own_model() -> None:
    data = patients()
    model = eh.sklearn.FairClassifier(eh.Ditto(lam=0.1), rounds=20)
    model.fit(data.X, data.y, client=data.site)
    own = model.predict(data.X, client=data.site)
    for code, name in enumerate(["north", "south", "west"]):
        rows = data.site == name
        weight = model.result_.personal[code]["1.weight"].numpy()
        bias = model.result_.personal[code]["1.bias"].numpy()
        scaled = (data.X[rows] - model.feature_mean_) / model.feature_std_
        expected = model.classes_[(scaled @ weight.T + bias).argmax(1)]
        assert own[rows].tolist() == expected.tolist()
    assert model.score(data.X, data.y, client=data.site) > model.score(data.X, data.y) + 0.05
    few = model.predict_proba(data.X[:3], client=["west", "north", "west"])
    assert few.shape == (3, 2)
    table = model.score_by_client(data.X, data.y, client=data.site)
    assert table["client"].tolist() == ["north", "south", "west"]
    hits = [(own == data.y)[data.site == name].mean() for name in table["client"]]
    assert table["accuracy"].tolist() == hits


def test_the_column_of_clients_says_whose_model_predicts() -> None:
    data = patients()
    table = data.table().drop(columns="sex")
    model = eh.sklearn.FairClassifier(eh.Ditto(lam=0.1), rounds=5).fit(table, data.y, client="site")
    by_array = model.predict(table.drop(columns="site"), client=data.site)
    assert model.predict(table).tolist() == by_array.tolist()
    shared = model.predict(table.drop(columns="site"))
    assert shared.tolist() != by_array.tolist()


def test_a_new_client_has_no_model_of_its_own() -> None:
    data = patients()
    model = eh.sklearn.FairClassifier(eh.Ditto(), rounds=1).fit(data.X, data.y, client=data.site)
    with pytest.raises(
        ValueError, match=r"client 'east' was not .*; predict without client to use"
    ):
        model.predict(data.X[:1], client=["east"])


def test_a_method_without_a_shared_model_needs_the_client() -> None:
    data = patients()
    model = eh.sklearn.FairRegressor(eh.LocalOnly(), rounds=5)
    model.fit(data.X, data.X[:, 0], client=data.site)
    with pytest.raises(ValueError, match="LocalOnly trains no shared model: pass client="):
        model.predict(data.X)
    with pytest.raises(ValueError, match=r"'east' was not in the training data, .* its own$"):
        model.predict(data.X[:1], client=["east"])
    assert model.score(data.X, data.X[:, 0], client=data.site) > 0.9


def test_a_method_with_one_model_serves_new_clients() -> None:
    data = patients()
    model = eh.sklearn.FairClassifier(rounds=1).fit(data.X, data.y, client=data.site)
    new = model.predict(data.X, client=np.full(len(data.X), "east"))
    assert new.tolist() == model.predict(data.X).tolist()
