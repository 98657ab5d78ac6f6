"""The estimators train as ``eh.fit`` does, and reach the optima of scikit-learn's models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.preprocessing import StandardScaler

import evenhand as eh
from evenhand.models.factories import linear
from evenhand.models.linear import MLP, Linear
from tests.support.sites import patients


def test_an_estimator_trains_the_bits_of_fit() -> None:
    data = patients()
    model = eh.sklearn.FairClassifier(eh.AFL(lr_lambda=0.1), rounds=7, random_state=3)
    model.fit(data.X, data.y, client=data.site, group=data.sex)
    scaled = (data.X - model.feature_mean_) / model.feature_std_
    clients = [
        {
            "x": scaled[data.site == name],
            "y": (data.y[data.site == name] == "well").astype(int),
            "group": data.sex[data.site == name].tolist(),
            "name": name,
        }
        for name in ("north", "south", "west")
    ]
    same = eh.fit(
        linear([4], 2, 3).double(),
        eh.Federation.from_arrays(clients),
        eh.AFL(lr_lambda=0.1),
        rounds=7,
        seed=3,
    )
    assert list(same.params) == list(model.result_.params)
    for name, value in same.params.items():
        assert torch.equal(value, model.result_.params[name])
    assert same.summary == model.result_.summary
    assert model.result_.scores["name"].tolist()[:5] == ["north", "south", "west", "f", "m"]
    expected = np.array(["ill", "well"])[same.predict(torch.from_numpy(scaled))]
    assert model.predict(data.X).tolist() == expected.tolist()


def test_features_are_scaled_over_all_clients() -> None:
    data = patients()
    model = eh.sklearn.FairClassifier(rounds=1).fit(data.X, data.y, client=data.site)
    known = StandardScaler().fit(data.X)
    np.testing.assert_allclose(model.feature_mean_, known.mean_, rtol=1e-13)
    np.testing.assert_allclose(model.feature_std_, known.scale_, rtol=1e-13)


def test_a_constant_feature_is_not_scaled() -> None:
    data = patients()
    constants = np.array([0.1, 1 / 3, 1e9 + 0.1, 0.7])  # their means differ from them by rounding
    X = np.column_stack([data.X, np.tile(constants, (len(data.X), 1))])
    assert (X.std(0)[4:] > 0).any()
    model = eh.sklearn.FairClassifier(rounds=1).fit(X, data.y, client=data.site)
    assert model.feature_std_[4:].tolist() == [1, 1, 1, 1]


def test_without_standardise_nothing_is_scaled() -> None:
    data = patients()
    X = StandardScaler().fit_transform(data.X)
    target = 100 + X[:, 0]
    model = eh.sklearn.FairRegressor(rounds=200, standardise=False).fit(X, target)
    assert (model.target_mean_, model.target_std_) == (0.0, 1.0)
    assert model.feature_std_.tolist() == [1, 1, 1, 1]
    assert model.score(X, target) > 0.999


# full batches of one client: FedAvg is gradient descent
DESCENT = eh.LocalSGD(lr=1.0, steps=5, batch_size=None)


@pytest.mark.parametrize("labels", [2, 3])
def test_fedavg_with_one_client_reaches_the_optimum_of_logistic_regression(labels: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) * [1, 10, 0.1]
    y = np.digitize(X[:, 0] + X[:, 1] / 10 + rng.normal(size=300), [0, 1][: labels - 1])
    model = eh.sklearn.FairClassifier(rounds=200, local=DESCENT).fit(X, y)
    known = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    scaled = StandardScaler().fit_transform(X)
    expected = known.fit(scaled, y).predict_proba(scaled)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-5)
    if labels == 2:
        expected = known.decision_function(scaled)
        np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-4)


def test_fedavg_with_one_client_reaches_least_squares() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) * [1, 10, 0.1]
    y = 1e6 + 50 * X[:, 0] + X[:, 1] + rng.normal(size=200)
    local = eh.LocalSGD(lr=0.3, steps=5, batch_size=None)
    model = eh.sklearn.FairRegressor(rounds=100, local=local).fit(X, y)
    known = LinearRegression().fit(X, y)
    np.testing.assert_allclose(model.predict(X), known.predict(X), rtol=1e-12)
    assert model.score(X, y) == pytest.approx(known.score(X, y), abs=1e-9)


def test_training_depends_on_random_state_alone() -> None:
    data = patients()

    def trained(random_state: object) -> list[float]:
        model = eh.sklearn.FairClassifier(rounds=2, module="mlp", random_state=random_state)
        return model.fit(data.X, data.y, client=data.site).decision_function(data.X[:5]).tolist()

    assert trained(1) == trained(1) != trained(2)
    assert trained(np.random.RandomState(0)) == trained(np.random.RandomState(0))
    assert trained(None) != trained(None)


def test_rows_of_a_client_may_lie_anywhere() -> None:
    data = patients()
    order = np.argsort(data.site, kind="stable")
    mixed = eh.sklearn.FairClassifier(rounds=3).fit(data.X, data.y, client=data.site)
    sorted_ = eh.sklearn.FairClassifier(rounds=3)
    sorted_.fit(data.X[order], data.y[order], client=data.site[order])
    assert mixed.predict_proba(data.X).tolist() == sorted_.predict_proba(data.X).tolist()


def test_afl_serves_the_worst_client_better_than_fedavg() -> None:
    data = patients()
    worst = {
        type(method).__name__: eh.sklearn.FairClassifier(method, rounds=50)
        .fit(data.X, data.y, client=data.site)
        .score_by_client(data.X, data.y, client=data.site)["accuracy"]
        .min()
        for method in (eh.FedAvg(), eh.AFL(lr_lambda=0.1))
    }
    assert worst["AFL"] > worst["FedAvg"] + 0.1


@pytest.mark.parametrize(
    "module",
    [
        "mlp",
        eh.models.MLP,
        lambda inputs, outputs: torch.nn.Linear(inputs, outputs),
        MLP(4, 5, init="glorot"),
        Linear(4, 1, init="zero"),
    ],
)
def test_a_module_may_be_a_name_a_class_a_function_or_a_network(module: object) -> None:
    data = patients()
    loss = "brier" if isinstance(module, Linear) else None
    model = eh.sklearn.FairClassifier(rounds=20, module=module, loss=loss)
    model.fit(data.X, data.y, client=data.site)
    assert model.score(data.X, data.y) > 0.7
    probability = model.predict_proba(data.X)
    assert probability.shape == (len(data.X), 2)
    np.testing.assert_allclose(probability.sum(1), 1)
    assert (model.classes_[probability.argmax(1)] == model.predict(data.X)).all()


def test_a_hinge_loss_gives_scores_and_no_probabilities() -> None:
    data = patients()
    model = eh.sklearn.FairClassifier(rounds=5, loss="hinge").fit(data.X, data.y)
    assert model.decision_function(data.X).shape == (len(data.X),)
    assert not hasattr(model, "predict_proba")


def test_a_named_network_has_one_output_for_bce() -> None:
    data = patients()
    one = eh.sklearn.FairClassifier(rounds=20, loss="bce").fit(data.X, data.y, client=data.site)
    assert one.module_(torch.zeros(3, data.X.shape[1]).double()).shape == (3, 1)
    assert one.score(data.X, data.y) > 0.7
    assert (one.classes_[one.predict_proba(data.X).argmax(1)] == one.predict(data.X)).all()


def test_a_loss_of_levels_is_refused() -> None:
    data = patients()
    for loss in ("ordinal", eh.losses.ordinal):
        model = eh.sklearn.FairClassifier(rounds=2, loss=loss)
        with pytest.raises(ValueError, match="predicts ordered levels, and FairClassifier classes"):
            model.fit(data.X, data.y)


def test_validation_data_are_held_out() -> None:
    data = patients()
    model = eh.sklearn.FairClassifier(rounds=2, validation=0.25)
    model.fit(data.X, data.y, client=data.site, group=data.sex)
    assert model.result_.origin is not None
    sizes = np.unique(data.site, return_counts=True)[1]
    assert model.result_.origin.federation.sizes("val").tolist() == (sizes // 4).tolist()
    assert model.result_.thresholds("accuracy", least=1).found_on == "validation"
