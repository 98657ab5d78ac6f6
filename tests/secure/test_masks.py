"""Masks: uniform, independent, changed by every bit of the key, and the same for ever."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from evenhand.secure import digest
from evenhand.secure.context import PROTOCOL
from evenhand.secure.primitives import (
    add_mask,
    agreed,
    combined,
    commitment,
    derived,
    public_of,
    sealed,
    shares_of,
    unsealed,
)
from tests.support.masked import party

KNOWN = json.loads((Path(__file__).parent / "known_answers.json").read_text())
COUNT = 1_000_000


def mask(
    seed: bytes, role: str = "own mask", context: bytes = b"c", count: int = COUNT
) -> np.ndarray:
    """The mask of a seed."""
    found = np.zeros(count, dtype=np.uint64)
    add_mask(found, seed, role, context, minus=False)
    return found


def uniformity(vector: np.ndarray) -> dict[str, float]:
    """p-values: frequencies of the bytes, of the top 16 bits, and correlation of neighbours."""
    content, top = vector.view(np.uint8), (vector >> np.uint64(48)).astype(np.int64)
    floats = vector / 2.0**64 - 0.5
    serial = (floats[1:] * floats[:-1]).sum() * 12 / np.sqrt(len(floats) - 1)  # about N(0, 1)
    return {
        "bytes": float(stats.chisquare(np.bincount(content, minlength=256)).pvalue),
        "top bits": float(stats.chisquare(np.bincount(top, minlength=1 << 16)).pvalue),
        "serial": float(2 * stats.norm.sf(abs(serial))),
    }


@pytest.mark.parametrize("value", [0.0, 1e-3, -5.0])
def test_a_masked_message_looks_uniform(value: float) -> None:
    """One client's message over 10^6 values that are all the same, in both modes."""
    from evenhand.secure import SecureSums

    totals = [{"model": {"w": np.full(COUNT, value)}} for _ in range(3)]
    for mode in ("recover", "strict"):
        team = party(3, SecureSums(mode=mode), totals)
        sent = team.mask(1).vector
        assert min(uniformity(sent).values()) > 1e-6, mode
        # the test can fail: the message before it is masked is not uniform
        assert max(uniformity(team.format.encode(totals[1])[0]).values()) < 1e-9


def test_every_bit_of_the_key_changes_the_whole_mask() -> None:
    seed = bytes(range(16))
    base = mask(seed, count=100_000)
    for bit in range(128):
        flipped = bytearray(seed)
        flipped[bit // 8] ^= 1 << bit % 8
        changed = base ^ mask(bytes(flipped), count=100_000)
        ones = np.bitwise_count(changed).sum() / (64 * 100_000)
        assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * 100_000)
        assert (changed == 0).sum() == 0


def test_role_and_context_change_the_whole_mask() -> None:
    base = mask(bytes(16), count=1000)
    for other in (
        mask(bytes(16), "pair mask", count=1000),
        mask(bytes(16), context=b"d", count=1000),
    ):
        assert (base != other).all()


def test_a_mask_is_taken_back_exactly() -> None:
    vector = np.random.default_rng(0).integers(0, 2**64, 200_000, dtype=np.uint64)
    found = vector.copy()
    add_mask(found, bytes(16), "r", b"c", minus=False)
    assert (found != vector).all()
    add_mask(found, bytes(16), "r", b"c", minus=True)
    assert (found == vector).all()


def test_a_long_mask_begins_like_a_short_one() -> None:
    """Blocks leave no seam."""
    assert (mask(bytes(16), count=150_000)[:70_000] == mask(bytes(16), count=70_000)).all()
    assert len(np.unique(mask(bytes(16), count=150_000))) == 150_000


def test_known_answers() -> None:
    """These bytes are the protocol: a change needs a new version in ``PROTOCOL``."""
    team = party(3)
    context = replace(team.context, cohort=bytes(32), numbers=bytes(32))
    private = (bytes(range(32)), bytes(range(1, 33)))
    pair = agreed(private[0], public_of(private[1]), "pair mask", context.digest(), 16)
    found = {
        "protocol": PROTOCOL.decode(),
        "digest": digest("a", b"b", 3, 0.5).hex(),
        "context": context.digest().hex(),
        "question": context.question().hex(),
        "pair": pair.hex(),
        "seal": agreed(private[0], public_of(private[1]), "seal", bytes(32), 32).hex(),
        "mask": [str(number) for number in mask(pair, "pair mask", context.digest(), 4)],
        "commitment": commitment(pair, "pair mask", context.digest(), 1, 2).hex(),
        "box": sealed(bytes(32), bytes(32), 1, 2, b"content").hex(),
        "format": team.format.digest().hex(),
        "encoded": [str(x) for x in team.format.encode(team.totals[0])[0][:10]],
    }
    assert found == KNOWN


def test_another_library_gives_the_same_mask() -> None:
    """HKDF and AES of pycryptodome, with the zero nonce written out."""
    from Crypto.Cipher import AES
    from Crypto.Hash import SHA256
    from Crypto.Protocol.KDF import HKDF

    key = HKDF(bytes(range(16)), 32, b"", SHA256, context=digest(PROTOCOL, "own mask", b"c"))
    assert isinstance(key, bytes)
    found = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=0).encrypt(bytes(8 * 200_000))
    assert (np.frombuffer(found, dtype="<u8") == mask(bytes(range(16)), count=200_000)).all()


def test_hkdf_is_that_of_rfc_5869() -> None:
    """Test case 3: no salt, no info."""
    found = derived(b"\x0b" * 22, b"", 42)
    assert found.hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


def test_both_nodes_get_the_same_secret_for_each_use() -> None:
    one, two = bytes(range(32)), bytes(range(1, 33))
    secret = agreed(one, public_of(two), "use", b"c", 16)
    assert secret == agreed(two, public_of(one), "use", b"c", 16)
    assert secret != agreed(one, public_of(two), "other", b"c", 16)
    assert secret != agreed(one, public_of(two), "use", b"d", 16)
    with pytest.raises(ValueError, match=r".*"):  # a point of low order
        agreed(one, bytes(32), "use", b"c", 16)


def test_parts_of_a_digest_cannot_be_moved() -> None:
    different = [("ab", "c"), ("a", "bc"), ("abc",), (b"ab", "c"), ("ab", b"c"), ("abc", "")]
    different += [(1, 2), (12,), ("1", "2"), (1.0,), (1,), (0.1,), (0.1 + 2e-17,), ()]
    assert len({digest(*parts) for parts in different}) == len(different)


def test_a_box_is_for_one_direction_and_context() -> None:
    box = sealed(bytes(32), b"c", 1, 2, b"content")
    assert unsealed(bytes(32), b"c", 1, 2, box) == b"content"
    assert unsealed(bytes(32), b"c", 2, 1, box) is None
    assert unsealed(bytes(32), b"d", 1, 2, box) is None
    assert unsealed(bytes(31) + b"1", b"c", 1, 2, box) is None
    assert unsealed(bytes(32), b"c", 1, 2, box[:5]) is None


def test_any_shares_give_the_seed_back() -> None:
    seed = bytes(range(16))
    shares = list(enumerate(shares_of(seed, 3, 5)))
    assert combined(shares[:3]) == combined([shares[4], shares[0], shares[2]]) == seed
    assert combined([*shares[:2], (2, bytes(16))]) != seed
    for wrong in (2**120, bytes(32), bytes(8)):  # the library would take the integer
        with pytest.raises(TypeError, match="16 bytes"):
            shares_of(wrong, 3, 5)  # type: ignore[arg-type]
