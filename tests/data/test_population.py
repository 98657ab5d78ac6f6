"""What the server knows of its clients, with samples and without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.data.population import Extent, Form, Population
from evenhand.data.samples import PARTS, Batch, Samples
from evenhand.metrics.scores import counts_of, score_columns
from tests.support.federations import ragged


def counts_alone(fed: eh.Federation) -> Population:
    """The same clients without their samples."""
    return Population(
        {part: fed.counts(part) for part in PARTS if fed.has(part)},
        fed.form,
        fed.teams,
        fed.team_names,
        fed.group_names,
        fed.names,
        fed.label_names,
    )


@pytest.fixture(scope="module")
def grouped() -> eh.Federation:
    rng = np.random.default_rng(0)

    def samples(count: int, groups: str, **more: str) -> dict[str, object]:
        x = rng.normal(size=(count, 3)).astype("float32")
        return {"x": x, "y": rng.integers(0, 2, count), "group": list(groups), **more}

    return eh.Federation.from_arrays(
        [
            samples(4, "aaba", team="north", name="one"),
            samples(2, "ab", team="south", name="two"),
            samples(3, "ccb", team="south", name="three"),
        ],
        test=[samples(2, "ab"), None, samples(1, "c")],
    )


def test_counts_are_by_part_client_and_group(grouped: eh.Federation) -> None:
    assert grouped.counts("train").tolist() == [[3, 1, 0], [1, 1, 0], [0, 1, 2]]
    assert grouped.counts("test").tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert grouped.counts("val").tolist() == [[0] * 3] * 3
    assert [grouped.sizes(part).tolist() for part in PARTS] == [[4, 2, 3], [0] * 3, [2, 0, 1]]
    assert [grouped.has(part) for part in PARTS] == [True, False, True]
    assert grouped.judged_part == "test"
    assert grouped.judged is grouped.test
    for who in (grouped, counts_alone(grouped)):
        with pytest.raises(ValueError, match="part must be"):
            who.sizes("tset")
    assert grouped.extent == Extent(clients=3, groups=3, teams=2)


def test_without_groups_there_is_one_column() -> None:
    sizes = (2, 5)
    fed = eh.Federation.from_arrays([{"x": np.zeros((n, 1)), "y": [0] * n} for n in sizes])
    assert fed.counts("train").tolist() == [[2], [5]]
    assert fed.census().group_counts is None


def test_counts_without_samples_tell_the_server_the_same(grouped: eh.Federation) -> None:
    for fed in (grouped, ragged()):
        alone = counts_alone(fed)
        assert (alone.clients, alone.groups, alone.extent) == (fed.clients, fed.groups, fed.extent)
        assert alone.judged_part == fed.judged_part
        assert [alone.name(i) for i in range(3)] == [fed.name(i) for i in range(3)]
        for weights in ("data", "uniform"):
            for one, other in zip(alone.census(weights), fed.census(weights), strict=True):
                same = torch.equal(one, other) if isinstance(one, Tensor) else one == other
                assert same
        for part in PARTS:
            assert torch.equal(alone.sizes(part), fed.sizes(part))
            assert torch.equal(alone.counts(part), fed.counts(part))


def test_scores_need_no_samples(grouped: eh.Federation) -> None:
    tally = {
        "count": grouped.counts("test").double().numpy(),
        "correct": grouped.counts("test").double().numpy() / 2,
        "loss": grouped.counts("test").double().numpy(),
        "confusion": np.arange(54, dtype=np.int64).reshape(3, 3, 2, 3),
    }
    found = [score_columns(tally, who) for who in (grouped, counts_alone(grouped))]
    assert found[0]["train_count"].tolist() == [4, 2, 3, 4, 3, 2, 4, 5]
    np.testing.assert_equal(*found)
    tables = [counts_of(tally, who) for who in (grouped, counts_alone(grouped))]
    np.testing.assert_equal(*(vars(table) for table in tables))


@pytest.mark.parametrize(
    ("extent", "kept"),
    [
        (Extent(2, 2, 2), True),
        (Extent(1, 2, 1), True),
        (Extent(1, 1, 1), False),  # the first client has two groups
        (Extent(2, 2, 1), False),  # the first two have two teams
        (Extent(2, 0, 2), False),
        (Extent(3, 2, 1), False),  # as many clients
    ],
)
def test_first_clients(grouped: eh.Federation, extent: Extent, kept: bool) -> None:
    for who in (grouped, counts_alone(grouped)):
        few = who.first(extent)
        if not kept:
            assert few is who
            continue
        assert type(few) is type(who)
        assert few.extent == extent
        assert few.names == ("one", "two")[: extent.clients]
        for part in PARTS:
            rows = who.counts(part)[: extent.clients, : extent.groups]
            assert torch.equal(few.counts(part), rows)
        assert few.label_names == who.label_names


def test_first_clients_have_the_first_samples(grouped: eh.Federation) -> None:
    few = grouped.first(Extent(2, 2, 2))
    assert torch.equal(few.train.x, grouped.train.x[:6])
    assert few.test is not None
    assert grouped.test is not None
    assert torch.equal(few.test.x, grouped.test.x[:2])


def test_probe_of_counts_is_zero_in_the_form_of_the_data(grouped: eh.Federation) -> None:
    alone = counts_alone(grouped)
    assert alone.form == Form((3,), torch.float32, (), torch.int64)
    for samples, rows in ((alone.probe(8), 8), (alone.probe(100), 9)):
        assert isinstance(samples, Samples)
        assert samples.x.shape == (rows, 3)
        assert samples.y.shape == samples.group.shape == (rows,)
        assert not any(bool(values[:].any()) for values in samples)
        assert (samples.x.dtype, samples.y.dtype) == (torch.float32, torch.int64)
    real = grouped.probe(5)
    assert torch.equal(real.x[:], grouped.train.x[:5])
    assert torch.equal(real.y, grouped.train.y[:5])


def test_a_module_is_checked_by_the_form_of_samples(grouped: eh.Federation) -> None:
    alone = counts_alone(grouped)
    model = eh.Model(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).double())
    model.check(alone)
    assert model.classifies
    assert model.stochastic
    with pytest.raises(ValueError, match=r"does not accept samples of shape \[3\]"):
        eh.Model(nn.Linear(4, 2)).check(alone)
    few = alone.probe(4).to(model.dtype, model.device)
    batch = Batch(few, torch.arange(4), torch.ones(4))
    assert model.loss(model.init(), batch).dtype == torch.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": {"train": torch.tensor([[1], [0]])}}, "client b has no training samples"),
        ({"counts": {"train": torch.tensor([[1, 2], [1, 2]])}}, r"train counts must .* \[2, 1\]"),
        ({"counts": {"train": torch.tensor([[1.0], [2.0]])}}, r"got torch.float32"),
        ({"counts": {"train": torch.ones(2, 1).long(), "text": torch.ones(2, 1)}}, "part must"),
        ({"names": ("a", "a")}, "client names must differ; 'a' is used 2 times"),
        ({"names": ("a",)}, r"names must have one entry per client \(2\), got 1"),
        ({"teams": torch.tensor([0, 1])}, "team code 1 has no name"),
        ({"teams": torch.tensor([0])}, "teams must have one entry per client"),
    ],
)
def test_counts_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    given: dict[str, object] = {
        "counts": {"train": torch.tensor([[2], [3]])},
        "form": Form((1,), torch.float32, (), torch.int64),
        "names": ("a", "b"),
        "team_names": ("x",),
    }
    assert repr(Population(**given)) == "<Population: 2 clients, 5 training samples, 1 teams>"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        Population(**given | changes)  # type: ignore[arg-type]


def test_the_fingerprint_of_counts_changes_with_them(grouped: eh.Federation) -> None:
    alone = counts_alone(grouped)
    assert alone.fingerprint() == counts_alone(grouped).fingerprint()
    more = {"train": alone.counts("train"), "test": alone.counts("test") + 1}
    others = (
        Population(more, alone.form, alone.teams, alone.team_names, alone.group_names, alone.names),
        alone.first(Extent(2, 2, 2)),
    )
    assert len({alone.fingerprint(), *(other.fingerprint() for other in others)}) == 3
