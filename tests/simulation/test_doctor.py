import datetime
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi import FastAPI
from flwr.supercore.constant import NodeStatus
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.version import package_version
from flwr.superlink.main import create_app

from simulation import credentials, doctor
from simulation.doctor import Check, diagnose

ADDRESS = "127.0.0.1:{}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create_credentials(folder, server="localhost", clients=["a", "stranger"])
    return folder


@contextmanager
def superlink(
    folder: Path | None,
    *,
    auth: bool = True,
    register: Path | None = None,
    app: FastAPI | None = None,
) -> Iterator[int]:
    """Flower's own SuperLink application, in this process, with TLS if given credentials."""
    app = app or create_app()
    app.state.enable_supernode_auth = auth
    if register is not None:
        key = serialization.load_ssh_public_key(register.read_bytes())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        app.state.linkstate_factory.state().create_node("me", "me", public_key_to_bytes(key), 0)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="error",
        ssl_certfile=folder and folder / "server/server.crt",
        ssl_keyfile=folder and folder / "server/server.key",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def plain_server(status: int, body: bytes = b"") -> Iterator[int]:
    """A web server that is no SuperLink."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does `answer` with each connection and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def tls_answer(folder: Path) -> Callable[[socket.socket], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server/server.crt", folder / "server/server.key")

    def answer(connection: socket.socket) -> None:
        with suppress(OSError):
            context.wrap_socket(connection, server_side=True).close()

    return answer


def failed(checks: list[Check]) -> Check:
    """The check that failed, which is the last."""
    assert [check.passed for check in checks[:-1]].count(False) == 0
    assert checks[-1].passed is False
    assert checks[-1].mend
    return checks[-1]


def test_a_registered_client_passes_everything(folder: Path) -> None:
    with superlink(folder, register=folder / "server/clients/a.pub") as port:
        checks = diagnose(
            f"localhost:{port}",
            root_certificates=folder / "clients/a/ca.crt",
            key=folder / "clients/a/client.key",
        )
    assert [check.name for check in checks] == [
        "host name",
        "reachability",
        "TLS",
        "SuperLink",
        "clock",
        "version",
        "key",
    ]
    assert all(check.passed for check in checks)


def test_nothing_is_left_on_the_superlink(folder: Path) -> None:
    app = create_app()
    state = app.state.linkstate_factory.state()
    with superlink(None, auth=False, app=app) as port:
        diagnose(ADDRESS.format(port), insecure=True)
        assert {node.status for node in state.get_node_info()} == {NodeStatus.UNREGISTERED}
    with superlink(None, register=folder / "server/clients/a.pub", app=app) as port:
        diagnose(ADDRESS.format(port), insecure=True, key=folder / "clients/a/client.key")
        statuses = {node.status for node in state.get_node_info()}
        assert statuses == {NodeStatus.UNREGISTERED, NodeStatus.REGISTERED}


def test_unregistered_key(folder: Path) -> None:
    with superlink(folder, register=folder / "server/clients/a.pub") as port:
        check = failed(
            diagnose(
                f"localhost:{port}",
                root_certificates=folder / "server/ca.crt",
                key=folder / "clients/stranger/client.key",
            )
        )
    assert check.name == "key"
    assert "does not know this key" in check.found
    assert "register" in check.mend


def test_no_key_where_one_is_wanted(folder: Path) -> None:
    with superlink(folder) as port:
        check = failed(diagnose(f"localhost:{port}", root_certificates=folder / "server/ca.crt"))
    assert check.name == "key"
    assert "wants a registered key" in check.found


def test_no_key_where_none_is_wanted() -> None:
    with superlink(None, auth=False) as port:
        checks = diagnose(ADDRESS.format(port), insecure=True)
        assert all(check.passed for check in checks)
        assert "without a key" in checks[-1].found


@pytest.mark.parametrize(
    ("shift", "words"), [(30, "30 s ahead of"), (-400, "400 s behind"), (-60, None), (3, None)]
)
def test_clock(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shift: int, words: str | None
) -> None:
    real = doctor._now
    monkeypatch.setattr(doctor, "_now", lambda: real() + datetime.timedelta(seconds=shift))
    with superlink(folder, register=folder / "server/clients/a.pub") as port:
        checks = diagnose(
            f"localhost:{port}",
            root_certificates=folder / "server/ca.crt",
            key=folder / "clients/a/client.key",
        )
    clock = next(check for check in checks if check.name == "clock")
    # The SuperLink's own answer agrees with what was said of the clock.
    assert clock.passed is (words is None)
    assert checks[-1].passed is clock.passed
    if words is not None:
        amount = int(words.split()[0])
        assert any(f"{amount + off} s {words.split()[2]}" in clock.found for off in (-1, 0, 1))
        assert "NTP" in clock.mend


@pytest.mark.parametrize(("server", "passed"), [(package_version, True), ("1.41.3", False)])
def test_version(monkeypatch: pytest.MonkeyPatch, server: str, passed: bool) -> None:
    monkeypatch.setattr(doctor, "package_version", server)
    with superlink(None, auth=False) as port:
        checks = diagnose(ADDRESS.format(port), insecure=True)
    version = next(check for check in checks if check.name == "version")
    assert version.passed is passed
    assert package_version in version.found


def test_unknown_authority(folder: Path, tmp_path: Path) -> None:
    credentials.create_credentials(tmp_path, server="localhost", clients=[])
    with superlink(folder) as port:
        for root in (tmp_path / "server/ca.crt", None):
            check = failed(diagnose(f"localhost:{port}", root_certificates=root))
            assert check.name == "TLS"
            assert "not trusted" in check.found
            assert "--root-certificates" in check.mend


def certificate(folder: Path, target: Path, *, name: str, start: int, end: int) -> Path:
    """Have the CA in `folder` certify `name` from `start` to `end`, in days from now."""
    authority = x509.load_pem_x509_certificate((folder / "ca/ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca/ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=start))
        .not_valid_after(now + datetime.timedelta(days=end))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .sign(signer, hashes.SHA256())
    )
    (target / "server").mkdir()
    (target / "server/server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (target / "server/server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return target


@pytest.mark.parametrize(
    ("name", "start", "end", "words"),
    [
        ("localhost", -9, -1, "has expired"),
        ("localhost", 1, 9, "is not valid yet"),
        ("fl.example.org", -9, 9, "is not for localhost"),
    ],
)
def test_certificate_that_is_not_valid_here(
    folder: Path, tmp_path: Path, name: str, start: int, end: int, words: str
) -> None:
    made = certificate(folder, tmp_path, name=name, start=start, end=end)
    with raw_server(tls_answer(made)) as port:
        check = failed(diagnose(f"localhost:{port}", root_certificates=folder / "server/ca.crt"))
    assert check.name == "TLS"
    assert words in check.found


@pytest.mark.parametrize(("days", "soon"), [(10, True), (100, False)])
def test_certificate_that_ends_soon(folder: Path, tmp_path: Path, days: int, soon: bool) -> None:
    made = certificate(folder, tmp_path, name="localhost", start=-1, end=days)
    with superlink(made) as port:
        checks = diagnose(f"localhost:{port}", root_certificates=folder / "server/ca.crt")
    tls = next(check for check in checks if check.name == "TLS")
    assert tls.passed
    assert bool(tls.mend) is soon


def test_plain_http_to_a_tls_port(folder: Path) -> None:
    with superlink(folder) as port:
        check = failed(diagnose(ADDRESS.format(port), insecure=True))
    assert check.name == "TLS"
    assert "was asked for plain HTTP" in check.found
    assert "retries this forever" in check.found


def test_tls_to_a_plain_http_port(folder: Path) -> None:
    with superlink(None) as port:
        check = failed(diagnose(ADDRESS.format(port), root_certificates=folder / "server/ca.crt"))
    assert check.name == "TLS"
    assert "was asked for TLS" in check.found


def test_a_port_that_speaks_something_else(folder: Path) -> None:
    with raw_server(lambda connection: connection.sendall(b"SSH-2.0-x\r\n")) as port:
        check = failed(diagnose(ADDRESS.format(port), root_certificates=folder / "server/ca.crt"))
        assert "neither TLS nor HTTP" in check.found
        check = failed(diagnose(ADDRESS.format(port), insecure=True))
        assert check.name == "SuperLink"


def test_a_port_that_says_nothing(folder: Path) -> None:
    done = threading.Event()
    with raw_server(lambda _: done.wait(20) and None) as port:
        address = ADDRESS.format(port)
        check = failed(diagnose(address, root_certificates=folder / "server/ca.crt", timeout=0.2))
        done.set()
    assert check.name == "TLS"
    assert "says nothing" in check.found


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    check = failed(diagnose(ADDRESS.format(port), insecure=True))
    assert check.name == "reachability"
    assert "nothing listens" in check.found
    assert "retries this forever" in check.found


def test_unknown_host() -> None:
    check = failed(diagnose("no-such-host.invalid:8000", insecure=True))
    assert check.name == "host name"
    assert "retries this forever" in check.found


@pytest.mark.parametrize(
    ("status", "words"),
    [(502, "the SuperLink behind it does not"), (404, "no SuperLink"), (200, "no SuperLink")],
)
def test_a_web_server_that_is_no_superlink(status: int, words: str) -> None:
    with plain_server(status, b"<html>") as port:
        check = failed(diagnose(ADDRESS.format(port), insecure=True))
    assert check.name == "SuperLink"
    assert words in check.found


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":8000", "http://host:8000", "host:0", "host:65536", "::1:80"]
)
def test_bad_address(address: str) -> None:
    with pytest.raises(ValueError, match=r"superlink: .*HOST:PORT"):
        diagnose(address)


def test_bad_options(folder: Path, tmp_path: Path) -> None:
    ca = folder / "server/ca.crt"
    with pytest.raises(ValueError, match="exclude each other"):
        diagnose("localhost:1", root_certificates=ca, insecure=True)
    with pytest.raises(ValueError, match="timeout: 0"):
        diagnose("localhost:1", timeout=0)
    with pytest.raises(ValueError, match=r"root certificates: .*No such file"):
        diagnose("localhost:1", root_certificates=tmp_path / "none")
    with pytest.raises(ValueError, match="is not a PEM file"):
        diagnose("localhost:1", root_certificates=folder / "server/superexec.secret")
    with pytest.raises(ValueError, match=r"key: .*No such file"):
        diagnose("localhost:1", key=tmp_path / "none")
    for wrong in (ca, folder / "server/server.key", folder / "clients/a/client.pub"):
        with pytest.raises(ValueError, match="is not an unencrypted OpenSSH private key"):
            diagnose("localhost:1", key=wrong)
