"""Studies judged by other measures than accuracy."""

import numpy as np
import pytest
import torch
from sklearn import metrics

import evenhand as eh
from evenhand.errors import SpecError
from evenhand.models import Linear
from evenhand.studies.analysis.ledger import ledger
from evenhand.studies.analysis.statistics import across_clients
from evenhand.studies.findings import analyse
from evenhand.studies.runs.study import Study
from tests.support.studies import make_study, study_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A real run of two methods, two classes and two groups."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    n = 600
    x = rng.normal(size=(n, 3)).astype(np.float32)
    y = (x @ [1.0, -1.0, 0.5] + rng.normal(size=n) > 0.8).astype(np.int64)
    group, half = rng.integers(0, 2, n), n // 2
    parts = [
        [
            {"x": x[rows], "y": y[rows], "group": group[rows]}
            for rows in (np.arange(start + client, start + half, 4) for client in range(4))
        ]
        for start in (0, half)
    ]
    federation = eh.Federation.from_arrays(parts[0], test=parts[1])
    out = tmp_path_factory.mktemp("measures") / "run"
    eh.compare(Linear(3, 2), federation, ["fedavg", "qffl:q=1"], rounds=5, seeds=2, out=out)
    return Study.load([out])


def judged(study, label, seed, rows):
    outcomes = study.trials[label, seed].outcomes
    return (np.asarray(outcomes[name])[rows] for name in ("label", "prediction", "score"))


@pytest.mark.parametrize(
    ("kind", "by_hand"),
    [
        ("recall", lambda y, p, s: metrics.recall_score(y, p)),
        ("specificity", lambda y, p, s: metrics.recall_score(y, p, pos_label=0)),
        ("precision", lambda y, p, s: metrics.precision_score(y, p)),
        ("balanced_accuracy", lambda y, p, s: metrics.balanced_accuracy_score(y, p)),
        ("auc", lambda y, p, s: metrics.roc_auc_score(y, s)),
        ("accuracy", lambda y, p, s: metrics.accuracy_score(y, p)),
    ],
)
@pytest.mark.parametrize("by", ["client", "group"])
def test_merits_are_scikit_learns(trained, kind, by_hand, by):
    study = trained.measured_by(kind)
    cell = study.cells(by)
    expected = [
        by_hand(*judged(study, "qffl", 1, cell == place)) for place in range(len(study.names(by)))
    ]
    # scores are kept in bins: the area under their curve is known up to those
    rough = {"abs": 0.01} if kind == "auc" else {}
    assert study.merits("qffl", 1, by) == pytest.approx(np.array(expected), **rough)
    everyone = by_hand(*judged(study, "qffl", 1, slice(None)))
    pooled = across_clients(study, "qffl", 1)["pooled"]
    assert float(pooled) == pytest.approx(everyone, **rough)


@pytest.mark.parametrize(
    "kind", ["recall", "specificity", "precision", "balanced_accuracy", "auc", "loss"]
)
def test_everything_is_said_in_the_measure_asked_for(trained, kind):
    found = analyse(trained, measure=kind)
    assert found.study.measure.kind == kind
    name = found.study.measure.name
    text = repr(found)
    assert f"Test {name} across clients" in text
    for row in found.comparison.rows.values():
        for number in ("mean", "min", "pooled"):
            assert row[number].low < row[number].high
    assert all(entry.gain.low < entry.gain.high for entry in found.entries)


def test_recall_is_judged_by_the_samples_of_its_label(trained):
    study = trained.measured_by("recall")
    label = np.asarray(study.first.outcomes["label"])
    assert study.sizes().tolist() == np.bincount(study.cells("client"), label).tolist()
    other = trained.measured_by("recall", "0")
    assert (study.sizes() + other.sizes()).tolist() == trained.sizes().tolist()
    assert other.merits("fedavg", 0).tolist() == (
        trained.measured_by("specificity").merits("fedavg", 0).tolist()
    )


def test_gains_in_recall_are_those_of_positive_samples():
    label = np.r_[np.ones(40, int), np.zeros(60, int)]
    old, new = label.copy(), label.copy()
    old[:20], new[:10] = 0, 0
    new[40:70] = 1  # false alarms do not count
    study = study_of({"fedavg": [old], "qffl": [new]}, label, np.zeros(100, int))
    entry = next(e for e in ledger(study.measured_by("recall")) if e.by == "client")
    assert (entry.gain.value, entry.samples, entry.verdict) == (pytest.approx(0.25), 40, "gains")
    entry = next(e for e in ledger(study.measured_by("specificity")) if e.by == "client")
    assert (entry.gain.value, entry.samples, entry.verdict) == (pytest.approx(-0.5), 60, "harmed")


def test_of_many_labels_recall_is_the_mean_over_classes():
    rng = np.random.default_rng(1)
    label, client = rng.integers(0, 3, 300), np.arange(300) % 2
    predicted = np.where(rng.random(300) < 0.6, label, 0)
    study = study_of({"fedavg": [predicted]}, label, client, labels=("a", "b", "c"))
    one = study.measured_by("recall", "b")
    mine = client == 0
    assert one.measure.name == "recall of b"
    assert one.merits("fedavg", 0)[0] == pytest.approx(
        metrics.recall_score(label[mine] == 1, predicted[mine] == 1)
    )
    assert study.measured_by("recall").measure.name == "mean recall over classes"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("auc", "auc needs two classes, not 3; use balanced_accuracy"),
        ("specificity", "specificity needs a positive class; name it with --positive"),
        (
            "error",
            "these runs have no measure 'error'; choose one of accuracy, balanced_accuracy,",
        ),
        ("speed", "there is no measure 'speed'; choose one of accuracy, balanced_accuracy,"),
    ],
)
def test_what_cannot_be_measured_is_refused(kind, message):
    study = study_of({"fedavg": [[0, 1, 2]]}, [0, 1, 2], [0, 0, 0], labels=("a", "b", "c"))
    with pytest.raises(SpecError, match=message):
        study.measured_by(kind)


def test_a_regression_has_its_absolute_error():
    study = make_study(regression=True)
    with pytest.raises(SpecError, match="have no measure 'recall'; choose one of error, mae"):
        study.measured_by("recall")
    assert study.measured_by("error") is not None
    values = study.measured_by("mae").sample_merits("fedavg", 0)
    assert values == pytest.approx(-np.sqrt(study.trials["fedavg", 0].values))
