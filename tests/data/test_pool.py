"""Views of larger arrays, and pools of samples before they are dealt to clients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evenhand as eh
from evenhand.data.dealing import assign
from evenhand.data.pool import TEST, TRAIN, VAL, Deal, Pool, Rows
from evenhand.data.samples import Batch, first_not_finite
from evenhand.data.views import View


def images() -> View:
    source = torch.arange(6 * 4, dtype=torch.uint8).reshape(6, 1, 2, 2) * 10
    return View(source, None, torch.tensor(1 / 255), torch.tensor(-0.5))


def test_a_view_scales_its_rows_when_they_are_asked_for() -> None:
    view = images().pick(torch.tensor([5, 0]))
    assert (len(view), tuple(view.shape), view.dtype) == (2, (2, 1, 2, 2), torch.float32)
    assert view[:].flatten().tolist() == pytest.approx(
        [v / 255 - 0.5 for v in (200, 210, 220, 230, 0, 10, 20, 30)]
    )
    assert torch.equal(view[torch.tensor([1])], view[1:2])
    assert torch.equal(view.pick(torch.tensor([1, 1]))[:], view[torch.tensor([1, 1])])


def test_picking_from_a_view_copies_no_samples() -> None:
    view = images()
    assert (
        view.pick(torch.tensor([3, 1])).pick(torch.tensor([1])).source.data_ptr()
        == view.source.data_ptr()
    )


def test_a_view_without_scale_leaves_tokens_as_they_are() -> None:
    text = torch.tensor([3, 1, 4, 1, 5, 9], dtype=torch.uint8)
    windows = View(text.unfold(0, 3, 1), torch.tensor([2, 0]))
    assert windows[:].tolist() == [[4, 1, 5], [3, 1, 4]]
    assert windows.gather(torch.tensor([1, 0])).tolist() == [[3, 1, 4], [4, 1, 5]]
    assert windows.gather(torch.tensor([1])).dtype == torch.int64
    assert windows.source.data_ptr() == text.data_ptr()


def test_a_view_that_moves_keeps_overlapping_in_memory() -> None:
    text = torch.arange(1000, dtype=torch.uint8)
    moved = View(text.unfold(0, 80, 1)).to(torch.device("cpu"), torch.float64)
    assert moved.source.stride() == (1, 1)
    assert moved.source.untyped_storage().nbytes() == 1000
    strided = View(
        torch.arange(24.0).reshape(4, 6)[:, ::2], None, torch.tensor(2.0), torch.tensor(1.0)
    ).to(torch.device("cpu"), torch.float64)
    assert strided[:].tolist() == [
        [1 + 2 * v for v in (6 * r, 6 * r + 2, 6 * r + 4)] for r in range(4)
    ]
    assert strided.dtype == torch.float64


def test_scale_needs_shift() -> None:
    with pytest.raises(ValueError, match="both scale and shift, or neither"):
        View(torch.zeros(2, 2), scale=torch.tensor(1.0))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_training_on_a_view_is_training_on_its_samples(engine: str) -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(0, 256, (60, 5), dtype=torch.uint8, generator=generator)
    rows = torch.randperm(60, generator=generator)
    view = View(
        source,
        rows,
        torch.rand(5, generator=generator, dtype=torch.float64) / 64,
        torch.rand(5, generator=generator).double(),
    )
    y, offsets = torch.randint(0, 3, (60,), generator=generator), torch.tensor([0, 10, 35, 60])
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 3).double()
    local = eh.LocalSGD(lr=0.1, batch_size=7)
    results = [
        eh.fit(
            module,
            eh.Federation(eh.Part(x, y, offsets)),
            eh.AFL(lr_lambda=0.1),
            rounds=4,
            local=local,
            engine=engine,
        )
        for x in (view, view[:])
    ]
    assert all(
        torch.equal(results[0].params[key], results[1].params[key]) for key in results[0].params
    )
    assert results[0].score_rows == results[1].score_rows


def test_a_batch_of_a_view_gathers_and_scales_under_vmap() -> None:
    view = images()
    index = torch.tensor([[0, 5], [3, 3]])
    samples = eh.Part(view, torch.zeros(6, dtype=torch.int64), torch.tensor([0, 6])).samples(
        torch.float32, torch.device("cpu")
    )
    x = torch.func.vmap(lambda i: Batch(samples, i, torch.ones(2)).x)(index)
    assert torch.equal(x, view[:][index])


def test_a_value_that_is_not_finite_is_found_in_the_rows_a_view_has_and_only_there() -> None:
    source = torch.zeros(4, 2)
    source[2, 1] = torch.nan
    y, offsets = torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1, 2])
    assert eh.Federation(eh.Part(View(source, torch.tensor([0, 3])), y, offsets)).clients == 2
    with pytest.raises(
        ValueError, match=r"client 1 has a value in train x that is not finite \(row 0\)"
    ):
        eh.Federation(eh.Part(View(source, torch.tensor([0, 2])), y, offsets))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2]
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_the_first_value_that_is_not_finite_is_found(dtype: torch.dtype, bad: float) -> None:
    values = torch.linspace(-57344, 57344, 12).reshape(4, 3)  # up to the largest of eight bits
    assert first_not_finite(values.to(dtype)) is None
    assert first_not_finite(values[:0].to(dtype)) is None
    for row, column in ((3, 2), (2, 0), (0, 1)):
        values[row, column] = bad
        assert first_not_finite(values.to(dtype)) == row


# ---- pools


def pool() -> Pool:
    return Pool(
        x=torch.arange(8.0)[:, None],
        y=torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]),
        label_names=("no", "yes"),
        group=torch.tensor([0, 0, 1, 1, 0, 0, 1, 1]),
        group_names=("f", "m"),
        client=torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]),
        client_names=("A", "B", "C"),
        team=torch.tensor([1, 0, 1]),
        team_names=("north", "south"),
    )


PARTS = torch.tensor([TRAIN, TEST, TRAIN, TRAIN, VAL, TRAIN, TRAIN, TEST])


def test_natural_clients_keep_their_samples_names_and_teams() -> None:
    fed = eh.Federation.from_pool(pool(), pool().natural(), PARTS)
    assert fed.names == ("A", "B", "C")
    assert fed.train.x.flatten().tolist() == [0, 2, 3, 5, 6]
    assert fed.train.sizes.tolist() == [2, 1, 2]
    assert fed.train.group is not None
    assert fed.train.group.tolist() == [0, 1, 1, 0, 1]
    assert fed.val is not None
    assert (fed.val.x.flatten().tolist(), fed.val.sizes.tolist()) == ([4], [0, 1, 0])
    assert fed.test is not None
    assert (fed.test.x.flatten().tolist(), fed.test.sizes.tolist()) == ([1, 7], [1, 0, 1])
    assert fed.teams is not None
    assert (fed.teams.tolist(), fed.team_names, fed.group_names, fed.label_names) == (
        [1, 0, 1],
        ("north", "south"),
        ("f", "m"),
        ("no", "yes"),
    )


def test_a_deal_leaves_out_samples_of_owner_minus_one_and_orders_clients_by_number() -> None:
    fed = eh.Federation.from_pool(
        pool(), Deal(torch.tensor([1, -1, 0, 1, 0, -1, 1, 0])), torch.zeros(8, dtype=torch.int64)
    )
    assert fed.train.x.flatten().tolist() == [2, 4, 7, 0, 3, 6]
    assert fed.train.sizes.tolist() == [3, 3]
    assert (fed.test, fed.val, fed.names) == (None, None, None)


def test_teams_stay_where_every_new_client_has_one() -> None:
    fed = eh.Federation.from_pool(
        pool(), Deal(torch.tensor([0, 0, 0, 1, 1, 0, 2, 2])), torch.zeros(8, dtype=torch.int64)
    )
    assert fed.teams is not None
    assert (fed.teams.tolist(), fed.team_names) == ([1, 0, 1], ("north", "south"))


def test_teams_that_get_mixed_become_groups_unless_there_are_groups() -> None:
    mixed = Deal(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    everyone = torch.zeros(8, dtype=torch.int64)
    fed = eh.Federation.from_pool(pool(), mixed, everyone)
    assert (fed.teams, fed.team_names, fed.group_names) == (None, (), ("f", "m"))
    bare = Pool(
        x=pool().x,
        y=pool().y,
        client=pool().client,
        client_names=("A", "B", "C"),
        team=pool().team,
        team_names=("north", "south"),
    )
    fed = eh.Federation.from_pool(bare, mixed, everyone)
    assert fed.train.group is not None
    assert (fed.group_names, fed.train.group.tolist()) == (
        ("north", "south"),
        [1, 1, 1, 0, 0, 1, 1, 1],
    )


def test_selecting_keeps_what_is_attached() -> None:
    some = pool().select(torch.tensor([6, 1]))
    assert some.group is not None
    assert some.client is not None
    assert (
        some.x.flatten().tolist(),
        some.y.tolist(),
        some.group.tolist(),
        some.client.tolist(),
    ) == ([6, 1], [0, 1], [1, 0], [2, 0])
    assert len(pool().select(pool().y == 1)) == 4


def test_a_pool_without_clients_says_so() -> None:
    with pytest.raises(ValueError, match="come without clients; choose a partition"):
        Pool(x=torch.zeros(2, 1), y=torch.zeros(2, dtype=torch.int64)).natural()


@pytest.mark.parametrize("split", [None, {"val": 0.2, "test": 0.2}, {"official": "train"}])
def test_rows_are_dealt_without_features(split: dict[str, Any] | None) -> None:
    number = torch.arange(60)
    known: dict[str, Any] = {"y": number % 3, "group": number % 2, "group_names": ("a", "b")}
    known |= {"client": number % 4, "team": torch.arange(4) % 2, "team_names": ("x", "y")}
    known["held_out"] = number % 5 == 0
    for partition in (None, {"name": "dirichlet", "clients": 3}):
        found = assign(Rows(**known), partition, split, seed=1)
        fed = eh.deal(Pool(number[:, None], **known), partition, split, seed=1)
        shares = {"train": found.train, "val": found.val, "test": found.test}
        assert [name for name, share in shares.items() if share is not None] == list(fed.parts)
        for name, part in fed.parts.items():
            share = shares[name]
            assert share is not None
            assert share.rows.tolist() == part.x[:].flatten().tolist()
            assert torch.equal(share.offsets, part.offsets)
            assert part.group is not None
            assert torch.equal(share.group, part.group)
        assert found.team_names == fed.team_names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaling_small_samples_at_once_changes_no_bit(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = torch.arange(60, dtype=torch.uint8).reshape(10, 6)
    view = View(source, torch.tensor([7, 0, 3]), torch.rand(6) / 255, torch.rand(6))
    cpu, index = torch.device("cpu"), torch.tensor([2, 0, 0, 1])
    at_once = view.to(cpu, dtype)
    monkeypatch.setattr("evenhand.data.views.SCALED_AT_ONCE", 0)
    by_batch = view.to(cpu, dtype)
    assert (at_once.source.dtype, by_batch.source.dtype) == (dtype, torch.uint8)
    assert at_once.shape == by_batch.shape == view.shape
    assert torch.equal(at_once.gather(index), by_batch.gather(index))
