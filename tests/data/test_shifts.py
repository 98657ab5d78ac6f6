"""Turned and noisy clients: pixels by hand, spread of the noise, everything else unchanged."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Pool
from evenhand.data.shifts import add_noise, draw_per_client, rotate
from evenhand.data.views import View
from evenhand.errors import SpecError
from evenhand.studies.specs.spec import Spec


def images(clients: int = 4, size: int = 4, channels: int | None = 2, seed: int = 0) -> Federation:
    """Clients of six images each, with groups, teams, names and all three parts."""
    number = torch.arange(6 * clients)
    shape = (len(number), size, size) if channels is None else (len(number), channels, size, size)
    pool = Pool(
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64),
        number % 2,
        ("yes", "no"),
        group=number % 3,
        group_names=("a", "b", "c"),
        client=number // 6,
        client_names=tuple(f"site {k}" for k in range(clients)),
        team=torch.arange(clients) % 2,
        team_names=("old", "new"),
    )
    return deal(pool, None, {"val": 0.2, "test": 0.3})


def test_multiples_of_ninety_degrees_move_pixels_and_change_none() -> None:
    before = images()
    after = rotate(before, [0, 90, -180, 270 + 720])
    for part in ("train", "val", "test"):
        for client, quarters in enumerate((0, 1, 2, 3)):
            old, new = (
                getattr(federation, part).client(client)[0].numpy()
                for federation in (before, after)
            )
            assert np.array_equal(new, np.rot90(old, quarters, axes=(2, 3)))
    corner = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    tiny = Federation.from_arrays([{"x": corner[None], "y": [0]}])
    # counter-clockwise: the right column is on top
    assert rotate(tiny, 90).train.x[0].tolist() == [[2, 4], [1, 3]]


def test_other_angles_turn_the_same_way_about_the_centre() -> None:
    before = images(size=9, channels=1)
    for quarters in range(4):
        near, exact = (rotate(before, 90 * quarters + angle).train.x for angle in (1e-7, 0))
        torch.testing.assert_close(near, exact, rtol=0, atol=1e-5)
    point = torch.zeros(1, 41, 41, dtype=torch.float64)
    point[0, 20, 36] = 1.0  # 16 pixels to the right of the centre
    turned = rotate(Federation.from_arrays([{"x": point[None], "y": [0]}]), 30).train.x[0, 0]
    weight = turned / turned.sum()
    down, right = ((weight.sum(axis) * (torch.arange(41.0) - 20)).sum() for axis in (1, 0))
    assert abs(float(right) - 16 * sqrt(3) / 2) < 0.1
    assert abs(float(down) + 16 / 2) < 0.1  # up


def test_each_client_is_turned_by_its_own_angle_alone() -> None:
    before = images(size=8)
    angles = [12.0, 90.0, -33.0, 0.0]
    together = rotate(before, angles)
    for client, angle in enumerate(angles):
        alone = rotate(before, angle)
        for part in ("train", "val", "test"):
            torch.testing.assert_close(
                getattr(together, part).client(client)[0], getattr(alone, part).client(client)[0]
            )


def test_edges_are_repeated_in_the_corners() -> None:
    plain = Federation.from_arrays([{"x": torch.full((1, 1, 6, 6), 3.0), "y": [0]}])
    torch.testing.assert_close(rotate(plain, 45).train.x, plain.train.x)


def test_turning_there_and_back_keeps_a_smooth_image() -> None:
    line = torch.linspace(-1, 1, 32, dtype=torch.float64)
    smooth = torch.exp(-8 * ((line[:, None] - 0.2) ** 2 + (line[None, :] + 0.1) ** 2))
    federation = Federation.from_arrays([{"x": smooth[None], "y": [0]}])
    back = rotate(rotate(federation, 25), -25)
    # linear interpolation errs by at most step^2 / 8 times each second derivative, here 16, on both
    # ways
    step = 2 / 31
    assert float((back.train.x - federation.train.x).abs().max()) < 2 * step**2 / 8 * (16 + 16)


def test_images_without_channels_and_views_are_turned_too() -> None:
    flat = images(channels=None)
    assert np.array_equal(
        rotate(flat, 90).train.x.numpy(), np.rot90(flat.train.x.numpy(), 1, axes=(1, 2))
    )
    pixels = torch.arange(2 * 9, dtype=torch.uint8).reshape(2, 1, 3, 3)
    pool = Pool(
        View(pixels, None, torch.tensor(0.5), torch.tensor(-1.0)),
        torch.zeros(2, dtype=torch.int64),
        client=torch.zeros(2).long(),
    )
    turned = rotate(deal(pool, None, {"test": 0.5}), 180)
    for part in (turned.train, turned.test):
        assert part is not None
        assert isinstance(part.x, torch.Tensor)
        assert float(part.x.sum()) in (0.5 * 36 - 9, 0.5 * (36 + 81) - 9)
    assert pixels.flatten().tolist() == list(range(18))


def test_noise_has_each_clients_spread_and_is_the_same_for_a_seed() -> None:
    number = torch.arange(6000)
    pool = Pool(torch.ones(6000, 20), number % 2, client=number % 3)
    before = deal(pool, None, {"test": 0.5})
    stds = [0.0, 0.5, 2.0]
    after = add_noise(before, stds, seed=1)
    noise = []
    for part in ("train", "test"):
        for client, std in enumerate(stds):
            values = getattr(after, part).client(client)[0] - 1
            count = values.numel()
            assert abs(float(values.mean())) <= 4 * std / sqrt(count)
            assert abs(float(values.std()) - std) <= 4 * std / sqrt(2 * count)
            noise.append(values)
    assert not torch.equal(noise[1], noise[4])  # training and test noise differ
    assert torch.equal(after.train.x, add_noise(before, stds, seed=1).train.x)
    assert not torch.equal(after.train.x, add_noise(before, stds, seed=2).train.x)
    assert after.train.x.dtype == before.train.x.dtype


@pytest.mark.parametrize(
    "change",
    [lambda fed: rotate(fed, 90), lambda fed: add_noise(fed, 0.1)],
    ids=["rotate", "add_noise"],
)
def test_labels_groups_teams_and_names_stay_and_the_old_federation_is_untouched(
    change: object,
) -> None:
    before, twin = images(), images()
    after = change(before)  # type: ignore[operator]
    for part in ("train", "val", "test"):
        old, new = getattr(before, part), getattr(after, part)
        assert torch.equal(old.y, new.y)
        assert torch.equal(old.group, new.group)
        assert torch.equal(old.offsets, new.offsets)
        assert torch.equal(old.x, getattr(twin, part).x)
        assert not torch.equal(old.x, new.x)
    assert (after.names, after.team_names, after.label_names) == (
        before.names,
        before.team_names,
        before.label_names,
    )
    assert torch.equal(after.teams, before.teams)


def test_numbers_for_clients_are_drawn_between_the_ends() -> None:
    federation = images(clients=200)
    drawn = draw_per_client(federation, -30, 30, seed=1)
    assert drawn.shape == (200,)
    assert float(drawn.abs().max()) <= 30
    assert abs(float(drawn.mean())) < 4 * 60 / sqrt(12 * 200)
    assert abs(float(drawn.std()) - 60 / sqrt(12)) < 3
    assert torch.equal(drawn, draw_per_client(federation, -30, 30, seed=1))
    assert not torch.equal(drawn, draw_per_client(federation, -30, 30, seed=2))
    assert rotate(federation, drawn).clients == 200


def test_shifts_that_make_no_sense_are_refused() -> None:
    federation = images()
    with pytest.raises(
        ValueError, match=r"degrees must be one number, or one for each of 4 clients; got \[2\]"
    ):
        rotate(federation, [0, 90])
    with pytest.raises(ValueError, match=r"std must not be negative, got -0\.1"):
        add_noise(federation, [0, 0, 0, -0.1])
    with pytest.raises(ValueError, match="std must be finite, got nan"):
        add_noise(federation, float("nan"))
    with pytest.raises(
        ValueError, match=r"rotate needs images \(C, H, W\) or \(H, W\); samples have shape \[5\]"
    ):
        rotate(Federation.from_arrays([{"x": torch.zeros(2, 5), "y": [0, 1]}]), 90)
    wide = Federation.from_arrays([{"x": torch.zeros(2, 3, 5), "y": [0, 1]}])
    assert rotate(wide, 180).train.x.shape == (2, 3, 5)
    with pytest.raises(
        ValueError, match="images of 3 x 5 pixels can only be rotated by multiples of 180 degrees"
    ):
        rotate(wide, 90)
    tokens = Federation.from_arrays([{"x": torch.zeros(2, 5, dtype=torch.int64), "y": [0, 1]}])
    with pytest.raises(
        ValueError,
        match=r"add_noise needs features that are floating-point numbers, got torch.int64",
    ):
        add_noise(tokens, 0.1)
    with pytest.raises(ValueError, match="low must be at most high, 1, got 2"):
        draw_per_client(federation, 2, 1)


def test_a_spec_turns_and_blurs_clients_by_draws_of_their_own() -> None:
    data = {"name": "digits", "clients": 4, "flat": False}
    plain = Spec(data=data, seed=3).build_data()
    both = Spec(
        data={**data, "shift": {"rotation": [-30.0, 30.0], "noise": 0.1}}, seed=3
    ).build_data()
    turned = rotate(plain, draw_per_client(plain, -30.0, 30.0, seed=6))
    assert torch.equal(both.train.x[:], add_noise(turned, 0.1, seed=3).train.x[:])
    assert torch.equal(both.train.y, plain.train.y)
    with pytest.raises(
        SpecError, match="unknown keyword of shift: 'rotate'; did you mean 'rotation'"
    ):
        Spec(data={**data, "shift": {"rotate": 3}}).build_data()
    with pytest.raises(
        SpecError,
        match=(
            r"noise must be a number, or two numbers between which each client draws its own; got \[1,"
            r" 2, 3\]"
        ),
    ):
        Spec(data={**data, "shift": {"noise": [1, 2, 3]}}).build_data()
