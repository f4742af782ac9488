"""Why a client cannot join: the checks a SuperNode makes in silence, one by one and by name.

Flower's SuperNode retries a refused connection, an unknown host, a timeout, a proxy whose SuperLink
is down (502, 503, 504) and plain HTTP sent to a TLS port forever, without naming the cause; a wrong
clock ends it as if it had been asked to stop. `diagnose` walks the same way and stops at the first
thing that is wrong. It joins no federation and starts nothing.
"""

from __future__ import annotations

import datetime
import email.utils
import re
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    RegisterNodeFleetRequest,
    RegisterNodeFleetResponse,
    UnregisterNodeFleetRequest,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.version import package_version

__all__ = ["Check", "diagnose"]

VERSION_HEADER = "muster-flower-version"  # set by the proxy in docker/nginx.conf

_SILENT = "flower-supernode retries this forever without naming it"
_EXPIRES_SOON_DAYS = 30

# OpenSSL's X509_V_ERR_* codes.
_NOT_YET_VALID, _EXPIRED = 9, 10
_HOST_MISMATCH, _IP_MISMATCH = 62, 64


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes
    ----------
    name : str
        `host name`, `reachability`, `TLS`, `SuperLink`, `clock`, `version` or `key`.
    passed : bool or None
        None if it could not be told.
    found : str
        What was seen, in one line.
    mend : str
        What to do about it, in one line; empty if nothing.
    """

    name: str
    passed: bool | None
    found: str
    mend: str = ""


class _CheckError(Exception):
    """Ends the walk: nothing after this check would mean anything."""

    def __init__(self, name: str, found: str, mend: str) -> None:
        super().__init__(found)
        self.check = Check(name, False, found, mend)


def diagnose(
    superlink: str,
    *,
    root_certificates: Path | str | None = None,
    key: Path | str | None = None,
    insecure: bool = False,
    timeout: float = 5.0,
) -> list[Check]:
    """Find out whether a SuperNode with these options could join, and if not, why.

    Parameters
    ----------
    superlink : str
        HOST:PORT, as `flower-supernode --superlink` takes it.
    root_certificates : Path or str, optional
        The CA certificate, as `--root-certificates`; the system's without it.
    key : Path or str, optional
        The client's private key, as `--auth-supernode-private-key`.
    insecure : bool
        Plain HTTP, as `--insecure`.
    timeout : float
        Seconds for each connection.

    Returns
    -------
    list of Check
        In the order they were made; only the last can have failed, except that a wrong clock or
        version does not end the walk.

    Raises
    ------
    ValueError
        If the address is not HOST:PORT, the timeout is not positive, the options contradict each
        other, or a file cannot be read or is not what it should be.
    """
    host, port = _split(superlink)
    if not timeout > 0:
        raise ValueError(f"timeout: {timeout} is not allowed; more than 0 seconds")
    if insecure and root_certificates is not None:
        raise ValueError("root certificates and insecure exclude each other: TLS or no TLS")
    context = None if insecure else _tls_context(root_certificates)
    private_key = None if key is None else _load_key(Path(key))

    checks: list[Check] = []
    try:
        _check_host_name(checks, host, port)
        _check_reachable(checks, host, port, timeout)
        if context is None:
            _check_plain(host, port, timeout)
        else:
            _check_tls(checks, context, host, port, timeout)
        with httpx.Client(
            base_url=f"{'http' if insecure else 'https'}://{_bracketed(host)}:{port}",
            verify=False if context is None else context,
            timeout=timeout,
            trust_env=False,
        ) as client:
            _check_superlink(checks, client, private_key)
    except _CheckError as failed:
        checks.append(failed.check)
    return checks


def _split(superlink: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/\s]+)):([0-9]{1,5})", superlink)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise ValueError(
            f"superlink: {superlink!r} is not allowed; HOST:PORT, without http:// (an IPv6 address"
            " in brackets)"
        )
    return match[1] or match[2], int(match[3])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _tls_context(root_certificates: Path | str | None) -> ssl.SSLContext:
    if root_certificates is None:
        return ssl.create_default_context()
    # As Flower makes it: trusted are these certificates alone.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=root_certificates)
    except ssl.SSLError:
        raise ValueError(f"root certificates: {root_certificates} is not a PEM file") from None
    except OSError as error:
        raise ValueError(f"root certificates: {root_certificates}: {error.strerror}") from None
    return context


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ValueError(f"key: {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(
            f"key: {path} is not an unencrypted OpenSSH private key on a NIST curve; make one with"
            " `muster credentials`"
        )
    return key


def _check_host_name(checks: list[Check], host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise _CheckError(
            "host name",
            f"{host} is not known here; {_SILENT}",
            "correct the name, or add it to the name service or /etc/hosts of this machine",
        ) from None
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    checks.append(Check("host name", True, f"{host} is {', '.join(addresses)}"))


def _check_reachable(checks: list[Check], host: str, port: int, timeout: float) -> None:
    try:
        socket.create_connection((host, port), timeout).close()
    except ConnectionRefusedError:
        raise _CheckError(
            "reachability",
            f"nothing listens on port {port} of {host}; {_SILENT}",
            "start the SuperLink with --host 0.0.0.0 (its default is this-machine-only), or correct"
            " the port",
        ) from None
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise _CheckError(
            "reachability",
            f"{host}:{port}: {reason} within {timeout:g} s; {_SILENT}",
            "open the port in the server's firewall and check the route to it",
        ) from None
    checks.append(Check("reachability", True, f"{host}:{port} accepts connections"))


def _check_plain(host: str, port: int, timeout: float) -> None:
    """Fail if the server wants TLS. Asked for plainly, such a server only hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout) as raw, context.wrap_socket(raw):
            pass
    except OSError:
        return
    raise _CheckError(
        "TLS",
        f"{host}:{port} speaks TLS and was asked for plain HTTP; {_SILENT}",
        "leave --insecure out and give --root-certificates",
    )


def _check_tls(
    checks: list[Check], context: ssl.SSLContext, host: str, port: int, timeout: float
) -> None:
    try:
        with (
            socket.create_connection((host, port), timeout) as raw,
            context.wrap_socket(raw, server_hostname=host) as connection,
        ):
            certificate = connection.getpeercert() or {}
            version = connection.version()
    except ssl.SSLCertVerificationError as error:
        raise _certificate_failure(error, host) from None
    except TimeoutError:
        raise _CheckError(
            "TLS",
            f"{host} accepts the connection and then says nothing; {_SILENT}",
            "see whether another program has the port, or the server is overloaded",
        ) from None
    except (ssl.SSLError, OSError):
        if _speaks_http(host, port, timeout):
            raise _CheckError(
                "TLS",
                f"{host} speaks plain HTTP and was asked for TLS",
                "start the SuperLink with --ssl-ca-certfile, --ssl-certfile and --ssl-keyfile; on a"
                " closed test network --insecure on both sides does without",
            ) from None
        raise _CheckError(
            "TLS",
            f"{host} speaks neither TLS nor HTTP on this port",
            "correct the port: another program listens there",
        ) from None
    ends = datetime.datetime.fromtimestamp(
        ssl.cert_time_to_seconds(str(certificate["notAfter"])), datetime.UTC
    )
    days = (ends - datetime.datetime.now(datetime.UTC)).days
    soon = days < _EXPIRES_SOON_DAYS
    checks.append(
        Check(
            "TLS",
            True,
            f"{version}, certificate trusted for {host}, ends {ends:%Y-%m-%d} ({days} days)",
            "replace the server's certificate before it ends" if soon else "",
        )
    )


def _certificate_failure(error: ssl.SSLCertVerificationError, host: str) -> _CheckError:
    code = error.verify_code
    if code == _EXPIRED:
        return _CheckError(
            "TLS",
            f"the certificate of {host} has expired, by this machine's clock ({_now():%Y-%m-%d})",
            "give the server a new certificate, or set this machine's clock",
        )
    if code == _NOT_YET_VALID:
        return _CheckError(
            "TLS",
            f"the certificate of {host} is not valid yet, by this machine's clock"
            f" ({_now():%Y-%m-%d %H:%M} UTC)",
            "set this machine's clock",
        )
    if code in (_HOST_MISMATCH, _IP_MISMATCH):
        return _CheckError(
            "TLS",
            f"the certificate is not for {host}: {error.verify_message.rstrip('.')}",
            "connect by the name that was given to `muster credentials --server`, or make new"
            " credentials for this one",
        )
    return _CheckError(
        "TLS",
        f"the certificate of {host} is not trusted: {error.verify_message}",
        "give --root-certificates with the ca.crt made together with the server's certificate",
    )


def _speaks_http(host: str, port: int, timeout: float) -> bool:
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(f"GET /health HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def _check_superlink(
    checks: list[Check], client: httpx.Client, key: ec.EllipticCurvePrivateKey | None
) -> None:
    probe_key = ec.generate_private_key(ec.SECP384R1()) if key is None else key
    public = public_key_to_bytes(probe_key.public_key())
    # The interval is not allowed, so that nothing is activated: the SuperLink looks the key up
    # first and says which of the two it objects to.
    sent = _now()
    response = _call(
        client,
        "activate-node",
        ActivateNodeRequest(public_key=public, heartbeat_interval=0.0).SerializeToString(),
        probe_key,
    )
    middle = sent + (_now() - sent) / 2
    error = FlowerError.from_json(response.text) if response.is_error else None
    _check_answer(response, error)
    checks.append(Check("SuperLink", True, "answers the Fleet API"))
    clock_is_right = _check_clock(checks, response, middle)
    _check_version(checks, client, response)
    if response.status_code == httpx.codes.UNAUTHORIZED:
        found = "the SuperLink rejects the signature; flower-supernode ends without saying so"
        raise _CheckError(
            "key",
            found,
            "use a flwr 1.42 on both machines, and a proxy that passes all headers"
            if clock_is_right
            else "set the clock",
        )
    if key is None:
        _check_no_key(checks, client, probe_key)
        return
    if error is not None and error.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        raise _CheckError(
            "key",
            "the SuperLink does not know this key (flower-supernode: exit 305, code 2004)",
            "on the server: flwr supernode register NAME.pub CONNECTION --name NAME",
        )
    checks.append(
        Check(
            "key",
            True,
            "the SuperLink knows this key; if flower-supernode still ends with code 2004, its"
            " predecessor counts as online for up to a minute after it was killed",
        )
    )


def _call(
    client: httpx.Client, name: str, content: bytes, key: ec.EllipticCurvePrivateKey
) -> httpx.Response:
    """Send a Fleet request, signed as a SuperNode signs it."""
    timestamp = _now().isoformat()
    public = public_key_to_bytes(key.public_key())
    signature = sign_message(key, timestamp.encode("ascii"))
    try:
        return client.post(
            f"/v1/fleet/{name}",
            content=content,
            headers={
                "content-type": PROTOBUF_MEDIA_TYPE,
                "accept": PROTOBUF_MEDIA_TYPE,
                FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode("ascii"),
                TIMESTAMP_HEADER: timestamp,
                FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode("ascii"),
            },
        )
    except httpx.TimeoutException:
        found = f"connects and then says nothing; {_SILENT}"
        mend = "see whether another program has the port, or the server is overloaded"
        raise _CheckError("SuperLink", found, mend) from None
    except httpx.TransportError as error:
        found = f"hangs up: {error}; {_SILENT}"
        mend = "correct the port: another program may listen there"
        raise _CheckError("SuperLink", found, mend) from None


def _check_answer(response: httpx.Response, error: FlowerError | None) -> None:
    """Fail unless it was a SuperLink that answered."""
    status = response.status_code
    if status in (502, 503, 504):
        raise _CheckError(
            "SuperLink",
            f"the proxy answers, the SuperLink behind it does not ({status}); {_SILENT}",
            "start the SuperLink, and see the proxy's log for the address it tries",
        )
    if error is None and status != httpx.codes.UNAUTHORIZED:
        raise _CheckError(
            "SuperLink",
            f"the server is no SuperLink, or its proxy does not pass /v1/fleet/ (status {status})",
            "correct the port, or let the proxy pass POST /v1/fleet/*",
        )


def _check_clock(checks: list[Check], response: httpx.Response, local: datetime.datetime) -> bool:
    """Compare the clocks; return whether the SuperLink would accept this one's signatures."""
    try:
        server = email.utils.parsedate_to_datetime(response.headers["date"])
        ahead = (local - server).total_seconds()
    except (KeyError, ValueError, TypeError):
        checks.append(Check("clock", None, "the server's answer bears no date"))
        return True
    # The date has whole seconds, cut off.
    ahead -= 0.5
    behind_limit = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    allowed = -behind_limit < ahead < SYSTEM_TIME_TOLERANCE
    found = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    if allowed:
        checks.append(Check("clock", True, found))
    else:
        checks.append(
            Check(
                "clock",
                False,
                f"{found}; the SuperLink allows {SYSTEM_TIME_TOLERANCE} s ahead and {behind_limit}"
                " s behind, and flower-supernode ends without a word",
                "set the clock of both machines by NTP",
            )
        )
    return allowed


def _check_version(checks: list[Check], client: httpx.Client, response: httpx.Response) -> None:
    """Compare the Flower versions: the Fleet API lets unequal ones in, and they fail later."""
    server = response.headers.get(VERSION_HEADER)
    if server is None:
        try:
            server = client.get("/openapi.json").json()["info"]["version"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            checks.append(
                Check(
                    "version",
                    None,
                    f"flwr {package_version} here; the proxy does not tell the server's",
                    "compare with `flower-superlink --version` on the server",
                )
            )
            return
    same = str(server).split(".")[:2] == package_version.split(".")[:2]
    checks.append(
        Check(
            "version",
            same,
            f"flwr {package_version} here, {server} on the server",
            "" if same else f"pip install flwr=={server}",
        )
    )


def _check_no_key(
    checks: list[Check], client: httpx.Client, key: ec.EllipticCurvePrivateKey
) -> None:
    """Find out whether the SuperLink wants a key, by registering as a keyless SuperNode does."""
    public = public_key_to_bytes(key.public_key())
    register = RegisterNodeFleetRequest(public_key=public).SerializeToString()
    response = _call(client, "register-node", register, key)
    if response.is_success:
        node_id = RegisterNodeFleetResponse.FromString(response.content).node_id
        unregister = UnregisterNodeFleetRequest(node_id=node_id).SerializeToString()
        _call(client, "unregister-node", unregister, key)
        checks.append(
            Check(
                "key",
                True,
                "the SuperLink lets anyone join without a key",
                "outside a closed test network, start it with --enable-supernode-auth",
            )
        )
        return
    raise _CheckError(
        "key",
        "the SuperLink wants a registered key (flower-supernode: exit 305, code 2001)",
        "give --auth-supernode-private-key (here: --key)",
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
