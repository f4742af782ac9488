"""What a deployment needs to trust its members: certificates, client keys, SuperExec secrets.

`create_credentials` lays one folder per machine, each to be copied whole to that machine alone:

* `ca/`: the authority's certificate and its key, which stays off every machine of the deployment
  and is needed only to certify a server;
* `server/`: the TLS certificate and key, the CA certificate, the secret that the SuperLink shares
  with its SuperExec, and in `clients/` the public keys to register;
* `clients/NAME/`: that site's key pair, the CA certificate, and a SuperExec secret of its own.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["create_credentials"]

_CA_DAYS = 3650
_SERVER_DAYS = 825
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def create_credentials(folder: Path | str, *, server: str, clients: Sequence[str]) -> list[Path]:
    """Write the credentials of a deployment, never overwriting a file.

    A second call for the same server adds what is missing, such as a new client's keys; what is
    there stays as it is. Every file has mode 0600, every folder 0700.

    Parameters
    ----------
    folder : Path or str
        Where to write; created if missing.
    server : str
        The host name or IP address by which clients reach the server. The certificate also names
        localhost, 127.0.0.1 and `superlink`, the server's name inside its own container network.
    clients : sequence of str
        Client names: letters, digits, `.`, `_` and `-`, no name twice. May be empty.

    Returns
    -------
    list of Path
        The files written, in order; empty if nothing was missing.

    Raises
    ------
    ValueError
        If a name is not allowed, or if `folder` holds the credentials of another server or only
        half of a pair.
    """
    names = _subject_names(server)
    for client in clients:
        if not _CLIENT_NAME.fullmatch(client):
            raise ValueError(
                f"clients: {client!r} is not allowed; use up to 64 letters, digits, '.', '_', '-', "
                "the first a letter or digit"
            )
    if len(set(clients)) < len(clients):
        twice = sorted({client for client in clients if clients.count(client) > 1})
        raise ValueError(f"clients: named twice: {', '.join(twice)}")

    writer = _Writer(Path(folder))
    if writer.has_pair("server/server.key", "server/server.crt"):
        _check_server(writer, server, names[0])
        ca = (writer.root / "server/ca.crt").read_bytes()
    else:
        ca = _server(writer, server, names, *_authority(writer))
    writer.add("server/superexec.secret", _secret())
    for client in clients:
        _client(writer, client, ca)
    return writer.written


class _Writer:
    """Writes files below `root` that are not there yet, and remembers which."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written: list[Path] = []

    def add(self, name: str, content: bytes) -> None:
        path = self.root / name
        if path.exists():
            return
        for parent in reversed(path.relative_to(self.root).parents):
            (self.root / parent).mkdir(mode=0o700, parents=True, exist_ok=True)
        # O_EXCL: a file that appears in between is not overwritten either.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        self.written.append(path)

    def has_pair(self, *names: str) -> bool:
        """Return whether all of `names` are there; half a pair is an error."""
        there = [name for name in names if (self.root / name).exists()]
        if there and len(there) < len(names):
            missing = next(name for name in names if name not in there)
            raise ValueError(
                f"{self.root} has {there[0]} but not {missing}: restore it, or use a new folder"
            )
        return bool(there)


def _subject_names(server: str) -> list[x509.GeneralName]:
    """Return the subject alternative names, `server` first, none twice."""
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names: list[x509.GeneralName] = []
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(server)))
    except ValueError:
        if not _HOST_NAME.fullmatch(server) or len(server) > 253 or _looks_like_ip(server):
            raise ValueError(
                f"server: {server!r} is neither a host name nor an IP address (give the name alone,"
                " without scheme or port)"
            ) from None
        names.append(x509.DNSName(server))
    for name in (x509.DNSName("localhost"), loopback, x509.DNSName("superlink")):
        if name not in names:
            names.append(name)
    return names


def _looks_like_ip(server: str) -> bool:
    """Return whether `server` is digits and dots, such as the mistyped address 10.0.0.256."""
    return re.fullmatch(r"[0-9.]+", server) is not None


def _authority(writer: _Writer) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if writer.has_pair("ca/ca.key", "ca/ca.crt"):
        key = serialization.load_pem_private_key((writer.root / "ca/ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{writer.root / 'ca/ca.key'}: not an elliptic-curve key")
        return x509.load_pem_x509_certificate((writer.root / "ca/ca.crt").read_bytes()), key
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("Muster deployment CA")
    certificate = (
        _unsigned(name, name, key.public_key(), _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    writer.add("ca/ca.key", _key_bytes(key))
    writer.add("ca/ca.crt", _certificate_bytes(certificate))
    return certificate, key


def _check_server(writer: _Writer, server: str, name: x509.GeneralName) -> None:
    path = writer.root / "server/server.crt"
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if name not in found:
        held = ", ".join(str(other.value) for other in found)
        raise ValueError(f"server: {path} is for {held}, not {server!r}; use another folder")


def _server(
    writer: _Writer,
    server: str,
    names: list[x509.GeneralName],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> bytes:
    """Write the server's pair and return the CA certificate."""
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _unsigned(_name(server[:64]), authority.subject, key.public_key(), _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(authority_key, hashes.SHA384())
    )
    ca = _certificate_bytes(authority)
    writer.add("server/ca.crt", ca)
    writer.add("server/server.key", _key_bytes(key))
    writer.add("server/server.crt", _certificate_bytes(certificate))
    return ca


def _client(writer: _Writer, client: str, ca: bytes) -> None:
    folder = f"clients/{client}"
    if writer.has_pair(f"{folder}/client.key", f"{folder}/client.pub"):
        public = (writer.root / folder / "client.pub").read_bytes()
    else:
        # Flower reads OpenSSH's format and derives the public key from the private one.
        key = ec.generate_private_key(ec.SECP384R1())
        public = (
            key.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
            + f" {client}\n".encode()
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        writer.add(f"{folder}/client.key", private)
        writer.add(f"{folder}/client.pub", public)
    writer.add(f"{folder}/ca.crt", ca)
    writer.add(f"{folder}/superexec.secret", _secret())
    writer.add(f"server/clients/{client}.pub", public)


def _unsigned(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # An hour back, for machines whose clock is behind.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificate_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _secret() -> bytes:
    # Flower reads the file as raw bytes, so no newline at its end.
    return secrets.token_urlsafe(48).encode()
