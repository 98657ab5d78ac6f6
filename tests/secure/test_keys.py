"""Identity keys in the forms that people have, signatures, lists of trusted keys, settings."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import floor
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from evenhand.secure import (
    Announcement,
    Cohort,
    Identity,
    Ledger,
    Member,
    Node,
    Refused,
    SecureSums,
    Trust,
    fingerprint,
)

KEYS = {
    "p384": ec.generate_private_key(ec.SECP384R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
}
FORMS = {
    "openssh": (Encoding.PEM, PrivateFormat.OpenSSH),
    "pkcs8": (Encoding.PEM, PrivateFormat.PKCS8),
}


def node(identity: Identity | None = None, name: str = "clinic-0") -> Node:
    """A node in memory."""
    return Node(Ledger(), name, "run", Trust(), identity)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("form", FORMS)
def test_identity_keys_are_read_and_sign(kind: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEYS[kind].private_bytes(*FORMS[form], NoEncryption()))
    identity = Identity.load(path)
    assert Identity.load(identity.content()).public == identity.public
    announced = node(identity).announced()
    announced.verify()
    Trust(f"{identity.public} a comment").check(announced)
    pem = KEYS[kind].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert fingerprint(pem.decode()) == fingerprint(identity.public)
    changes: list[dict[str, Any]] = [
        {"run": "other"},
        {"name": "other"},
        {"key": bytes(32)},
        {"key": b"short"},
        {"epoch": announced.epoch + 1},
        {"signature": announced.signature[:-1]},
        {"signer": Identity.new().public},
        {"signer": "nonsense"},
        {"signer": f"{announced.signer} the same key in another spelling"},
    ]
    for change in changes:
        with pytest.raises(Refused, match="rule: signed keys"):
            replace(announced, **change).verify()


def test_a_key_with_a_password() -> None:
    content = KEYS["p384"].private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")
    )
    assert Identity.load(content, b"word").public
    with pytest.raises(ValueError, match="cannot be read as a private key"):
        Identity.load(content)


def test_other_keys_are_refused() -> None:
    wrong = [rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())]
    for key in wrong:
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with pytest.raises(ValueError, match="ssh-keygen -t ecdsa -b 384"):
            Identity.load(content)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        with pytest.raises(ValueError, match="not a key of a supported kind"):
            Trust(public.decode())
    with pytest.raises(ValueError, match="is not a public key"):
        Trust("nonsense")
    with pytest.raises(ValueError, match="is empty"):
        Trust("# nobody\n")


@pytest.mark.skipif(which("ssh-keygen") is None, reason="needs ssh-keygen")
@pytest.mark.parametrize("kind", [("ecdsa", "-b", "384"), ("ed25519",)])
def test_keys_and_fingerprints_of_ssh_keygen(kind: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "key"
    command = ["ssh-keygen", "-q", "-t", *kind, "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    told = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(path)], check=True, capture_output=True, text=True
    ).stdout
    assert fingerprint(path.with_suffix(".pub").read_text()) == told.split()[1]
    Trust.load(path.with_suffix(".pub")).check(node(Identity.load(path)).announced())


def test_announcements_and_lists_travel_unchanged() -> None:
    announced = node().announced()
    assert Announcement.read(json.loads(json.dumps(announced.plain()))) == announced
    cohort = Cohort((Member(3, announced, 0.1, (0.3, float("inf")), b"own"),))
    assert Cohort.unpacked(cohort.packed()) == cohort
    assert Cohort.unpacked(cohort.packed()).digest() == cohort.digest()
    wrong: list[dict[str, Any]] = [{}, {"epoch": "1"}, {"key": 3}, {"name": None}, {"key": "?"}]
    for change in wrong:
        values = {**announced.plain(), **change} if change else {}
        with pytest.raises(ValueError, match="announcement"):
            Announcement.read(values)
    for content in (b"", b"{}1", b"[3]", b'[{"number": 1}]'):
        with pytest.raises(ValueError, match="list of clients"):
            Cohort.unpacked(content)


def test_a_private_key_is_not_printed() -> None:
    key = node().key()
    assert str(key.private) not in repr(key)
    assert key.private.hex() not in repr(key)


def test_the_threshold_of_a_share_is_more_than_it_says() -> None:
    for clients in range(3, 2000):
        assert SecureSums().required(clients) == (2 * clients) // 3 + 1
        assert SecureSums(threshold=0.75).required(clients) == min(
            clients, floor(3 * clients / 4) + 1
        )
    assert SecureSums(threshold=1.0).required(7) == 7
    assert SecureSums(threshold=5).required(7) == 5
    assert SecureSums(threshold=5, mode="strict").required(7) == 7


@pytest.mark.parametrize(
    ("settings", "clients", "match"),
    [
        (SecureSums(least=5), 4, "at least 5 clients in a cohort, got 4"),
        (SecureSums(threshold=5), 4, "at most the cohort's 4 clients, got 5"),
        (SecureSums(threshold=3), 6, "more than half of the cohort's 6 clients, got 3"),
        (SecureSums(threshold=4, least=4, colluding=2), 6, "and 2 that collude, got 4"),
        (SecureSums(threshold=6, least=3, colluding=2), 7, "least must be at least 4"),
    ],
)
def test_cohorts_that_cannot_be_summed_safely(
    settings: SecureSums, clients: int, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        settings.check(clients)


@pytest.mark.parametrize(
    "wrong",
    [{"threshold": 0.5}, {"threshold": 1.5}, {"threshold": 1}, {"least": 2}, {"mode": "Strict"}],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        SecureSums(**wrong)
    SecureSums(threshold=4).check(6)
    SecureSums(mode="strict").check(3)


def test_without_the_extra_one_line_says_what_to_install() -> None:
    """Importing evenhand, and rounding without masks, need no cryptography; nodes no torch."""
    code = """
import sys
import evenhand.secure
loaded = {"torch", "cryptography", "Crypto"} & set(sys.modules)
assert not loaded, loaded
if sys.argv[1] == "without":
    sys.modules["cryptography"] = None
evenhand.secure.Node
assert "torch" not in sys.modules
"""
    ends = {
        how: subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True)
        for how in ("with", "without")
    }
    assert ends["with"].returncode == 0, ends["with"].stderr
    assert ends["without"].stderr.strip().splitlines()[-1] == (
        "ImportError: masked sums need cryptography and pycryptodome (extra: evenhand[privacy])"
    )
