"""Pipelines, cross-validation and grid searches, with clients as metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn
from joblib.externals.loky import get_reusable_executor
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import evenhand as eh
from tests.support.sites import patients

DATA = patients()
TABLE = DATA.table()


@pytest.fixture(autouse=True)
def _routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def classifier(method: eh.Algorithm | None = None) -> Any:
    return eh.sklearn.FairClassifier(method, rounds=5)


def mixed() -> Any:
    """Preprocessing of a table with a column of text."""
    numbers = ["x0", "x1", "x2", "x3"]
    return ColumnTransformer(
        [("numbers", StandardScaler(), numbers), ("sex", OneHotEncoder(), ["sex"])]
    )


def test_clients_reach_the_estimator_through_a_pipeline() -> None:
    pipeline = make_pipeline(mixed(), classifier()).fit(
        TABLE, DATA.y, client=DATA.site, group=DATA.sex
    )
    last = pipeline[-1]
    assert last.clients_.tolist() == ["north", "south", "west"]
    assert last.result_.origin.federation.group_names == ("f", "m")
    direct = classifier().fit(mixed().fit_transform(TABLE), DATA.y, client=DATA.site)
    assert (
        pipeline.predict_proba(TABLE).tolist()
        == direct.predict_proba(mixed().fit_transform(TABLE)).tolist()
    )


def test_feature_names_reach_the_estimator_through_a_pipeline() -> None:
    pipeline = make_pipeline(mixed(), classifier()).set_output(transform="pandas")
    pipeline[0].set_params(sex=OneHotEncoder(sparse_output=False))
    pipeline.fit(TABLE, DATA.y, client=DATA.site)
    assert pipeline[-1].feature_names_in_.tolist()[3:] == [
        "numbers__x3",
        "sex__sex_f",
        "sex__sex_m",
    ]


def test_a_personal_method_predicts_with_routed_clients() -> None:
    pipeline = make_pipeline(StandardScaler(), classifier(eh.LocalOnly()))
    pipeline.fit(DATA.X, DATA.y, client=DATA.site)
    own = pipeline.predict(DATA.X, client=DATA.site)
    assert pipeline.score(DATA.X, DATA.y, client=DATA.site) == (own == DATA.y).mean()
    score = eh.sklearn.scorer("worst")(pipeline, DATA.X, DATA.y, client=DATA.site)
    assert score == min((own == DATA.y)[DATA.site == name].mean() for name in np.unique(DATA.site))


def test_a_request_may_be_withdrawn_or_renamed() -> None:
    renamed = classifier().set_fit_request(client="hospital", group=False)
    pipeline = make_pipeline(StandardScaler(), renamed).fit(DATA.X, DATA.y, hospital=DATA.site)
    assert len(pipeline[-1].clients_) == 3
    with pytest.raises(TypeError, match="client"):
        pipeline.fit(DATA.X, DATA.y, client=DATA.site)


def test_a_grid_search_selects_by_the_worst_clients() -> None:
    grid = {"algorithm__q": [0.0, 5.0], "rounds": [30]}
    scoring = {"worst": eh.sklearn.scorer("worst"), "mean": "accuracy"}
    best = {}
    for refit in scoring:
        search = GridSearchCV(classifier(eh.QFFL()), grid, cv=3, scoring=scoring, refit=refit)
        search.fit(DATA.X, DATA.y, client=DATA.site, group=DATA.sex)
        best[refit] = search.best_params_["algorithm__q"]
        assert search.best_estimator_.algorithm == eh.QFFL(q=best[refit])
        assert search.best_estimator_.clients_.tolist() == ["north", "south", "west"]
    assert best == {"worst": 5.0, "mean": 0.0}


def test_a_grid_search_runs_in_several_processes() -> None:
    grid = {"algorithm": [eh.FedAvg(), eh.QFFL(q=5.0)], "local__lr": [0.05, 0.1]}
    found = [
        GridSearchCV(classifier(), grid, cv=2, scoring=eh.sklearn.scorer(), n_jobs=jobs)
        .fit(TABLE.drop(columns="sex"), DATA.y, client="site")
        .cv_results_["mean_test_score"]
        .tolist()
        for jobs in (1, 2)
    ]
    get_reusable_executor().shutdown()
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@pytest.mark.parametrize("method", [eh.FedAvg(), eh.Ditto()])
def test_cross_validation_can_leave_out_whole_clients(method: eh.Algorithm) -> None:
    model = classifier(method).set_score_request(client=False)
    found = cross_validate(
        model,
        DATA.X,
        DATA.y,
        cv=LeaveOneGroupOut(),
        params={"client": DATA.site, "groups": DATA.site},
        return_estimator=True,
    )
    assert [list(one.clients_) for one in found["estimator"]] == [
        ["south", "west"],
        ["north", "west"],
        ["north", "south"],
    ]
    rows = DATA.site == "west"
    assert found["test_score"][2] == found["estimator"][2].score(DATA.X[rows], DATA.y[rows])


def test_columns_name_clients_in_cross_validation() -> None:
    table = TABLE.drop(columns="sex")
    score = eh.sklearn.scorer("worst")
    by_name = cross_val_score(classifier(), table, DATA.y, params={"client": "site"}, scoring=score)
    by_value = cross_val_score(
        classifier(), DATA.X, DATA.y, params={"client": DATA.site}, scoring=score
    )
    assert by_name.tolist() == by_value.tolist()
    with sklearn.config_context(enable_metadata_routing=False):
        plain = cross_val_score(classifier(), table, DATA.y, params={"client": "site"})
    assert len(plain) == 5


def test_scorers_by_hand() -> None:
    model = classifier().fit(DATA.X, DATA.y, client=DATA.site)
    right = model.predict(DATA.X) == DATA.y
    north, south, west = (right[DATA.site == name].mean() for name in ("north", "south", "west"))

    def score(over: str, **options: Any) -> float:
        scorer = eh.sklearn.scorer(over, **options)
        return scorer(model, DATA.X, DATA.y, client=DATA.site, group=DATA.sex)

    assert score("worst") == score("worst10") == min(north, south, west)
    assert score("best10") == max(north, south, west)
    assert score("mean") == pytest.approx((north + south + west) / 3)
    assert score("std") == pytest.approx(-np.std([north, south, west]))
    assert score("worst", by="group") == min(right[DATA.sex == sex].mean() for sex in "fm")
    ill = [right[(DATA.site == name) & (DATA.y == "ill")].mean() for name in np.unique(DATA.site)]

    def recall(y: Any, predicted: Any) -> float:
        return float((predicted == y)[y == "ill"].mean())

    assert score("worst", metric=recall) == min(ill)


def test_a_scorer_serves_any_estimator() -> None:
    y = DATA.X[:, 0]
    model = eh.sklearn.FairRegressor(rounds=2).fit(DATA.X, y)
    squared = (model.predict(DATA.X) - y) ** 2
    worst = eh.sklearn.scorer("worst")
    expected = -max(squared[DATA.site == name].mean() for name in np.unique(DATA.site))
    assert worst(model, DATA.X, y, client=DATA.site) == pytest.approx(expected)
    other = LogisticRegression().fit(DATA.X, DATA.y)
    right = other.predict(DATA.X) == DATA.y
    expected = min(right[DATA.site == name].mean() for name in np.unique(DATA.site))
    assert worst(other, DATA.X, DATA.y, client=DATA.site) == expected


def test_a_scorer_says_what_is_missing() -> None:
    model = classifier().fit(DATA.X, DATA.y)
    with pytest.raises(
        ValueError, match=r"scorer\('worst10'\) got no client: call sklearn.set_config"
    ):
        eh.sklearn.scorer()(model, DATA.X, DATA.y)
    with pytest.raises(ValueError, match=r'over must be "mean", .* got \'worst5\''):
        eh.sklearn.scorer("worst5")
    with pytest.raises(TypeError, match=r"metric must be a function \(y_true, y_pred\), got 'f1'"):
        eh.sklearn.scorer(metric="f1")
    assert repr(eh.sklearn.scorer("std", by="group")) == "scorer('std', by='group')"
