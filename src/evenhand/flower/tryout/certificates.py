"""Makes certificates for the SuperLink and keys for its nodes, readable only by their owner."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SAMPLE_NAMES = ("localhost", "127.0.0.1", "::1")  # the addresses of a try-out


class Certificates(NamedTuple):
    """The files that TLS needs."""

    authority: Path  # ca.crt: every node and whoever starts runs gets a copy
    server: Path  # server.pem
    key: Path  # server.key: stays with the SuperLink


class NodeKey(NamedTuple):
    """The files of one node's key pair, as OpenSSH writes them."""

    private: Path  # stays with the node
    public: Path  # is registered with the SuperLink


def private_directory(path: Path) -> Path:
    """A directory that only its owner can enter."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_certificates(
    directory: Path, names: tuple[str, ...] = SAMPLE_NAMES, days: int = 30
) -> Certificates:
    """Make an authority, and a certificate for a server reached by ``names`` (host names or IP
    addresses).

    The authority's private key is never written: it signs once and is gone, so nobody can sign
    another server with it.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("evenhand try-out authority")
    start = datetime.now(UTC) - timedelta(minutes=5)  # clocks of two machines differ a little
    end = start + timedelta(days=days)

    def certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
        )

    authority = (
        certificate(authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        certificate(_name(names[0]), server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_address(name) for name in names]), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    private_directory(directory)
    written = Certificates(directory / "ca.crt", directory / "server.pem", directory / "server.key")
    _write(written.authority, authority.public_bytes(Encoding.PEM), 0o644)
    _write(written.server, server.public_bytes(Encoding.PEM), 0o644)
    _write(
        written.key,
        server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        0o600,
    )
    return written


def write_node_key(directory: Path, name: str) -> NodeKey:
    """Make a key pair for one node: the files ``name`` and ``name``.pub.

    Flower reads elliptic-curve keys in OpenSSH's format; ``ssh-keygen -t ecdsa -b 384`` makes the
    same.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private_directory(directory)
    written = NodeKey(directory / name, directory / f"{name}.pub")
    _write(
        written.private,
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        0o600,
    )
    _write(
        written.public,
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n",
        0o644,
    )
    return written


def _write(path: Path, content: bytes, mode: int) -> None:
    # of an older federation; a new file is never readable by others, not even for a moment
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _address(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
