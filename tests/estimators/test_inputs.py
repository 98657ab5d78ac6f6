"""Tables in and out, labels of any kind, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse

import evenhand as eh
from tests.support.sites import patients

DATA = patients()
FRAMES = [pd.DataFrame, pl.DataFrame]


def fitted(X: Any, y: Any = DATA.y, method: eh.Algorithm | None = None, **labels: Any) -> Any:
    return eh.sklearn.FairClassifier(method, rounds=2).fit(X, y, **labels)


EXPECTED = fitted(DATA.X, client=DATA.site).predict_proba(DATA.X).tolist()


@pytest.mark.parametrize("frame", FRAMES)
def test_clients_and_groups_may_be_columns_of_a_table(frame: Any) -> None:
    table = frame(DATA.table().to_dict("list"))
    model = fitted(table, client="site", group="sex")
    assert model.feature_names_in_.tolist() == ["x0", "x1", "x2", "x3"]
    assert (model.n_features_in_, model.client_column_, model.group_column_) == (4, "site", "sex")
    assert model.clients_.tolist() == ["north", "south", "west"]
    assert model.result_.scores["name"].tolist() == ["north", "south", "west", "f", "m"]
    assert model.predict_proba(table).tolist() == EXPECTED
    assert model.predict_proba(table[["x0", "x1", "x2", "x3"]]).tolist() == EXPECTED
    by_client = model.score_by_client(table, DATA.y)
    by_group = model.score_by_group(table, DATA.y)
    assert isinstance(by_client, frame)
    assert by_client["client"].to_list() == ["north", "south", "west"]
    assert by_client["samples"].to_list() == [74, 67, 39]
    assert by_group["group"].to_list() == ["f", "m"]
    right = model.predict(table) == DATA.y
    assert by_group["accuracy"].to_list() == [right[DATA.sex == sex].mean() for sex in "fm"]


@pytest.mark.parametrize("frame", FRAMES)
def test_a_group_given_by_its_values_remains_a_feature(frame: Any) -> None:
    table = frame({"x": DATA.X[:, 0], "female": (DATA.sex == "f").astype(int)})
    model = fitted(table, group=table["female"], client=DATA.site)
    assert model.feature_names_in_.tolist() == ["x", "female"]
    assert model.result_.origin.federation.group_names == ("0", "1")


@pytest.mark.parametrize("series", [list, tuple, pd.Series, pl.Series, np.asarray])
def test_labels_may_be_of_any_kind(series: Any) -> None:
    client = series([{"north": 1, "south": 2, "west": 3}[name] for name in DATA.site])
    model = fitted(DATA.X, series(DATA.y.tolist()), client=client)
    assert model.clients_.tolist() == [1, 2, 3]
    assert model.predict_proba(DATA.X).tolist() == EXPECTED


def test_a_categorical_column_may_name_the_clients() -> None:
    table = DATA.table().drop(columns="sex").astype({"site": "category"})
    assert fitted(table, client="site").predict_proba(table).tolist() == EXPECTED


@pytest.mark.parametrize("classes", [[False, True], [3, 7], [0.5, 1.5], ["a", "b"]])
def test_classes_come_back_in_their_own_type(classes: list[Any]) -> None:
    values = np.array(classes)
    if values.dtype.kind == "f":
        with pytest.raises(ValueError, match="Unknown label type"):
            fitted(DATA.X, values[(DATA.y == "well").astype(int)])
        return
    model = fitted(DATA.X, values[(DATA.y == "well").astype(int)], client=DATA.site)
    assert model.classes_.dtype == values.dtype
    assert model.predict(DATA.X).dtype == values.dtype
    assert model.predict_proba(DATA.X).tolist() == EXPECTED
    assert model.result_.counts.labels == tuple(map(str, values.tolist()))


def test_a_client_with_one_class_takes_part() -> None:
    site = np.where(DATA.y == "ill", "ward", DATA.site)
    assert fitted(DATA.X, client=site).clients_.tolist() == ["north", "south", "ward", "west"]


def missing(labels: np.ndarray[Any, Any], value: object) -> np.ndarray[Any, Any]:
    found = labels.astype(object)
    found[5] = value
    return found


TABLE = DATA.table()
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "too few clients": (
        DATA.X,
        {"client": DATA.site[1:]},
        "client needs one label for each of 180 samples, got shape [179]",
    ),
    "groups in columns": (
        DATA.X,
        {"group": DATA.X},
        "group needs one label for each of 180 samples, got shape [180, 4]",
    ),
    "a client is None": (
        DATA.X,
        {"client": missing(DATA.site, None)},
        "client has a missing value in row 5",
    ),
    "a client is NaN": (
        DATA.X,
        {"client": missing(DATA.site, float("nan")).tolist()},
        "client has a missing value in row 5",
    ),
    "a group is NA": (
        DATA.X,
        {"group": pd.Series(missing(DATA.sex, pd.NA))},
        "group has a missing value in row 5",
    ),
    "a group is null": (
        DATA.X,
        {"group": pl.Series(missing(DATA.sex, None).tolist())},
        "group has a missing value in row 5",
    ),
    "an array has no columns": (
        DATA.X,
        {"client": "site"},
        "client='site' names a column, but X is no table",
    ),
    "no such column": (
        TABLE,
        {"client": "sites"},
        "unknown column of X for client: 'sites'; did you mean 'site'?",
    ),
    "text": (TABLE, {"client": "site"}, "column 'sex' holds text or categories, such as"),
    "text in polars": (
        pl.DataFrame(TABLE.to_dict("list")),
        {"client": "site"},
        "column 'sex' holds text or categories, such as",
    ),
    "text in an array": (
        DATA.site[:, None],
        {},
        "X holds text, such as 'south'; encode it first",
    ),
    "dates": (
        pd.DataFrame({"when": pd.date_range("2020", periods=180)}),
        {},
        "column 'when' holds Datetime",
    ),
    "gaps": (np.where(DATA.X > 110, np.nan, DATA.X), {}, "Input X contains NaN"),
    "too large": (
        DATA.X * [1, 1e306, 1, 1],
        {},
        "feature 1 has numbers too large to add up; use another unit",
    ),
    "one class": (
        DATA.X,
        {"y": np.full(180, "ill")},
        "y has one class only, 'ill'; a classifier needs two or more",
    ),
    "no groups": (DATA.X, {"method": eh.FedMinMax()}, "FedMinMax needs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsuitable_data_are_refused_in_one_line(case: str) -> None:
    X, given, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        fitted(X, **given)
    assert case == "gaps" or "\n" not in str(error.value)


def test_sparse_data_are_refused() -> None:
    with pytest.raises(TypeError, match=r"(?i)sparse data was passed"):
        fitted(sparse.csr_array(DATA.X), client=DATA.site)


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"algorithm": eh.AFL}, TypeError, "algorithm must be an Algorithm object such as AFL(), got the class AFL; did you mean AFL()?"),
        ({"rounds": 0}, ValueError, "rounds must be a whole number >= 1, got 0"),
        ({"module": "cnn"}, ValueError, 'module must be "linear" or "mlp", got \'cnn\''),
        ({"module": 3}, TypeError, 'module must be "linear", "mlp", a torch.nn.Module or a function'),
        ({"module": lambda a, b: None}, TypeError, "module must return a torch.nn.Module, got NoneType"),
        ({"module": torch.nn.Linear(3, 2)}, ValueError, "module"),
        ({"loss": "hubert"}, ValueError, "unknown loss 'hubert'"),
        ({"loss": "huber"}, ValueError, "loss 'huber' predicts numbers, and FairClassifier class"),
        ({"standardise": "yes"}, ValueError, "standardise must be True or False, got 'yes'"),
        ({"validation": 1.0}, ValueError, "validation must be in [0, 1)"),
        ({"random_state": -1}, ValueError, "random_state must be a whole number >= 0, got -1"),
        ({"local": eh.LocalSGD}, TypeError, "local must be"),
    ],
)  # fmt: skip
def test_unsuitable_settings_are_refused_in_one_line(
    settings: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)) as error:
        eh.sklearn.FairClassifier(**{"rounds": 1, **settings}).fit(DATA.X, DATA.y)
    assert "\n" not in str(error.value)


def test_a_regression_needs_one_output() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output[:, 0] - target) ** 2

    model = eh.sklearn.FairRegressor(rounds=1, module=torch.nn.Linear(4, 2), loss=loss)
    with pytest.raises(ValueError, match="a regression needs a module with one output"):
        model.fit(DATA.X, DATA.X[:, 0]).predict(DATA.X)


@pytest.mark.parametrize("kind", [str, object])
def test_a_regression_needs_numbers(kind: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^y holds text, such as 'well'; a regression needs numbers$"
    ):
        eh.sklearn.FairRegressor(rounds=1).fit(DATA.X, DATA.y.astype(kind))


def test_scores_of_a_regression_by_client_are_in_the_targets_unit() -> None:
    y = 1000 + 10 * DATA.X[:, 0]
    model = eh.sklearn.FairRegressor(rounds=2).fit(DATA.X, y, client=DATA.site)
    table = model.score_by_client(DATA.X, y, client=DATA.site)
    assert isinstance(table, pd.DataFrame)
    error = model.predict(DATA.X) - y
    for code, name in enumerate(["north", "south", "west"]):
        own = error[DATA.site == name]
        row = table.iloc[code]
        assert row["mse"] == pytest.approx((own**2).mean())
        assert row["mae"] == pytest.approx(abs(own).mean())
    with pytest.raises(ValueError, match="pass client=, one label per sample"):
        model.score_by_client(DATA.X, y)
    with pytest.raises(ValueError, match="y has 5 labels for 180 samples"):
        model.score_by_group(DATA.X, y[:5], DATA.sex)
