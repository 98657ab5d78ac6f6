"""Numbers as integers: exact limbs, fixed point within its bound, overflow, checks."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.secure import Decoded, Format, NotCancelled, NotFinite, Overflow
from evenhand.secure.limbs import SLOTS, from_limbs, to_limbs
from evenhand.secure.numbers import BEYOND, CHECK, HEADER, ONE, Leaf, checked

finite = st.floats(-1e306, 1e306)  # fsum overflows beyond


def summed(format: Format, totals: list[dict], weights: list[float] | None = None) -> Decoded:
    """The sum of clients' encoded totals, decoded."""
    found = np.zeros(format.size, dtype=np.uint64)
    for client, total in enumerate(totals):
        found += format.encode(total, None if weights is None else weights[client])[0]
    return format.decode(found, len(totals))


@settings(deadline=None)
@given(st.lists(finite, min_size=1, max_size=64))
def test_limbs_are_as_exact_as_fsum(values: list[float]) -> None:
    limbs = to_limbs(np.array(values)).sum(0, keepdims=True)
    assert from_limbs(limbs)[0] == math.fsum(values)


def test_one_float_comes_back_whatever_it_is() -> None:
    values = np.array([0.0, 5e-324, -5e-324, 2.2e-308, 1.1e-310, 1.79e308, -1.7e308, 1 / 3, -1e-30])
    assert (from_limbs(to_limbs(values)) == values).all()
    assert to_limbs(values).shape == (len(values), SLOTS)


def test_limbs_of_many_clients_do_not_overflow() -> None:
    worst = to_limbs(np.array([-np.finfo(np.float64).max]))
    clients = 1 << 24
    assert from_limbs(worst * clients)[0] == -math.inf
    assert from_limbs(to_limbs(np.array([-0.1])) * clients)[0] == -0.1 * clients  # a power of two


def test_a_value_that_is_not_finite_makes_its_own_entry_nan() -> None:
    limbs = to_limbs(np.array([1.0, np.nan, np.inf])) + to_limbs(np.array([1.0, 1.0, -np.inf]))
    found = from_limbs(limbs)
    assert found[0] == 2
    assert np.isnan(found[1:]).all()


@settings(deadline=None)
@given(
    st.integers(2, 64),
    st.integers(-100, 100),
    st.lists(st.lists(st.integers(0, 4), max_size=2), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_sums_stay_within_their_bounds(
    clients: int, exponent: int, shapes: list[list[int]], seed: int
) -> None:
    """Random trees; ranges from 1e-30 to 1e30."""
    random = np.random.default_rng(seed)

    def total() -> dict:
        model = {
            # of one sign, and far below the range: cutting instead of rounding would show
            f"leaf {i}": random.uniform(0, 1, shape) * (-1) ** i * 2.0**exponent
            for i, shape in enumerate(shapes)
        }
        small = random.normal(size=3) * 10.0 ** random.integers(-30, 30, 3)
        return {"model": {"deep": model}, "small": small, "count": random.integers(-(2**40), 2**40)}

    totals = [total() for _ in range(clients)]
    paths = {f"model/deep/leaf {i}": exponent + 20 * (i % 3) for i in range(len(shapes))}
    format = Format.of(totals[0], clients, paths)
    found = summed(format, totals).total
    for leaf in format.leaves:
        if leaf.kind == "fixed":
            name = leaf.path.split("/")[-1]
            values = [client["model"]["deep"][name] for client in totals]
            bound = Fraction(clients, 2) / Fraction(2) ** format.scale(leaf)
            for index in np.ndindex(leaf.shape):
                exact = sum(Fraction(float(value[index])) for value in values)
                got = float(found["model"]["deep"][name][index])
                rounding = Fraction(abs(got)) / 2**53  # of the decoded float
                assert abs(Fraction(got) - exact) <= bound + rounding
    for entry in range(3):
        assert found["small"][entry] == math.fsum(client["small"][entry] for client in totals)
    assert found["count"] == sum(int(client["count"]) for client in totals)


def test_the_scale_leaves_room_for_all_clients() -> None:
    """The table of the design: n = 16 and 64 with e = 20."""
    for clients, scale in ((2, 41), (16, 38), (17, 37), (64, 36), (1024, 32)):
        format = Format((Leaf("model/w", (2,), "fixed", 20),), clients)
        assert format.scale(format.leaves[0]) == scale
        extreme = {"model": {"w": np.array([2.0**20, -(2.0**20)])}}
        found = summed(format, [extreme] * clients).total["model"]["w"]
        assert found.tolist() == [clients * 2.0**20, -clients * 2.0**20]


@pytest.mark.parametrize("value", [1e30, -1e30, 1.0001 * 2**20])
def test_an_overflow_is_counted_and_never_wraps(value: float) -> None:
    fine, large = ({"model": {"w": np.array([x, 1.0])}} for x in (1.0, value))
    format = Format.of(fine, 3)
    assert not format.encode(fine)[1]
    assert format.encode(large)[1]
    with pytest.raises(Overflow, match="1 clients are beyond") as caught:
        summed(format, [fine, large, fine])
    assert caught.value.clients == 1
    wide = format
    while abs(value) > 2.0 ** wide.leaves[0].exponent:
        wide = wide.wider()
    assert summed(wide, [fine, large, fine]).total["model"]["w"][0] == pytest.approx(value + 2)
    assert wide.leaves[0].exponent == 20 * math.ceil(math.log2(abs(value)) / 20)


def test_integers_beyond_the_range_are_counted() -> None:
    fine, large = ({"n": np.array([x], dtype=np.int64)} for x in (2**59, 2**61))
    format = Format.of(fine, 4)
    assert summed(format, [fine] * 4).total["n"][0] == 2**61
    with pytest.raises(Overflow):
        summed(format, [fine, large, fine, fine])
    unsigned = {"n": np.array([2**64 - 1], dtype=np.uint64)}
    with pytest.raises(Overflow):
        summed(Format.of(unsigned, 2), [unsigned, unsigned])


@pytest.mark.parametrize("where", ["model", "small", "weight"])
def test_a_client_does_not_send_what_is_not_finite(where: str) -> None:
    total = {"model": {"w": np.ones(2)}, "small": np.ones(2)}
    format = Format.of(total, 2, weights=True)
    bad = {
        "model": {"model": {"w": np.array([1.0, np.nan])}},
        "small": {"small": np.full(2, np.inf)},
    }
    with pytest.raises(NotFinite, match="is not finite"):
        format.encode(total | bad.get(where, {}), math.nan if where == "weight" else 1.0)


def test_an_evaluation_may_have_nan() -> None:
    total = {"table": {"x": np.array([1.0, 2.0])}, "loss": np.array([1.0, 2.0])}
    bad = {"table": {"x": np.array([1.0, np.inf])}, "loss": np.array([np.nan, 2.0])}
    format = Format.of(total, 2)
    vector = format.encode(total)[0] + format.encode(bad, must_be_finite=False)[0]
    found = format.decode(vector, 2).total
    assert np.isnan(found["table"]["x"]).all()  # the whole leaf
    assert np.isnan(found["loss"][0])
    assert found["loss"][1] == 4


def test_the_effective_number_of_clients_is_in_the_sum() -> None:
    format = Format.of({"n": np.ones(1)}, 4, weights=True)
    equal = summed(format, [{"n": np.ones(1)}] * 4, [2.0] * 4)
    assert equal.effective == 4
    one = summed(format, [{"n": np.ones(1)}] * 4, [1e9, 1.0, 1.0, 1.0])
    assert one.effective == pytest.approx(1, abs=1e-8)
    assert summed(format, [{"n": np.ones(1)}] * 2, [0.0] * 2).effective == 0
    assert summed(Format.of({"n": np.ones(1)}, 2), [{"n": np.ones(1)}] * 2).effective is None


def test_a_mask_left_over_is_noticed() -> None:
    total = {"model": {"w": np.ones(5)}}
    format = Format.of(total, 3)
    right = sum(format.encode(total)[0] for _ in range(3))
    format.decode(right, 3)
    for slot in range(format.size):
        wrong = right.copy()
        wrong[slot] += np.uint64(1)
        with pytest.raises(NotCancelled, match="masks are left over"):
            format.decode(wrong, 3)
    with pytest.raises(NotCancelled):
        format.decode(right, 4)  # the checksum is right, the count is not
    noise = np.random.default_rng(0).integers(0, 2**64, format.size, dtype=np.uint64)
    noise[ONE] = 3
    with pytest.raises(NotCancelled):
        format.decode(noise, 3)  # the count is right, the checksum is not
    assert (CHECK, ONE, BEYOND, HEADER) == (0, 1, 2, 3)
    assert (checked(right.copy()) == right).all()


def test_exponents_follow_the_last_sum() -> None:
    total = {"model": {"w": np.array([0.0, -0.75]), "zero": np.zeros(2)}, "small": np.ones(1)}
    format = Format.of(total, 4)
    assert format.exponents() == {"model/w": 20, "model/zero": 20}
    assert format.next_exponents(total) == {"model/w": 20, "model/zero": 20}
    tiny = {**total, "model": {"w": np.array([1e-30, 0.0]), "zero": np.zeros(2)}}
    assert format.next_exponents(tiny)["model/w"] == math.frexp(1e-30)[1] + 20
    huge = {**total, "model": {"w": np.array([1e300, 0.0]), "zero": np.zeros(2)}}
    assert format.next_exponents(huge)["model/w"] == 900


def test_names_with_slashes_come_back() -> None:
    total = {"model": {"a/b": np.ones(1), "a~1b": np.full(1, 2.0), "a": {"b": np.full(1, 3.0)}}}
    found = summed(Format.of(total, 2), [total, total]).total["model"]
    assert (found["a/b"], found["a~1b"], found["a"]["b"]) == (2, 4, 6)


def test_small_leaves_of_two_replies_are_exact() -> None:
    both = {"work": {"loss": np.ones(1), "delta": {"w": np.ones(1)}}, "look": {"count": np.ones(2)}}
    kinds = {leaf.path: leaf.kind for leaf in Format.of(both, 3, depth=2).leaves}
    assert kinds == {"work/loss": "limbs", "work/delta/w": "fixed", "look/count": "limbs"}
    noised = Format.of(both, 3, depth=2, noised=["work/loss"])
    assert noised.leaves[0].kind == "fixed"
    assert Format.of({"t": np.ones(1001)}, 3).leaves[0].kind == "fixed"
    assert Format.of({"t": np.ones(1000)}, 3).leaves[0].kind == "limbs"


def test_the_layout_is_part_of_the_digest() -> None:
    form = {"model": {"w": np.ones((2, 3))}}
    base = Format.of(form, 4)
    others = [
        Format.of(form, 5),
        Format.of(form, 4, {"model/w": 21}),
        Format.of(form, 4, weights=True),
        Format.of({"model": {"w": np.ones((3, 2))}}, 4),
        Format.of({"model": {"v": np.ones((2, 3))}}, 4),
        Format.of({"model": {"w": np.ones((2, 3), dtype=int)}}, 4),
    ]
    assert base.digest() == Format.of(form, 4).digest()
    assert len({one.digest() for one in [base, *others]}) == 7


def test_numbers_of_another_form_are_refused() -> None:
    format = Format.of({"model": {"w": np.ones(2)}}, 4)
    for wrong in ({"model": {"w": np.ones(3)}}, {"model": {}}, {"w": np.ones(2)}):
        with pytest.raises(ValueError, match="do not fit"):
            format.encode(wrong)
    with pytest.raises(ValueError, match="between -900 and 900, got 901"):
        Format.of({"model": {"w": np.ones(2)}}, 4, {"model/w": 901})
    with pytest.raises(ValueError, match="must have"):
        format.decode(np.zeros(3, dtype=np.uint64), 1)
