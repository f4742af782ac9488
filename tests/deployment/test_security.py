"""What a stranger who has the CA certificate, which is no secret, can do from another machine."""

from __future__ import annotations

import http.client
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from simulation.doctor import diagnose

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx"),
]

TINY_APP = Path(__file__).with_name("tiny_app")
TASKS = AcquireTaskRequest(supported_task_types=["flwr-serverapp", "flwr-clientapp"])


def refused(call: Callable[[Any], Any], request: Any) -> int:
    """Make a call that must fail, and return the HTTP status it fails with."""
    with pytest.raises(httpx.HTTPStatusError) as caught:
        call(request)
    return caught.value.response.status_code


def test_a_stranger_reaches_nothing(deploy: Callable[..., Any]) -> None:
    it = deploy()
    it.start_server()
    port = it.start_proxy()
    it.start_client("a", superlink_port=port)
    it.until(it.online)
    it.kill("superexec")  # so that the ServerApp's task is there to be taken
    run_id = it.submit(TINY_APP, {})
    ca = (it.credentials / "server/ca.crt").read_bytes()
    private, public = generate_key_pairs()
    signed = [NodeAuthHttpInterceptor(private, public)]
    key = public_key_to_bytes(public)

    def clients(port: int) -> tuple[ControlHttpClient, RuntimeHttpClient, FleetHttpClient]:
        address = f"127.0.0.1:{port}"
        return (
            ControlHttpClient.from_server_address(address, False, ca, []),
            RuntimeHttpClient.from_server_address(address, False, ca, []),
            FleetHttpClient.from_server_address(address, False, ca, signed),
        )

    # On the server's own network the Control API answers anyone: that is why there is a proxy.
    control, runtime, fleet = clients(it.port)
    assert str(run_id) in {str(run) for run in control.ListRuns(ListRunsRequest()).run_dict}
    # A task is not given out even there without the secret.
    assert refused(runtime.AcquireTask, TASKS) in (401, 403)

    control, runtime, fleet = clients(port)
    assert refused(control.ListRuns, ListRunsRequest()) == 404
    assert refused(control.ListNodes, ListNodesRequest()) == 404
    assert refused(control.RegisterNode, RegisterNodeRequest(public_key=key)) == 404
    assert refused(control.StartRun, StartRunRequest()) == 404
    assert refused(control.StopRun, StopRunRequest(run_id=int(run_id))) == 404
    assert refused(runtime.AcquireTask, TASKS) == 404
    # The Fleet API passes, and knows only registered keys.
    register = RegisterNodeFleetRequest(public_key=key)
    assert refused(fleet.RegisterNode, register) == 412
    activate = ActivateNodeRequest(public_key=key, heartbeat_interval=30)
    assert refused(fleet.ActivateNode, activate) == 412
    (node_id,) = it.online().values()
    # Nor does a stranger pass for the client by its id.
    assert refused(fleet.PullMessages, PullMessagesRequest(node=Node(node_id=node_id))) == 401
    assert refused(fleet.DeactivateNode, DeactivateNodeRequest(node_id=node_id)) == 401

    context = ssl.create_default_context(cafile=it.credentials / "server/ca.crt")
    for path in (
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/%252e%252e/control/list-runs",
        "//v1/control/list-runs",
        "/v1/control/list-runs",
        "/v1/fleet//../runtime/acquire-task",
        "/health",
        "/openapi.json",
        "/docs",
        "/",
    ):
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
        connection.request("POST", path, b"", {"content-type": "application/protobuf"})
        assert connection.getresponse().status == 404, path
        connection.close()

    # A client whose key is registered does pass, the run is untouched and ends well.
    checks = diagnose(
        f"localhost:{port}",
        root_certificates=it.credentials / "clients/a/ca.crt",
        key=it.credentials / "clients/a/client.key",
    )
    assert [check for check in checks if not check.passed] == []
    it.start_superexec()
    assert it.wait(run_id) == "finished:completed"


def test_a_client_without_a_registered_key_is_diagnosed(deploy: Callable[..., Any]) -> None:
    it = deploy()
    it.start_superlink()
    options = {"root_certificates": it.credentials / "server/ca.crt"}
    (*_, check) = diagnose(f"localhost:{it.port}", **options)
    assert check.passed is False
    assert "wants a registered key" in check.found
    it.start_client("a")
    key = it.credentials / "clients/a/client.key"
    loaded = load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    checks = diagnose(f"localhost:{it.port}", key=key, **options)
    assert all(check.passed for check in checks)
    assert it.alive("a")
