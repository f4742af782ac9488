import argparse
import http.server
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.supernode.register import try_load_public_key
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication
from flwr.supernode.fleet_http_client import FleetHttpClient

from simulation.credentials import create_credentials


class _Empty(http.server.BaseHTTPRequestHandler):
    """Answers every call with an empty protobuf message."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def tls_server(certificate: Path, key: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Empty)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _names(folder: Path) -> x509.SubjectAlternativeName:
    certificate = x509.load_pem_x509_certificate((folder / "server/server.crt").read_bytes())
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_every_file_is_private_and_returned(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "credentials"
    written = create_credentials(folder, server="fl.example.org", clients=["a", "b"])
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert set(written) == set(files)
    assert len(written) == len(files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_no_machine_gets_a_secret_of_another(tmp_path: Path) -> None:
    create_credentials(tmp_path, server="fl.example.org", clients=["a", "b"])
    machines = [tmp_path / "server", tmp_path / "clients/a", tmp_path / "clients/b"]
    secrets = [(machine / "superexec.secret").read_bytes() for machine in machines]
    assert len(set(secrets)) == 3
    authority = (tmp_path / "ca/ca.key").read_bytes()
    keys = [(tmp_path / f"clients/{name}/client.key").read_bytes() for name in "ab"]
    for machine in machines:
        contents = [path.read_bytes() for path in machine.rglob("*") if path.is_file()]
        assert authority not in contents
        assert sum(key in contents for key in keys) == (machine.parent.name == "clients")


@pytest.mark.parametrize(
    ("server", "first"),
    [
        ("fl.example.org", x509.DNSName("fl.example.org")),
        ("localhost", x509.DNSName("localhost")),
        ("192.0.2.7", x509.IPAddress(ipaddress.ip_address("192.0.2.7"))),
        ("2001:db8::7", x509.IPAddress(ipaddress.ip_address("2001:db8::7"))),
    ],
)
def test_certificate_names_the_server_and_loopback(
    tmp_path: Path, server: str, first: x509.GeneralName
) -> None:
    create_credentials(tmp_path, server=server, clients=[])
    names = list(_names(tmp_path))
    assert names[0] == first
    assert x509.DNSName("localhost") in names
    assert x509.IPAddress(ipaddress.ip_address("127.0.0.1")) in names
    assert len(set(names)) == len(names)


def test_second_call_adds_only_the_new_client(tmp_path: Path) -> None:
    create_credentials(tmp_path, server="fl.example.org", clients=["a"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert create_credentials(tmp_path, server="fl.example.org", clients=["a"]) == []
    written = create_credentials(tmp_path, server="fl.example.org", clients=["a", "b"])
    assert {path.relative_to(tmp_path).as_posix() for path in written} == {
        "clients/b/client.key",
        "clients/b/client.pub",
        "clients/b/ca.crt",
        "clients/b/superexec.secret",
        "server/clients/b.pub",
    }
    assert all(path.read_bytes() == content for path, content in before.items())


def test_public_key_to_register_is_the_clients_own(tmp_path: Path) -> None:
    create_credentials(tmp_path, server="localhost", clients=["a"])
    own = (tmp_path / "clients/a/client.pub").read_bytes()
    assert (tmp_path / "server/clients/a.pub").read_bytes() == own
    # Also when only the server's copy was lost.
    (tmp_path / "server/clients/a.pub").unlink()
    (written,) = create_credentials(tmp_path, server="localhost", clients=["a"])
    assert written.read_bytes() == own


def test_another_servers_folder_is_refused(tmp_path: Path) -> None:
    create_credentials(tmp_path, server="fl.example.org", clients=["a"])
    count = len(list(tmp_path.rglob("*")))
    with pytest.raises(ValueError, match=r"is for fl\.example\.org.*not 'other\.example\.org'"):
        create_credentials(tmp_path, server="other.example.org", clients=["a", "b"])
    assert len(list(tmp_path.rglob("*"))) == count


def test_a_client_is_added_without_the_authority(tmp_path: Path) -> None:
    create_credentials(tmp_path, server="localhost", clients=["a"])
    (tmp_path / "ca/ca.key").unlink()
    (tmp_path / "ca/ca.crt").unlink()
    written = create_credentials(tmp_path, server="localhost", clients=["b"])
    assert all("ca.key" not in path.name for path in written)
    ca = (tmp_path / "clients/a/ca.crt").read_bytes()
    assert (tmp_path / "clients/b/ca.crt").read_bytes() == ca


@pytest.mark.parametrize("lost", ["ca/ca.key", "server/server.key", "clients/a/client.key"])
def test_half_a_pair_is_refused(tmp_path: Path, lost: str) -> None:
    create_credentials(tmp_path, server="localhost", clients=["a"])
    if lost.startswith("ca/"):  # needed to certify a server
        (tmp_path / "server/server.key").unlink()
        (tmp_path / "server/server.crt").unlink()
    (tmp_path / lost).unlink()
    with pytest.raises(ValueError, match=f"not {lost}"):
        create_credentials(tmp_path, server="localhost", clients=["a"])


@pytest.mark.parametrize(
    "server", ["", "https://host", "host:8000", "a b", "-a", "10.0.0.256", "a..b", "ü.example"]
)
def test_bad_server_name_is_refused_before_anything_is_written(tmp_path: Path, server: str) -> None:
    with pytest.raises(ValueError, match=r"server: .* neither a host name nor an IP address"):
        create_credentials(tmp_path / "new", server=server, clients=[])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("client", ["", "../up", "a/b", ".hidden", "a b", "x" * 65])
def test_bad_client_name_is_refused_before_anything_is_written(tmp_path: Path, client: str) -> None:
    with pytest.raises(ValueError, match=r"clients: .* is not allowed"):
        create_credentials(tmp_path / "new", server="localhost", clients=["a", client])
    assert not (tmp_path / "new").exists()


def test_repeated_client_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="named twice: a"):
        create_credentials(tmp_path, server="localhost", clients=["a", "b", "a"])


def test_flower_loads_the_keys_and_the_secret(tmp_path: Path) -> None:
    create_credentials(tmp_path, server="localhost", clients=["a"])
    arguments = argparse.Namespace(
        auth_supernode_private_key=str(tmp_path / "clients/a/client.key"),
        auth_supernode_public_key=None,
    )
    keys = _try_setup_client_authentication(arguments)
    assert keys is not None
    assert isinstance(keys[1].curve, ec.SECP384R1)
    registered = load_ssh_public_key((tmp_path / "server/clients/a.pub").read_bytes())
    assert keys[1] == registered
    assert try_load_public_key(tmp_path / "server/clients/a.pub")
    assert load_superexec_auth_secret(str(tmp_path / "server/superexec.secret"))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_flower_client_accepts_the_certificate(tmp_path: Path, host: str) -> None:
    create_credentials(tmp_path, server="fl.example.org", clients=[])
    root = tmp_path / "server/ca.crt"
    with tls_server(tmp_path / "server/server.crt", tmp_path / "server/server.key") as port:
        # Flower passes the bytes or the path, and httpx treats the two differently.
        for certificates in (root.read_bytes(), str(root)):
            with FleetHttpClient.from_server_address(
                f"{host}:{port}", False, certificates, interceptors=[]
            ) as client:
                client.PullMessages(PullMessagesRequest())


def test_flower_client_rejects_another_deployments_certificate(tmp_path: Path) -> None:
    create_credentials(tmp_path / "ours", server="localhost", clients=[])
    create_credentials(tmp_path / "theirs", server="localhost", clients=[])
    theirs = tmp_path / "theirs/server"
    with tls_server(theirs / "server.crt", theirs / "server.key") as port:
        root = (tmp_path / "ours/server/ca.crt").read_bytes()
        with (
            FleetHttpClient.from_server_address(
                f"localhost:{port}", False, root, interceptors=[]
            ) as client,
            pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.PullMessages(PullMessagesRequest())


def test_the_given_name_is_what_a_client_checks(tmp_path: Path) -> None:
    create_credentials(tmp_path, server="fl.example.org", clients=[])
    context = ssl.create_default_context(cafile=tmp_path / "server/ca.crt")
    # What Python 3.13 checks by default.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with tls_server(tmp_path / "server/server.crt", tmp_path / "server/server.key") as port:
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            context.wrap_socket(raw, server_hostname="fl.example.org") as connection,
        ):
            assert connection.version() == "TLSv1.3"
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            pytest.raises(ssl.SSLCertVerificationError, match="mismatch"),
        ):
            context.wrap_socket(raw, server_hostname="other.example.org")
