"""A real deployment on loopback: SuperLink, SuperExec and SuperNodes, each a process of its own.

Process isolation throughout, own ports, own `FLWR_HOME`, everything ended by its pid.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from flwr.cli.supernode.register import try_load_public_key
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StreamLogsRequest,
)
from flwr.supercore.control.control_http_client import ControlHttpClient

from simulation.credentials import create_credentials

ROOT = Path(__file__).parents[1]


class Deployment:
    """The processes of one server and its clients.

    Parameters
    ----------
    folder : Path
        Where logs, the database, credentials and results go.
    secure : bool
        TLS and SuperNode authentication, or neither.
    """

    def __init__(self, folder: Path, *, secure: bool = True) -> None:
        self.folder = folder
        self.secure = secure
        self.port = _free_port()
        self.results = folder / "results"
        self._processes: dict[str, psutil.Popen] = {}
        self._node_ports: dict[str, int] = {}
        self._node_configs: dict[str, str] = {}
        (folder / "home").mkdir()
        self.credentials = folder / "credentials"
        create_credentials(self.credentials, server="localhost", clients=[])
        connection: dict[str, str] = {"address": f"127.0.0.1:{self.port}"}
        if secure:
            connection["root-certificates"] = str(self.credentials / "server/ca.crt")
        lines = [f'{key} = "{value}"' for key, value in connection.items()]
        lines += [] if secure else ["insecure = true"]
        config = "\n".join(['[superlink]\ndefault = "it"\n[superlink.it]', *lines, ""])
        (folder / "home/config.toml").write_text(config)

    # --- the server -------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Start the SuperLink and the SuperExec that runs the ServerApp."""
        self.start_superlink()
        self.start_superexec()

    def start_superlink(self) -> None:
        server = self.credentials / "server"
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt"]
        tls += ["--ssl-keyfile", "server.key"]
        tls = [part if part.startswith("--") else str(server / part) for part in tls]
        self._start(
            "superlink",
            "flower-superlink",
            *([*tls, "--enable-supernode-auth"] if self.secure else ["--insecure"]),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--database", str(self.folder / "superlink.db")),
            "--disable-runtime-dependency-installation",
            *self._isolation(server),
        )
        self._wait_for_health("superlink", self.port, tls=self.secure)

    def start_superexec(self) -> None:
        server = self.credentials / "server"
        self._start(
            "superexec",
            "flower-superexec",
            *self._trust(server),
            *("--runtime-api-address", f"127.0.0.1:{self.port}"),
            *("--superexec-auth-secret-file", str(server / "superexec.secret")),
        )

    def start_proxy(self) -> int:
        """Start the reverse proxy of `docker/nginx.conf`, and return its port."""
        port = _free_port()
        server = self.credentials / "server"
        config = (ROOT / "docker/nginx.conf").read_text()
        for old, new in {
            "pid /tmp/nginx.pid": f"pid {self.folder}/nginx.pid",
            "/tmp/nginx": f"{self.folder}/nginx",
            "resolver 127.0.0.11 valid=5s;": "",
            "listen 8443": f"listen 127.0.0.1:{port}",
            "/credentials": str(server),
            "$superlink superlink:8000": f"$superlink 127.0.0.1:{self.port}",
            "worker_processes 2;": "worker_processes 2; daemon off;",
        }.items():
            assert old in config
            config = config.replace(old, new)
        path = self.folder / "nginx.conf"
        path.write_text(config)
        self._start("proxy", str(shutil.which("nginx")), "-c", str(path))

        def listens() -> bool:
            assert self.alive("proxy"), self.log("proxy")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.until(listens, 10)
        return port

    # --- the clients ------------------------------------------------------------------------------

    def start_client(self, name: str, node_config: str = "", *, superlink_port: int = 0) -> None:
        """Start a SuperNode and the SuperExec that runs its ClientApp; register the key first."""
        first = name not in self._node_configs
        if first:
            self._node_configs[name] = f'client-name="{name}" {node_config}'.strip()
            self._node_ports[name] = _free_port()
            create_credentials(self.credentials, server="localhost", clients=[name])
            if self.secure:
                self._register(name)
        self._start_supernode(name, superlink_port or self.port)
        if f"{name}-superexec" not in self._processes:
            folder = self.credentials / f"clients/{name}"
            self._start(
                f"{name}-superexec",
                "flower-superexec",
                "--insecure",
                *("--runtime-api-address", f"127.0.0.1:{self._node_ports[name]}"),
                *("--superexec-auth-secret-file", str(folder / "superexec.secret")),
            )

    def restart_client(self, name: str) -> None:
        """Start a killed SuperNode again, as a supervisor does: until it stays up.

        With authentication the SuperLink refuses a key whose old node still counts as online.
        """
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            self._start_supernode(name, self.port)
            if self._comes_up(name, self._node_ports[name], tls=False):
                time.sleep(2)
                if self.alive(name):
                    return
            self._processes[name].wait()
        raise AssertionError(f"{name} does not come back:\n{self.log(name)}")

    def _start_supernode(self, name: str, superlink_port: int) -> None:
        folder = self.credentials / f"clients/{name}"
        key = ["--auth-supernode-private-key", str(folder / "client.key")] if self.secure else []
        self._start(
            name,
            "flower-supernode",
            *self._trust(folder),
            *key,
            *("--superlink", f"127.0.0.1:{superlink_port}"),
            *("--host", "127.0.0.1", "--port", str(self._node_ports[name])),
            *("--node-config", self._node_configs[name]),
            *self._isolation(folder),
        )

    def _trust(self, folder: Path) -> list[str]:
        return ["--root-certificates", str(folder / "ca.crt")] if self.secure else ["--insecure"]

    def _isolation(self, folder: Path) -> list[str]:
        secret = str(folder / "superexec.secret")
        return ["--isolation", "process", "--superexec-auth-secret-file", secret]

    # --- runs -------------------------------------------------------------------------------------

    def submit(self, app: Path, run_config: Mapping[str, Any]) -> str:
        """Start a run and return its id."""
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items())
        done = subprocess.run(
            [_script("flwr"), "run", str(app), "it", "--run-config", pairs, "--format", "json"],
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.startswith("{"), f"{done.stdout}{done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer.get("success"), answer
        return str(answer["run-id"])

    def control(self) -> ControlHttpClient:
        """A client of the Control API; the `flwr` command takes seconds to start."""
        address = f"127.0.0.1:{self.port}"
        if not self.secure:
            return ControlHttpClient.from_server_address(address, True, None, [])
        ca = (self.credentials / "server/ca.crt").read_bytes()
        return ControlHttpClient.from_server_address(address, False, ca, [])

    def status(self, run_id: str) -> str:
        """The run's status, such as `running` or `finished:completed`."""
        with self.control() as control:
            answer = control.ListRuns(ListRunsRequest(run_id=int(run_id)))
        status = answer.run_dict[int(run_id)].status
        return f"{status.status}:{status.sub_status}".rstrip(":")

    def run_log(self, run_id: str) -> str:
        """What the ServerApp printed and logged."""
        with self.control() as control:
            parts = control.StreamLogs(StreamLogsRequest(run_id=int(run_id), after_timestamp=0.0))
            return "".join(part.log_output for part in parts)

    def online(self) -> dict[str, int]:
        """The ids of the nodes that count as online, by client name (`""` without one)."""
        with self.control() as control:
            nodes = control.ListNodes(ListNodesRequest()).nodes_info
        return {node.name: node.node_id for node in nodes if node.status == "online"}

    def _register(self, name: str) -> None:
        key = try_load_public_key(self.credentials / f"server/clients/{name}.pub")
        with self.control() as control:
            assert control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id

    def wait(self, run_id: str, seconds: float = 240) -> str:
        """Wait for a run's end and return its status."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError):  # its database may be locked for seconds
                status = self.status(run_id)
                if status.startswith("finished"):
                    return status
            time.sleep(1)
        raise AssertionError(f"run {run_id} did not end in {seconds} s:\n{self.run_log(run_id)}")

    # --- processes --------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill a process and what it started, at once."""
        process = self._processes.pop(name)
        family = [*process.children(recursive=True), process]
        for member in family:
            member.send_signal(signal.SIGKILL)
        process.wait()
        psutil.wait_procs(family, timeout=10)

    def children(self, name: str) -> list[psutil.Process]:
        """The processes that `name` started: the running apps of a SuperExec."""
        return self._processes[name].children(recursive=True)

    def alive(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name) if self.alive(name) else self._processes.pop(name)

    def until(self, holds: Callable[[], Any], seconds: float = 120) -> None:
        """Wait until `holds()` is true."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"waited {seconds} s\n{self.log('superexec')}"
            time.sleep(0.1)

    def _start(self, name: str, script: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = psutil.Popen(
                [script if "/" in script else _script(script), *arguments],
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _wait_for_health(self, name: str, port: int, *, tls: bool) -> None:
        assert self._comes_up(name, port, tls=tls), f"{name} is not up:\n{self.log(name)}"

    def _comes_up(self, name: str, port: int, *, tls: bool) -> bool:
        context = ssl.create_default_context(cafile=self.credentials / "server/ca.crt")
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/health"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.alive(name):
            try:
                urllib.request.urlopen(url, timeout=5, context=context if tls else None).close()
            except OSError:
                time.sleep(0.1)
            else:
                return True
        return False

    def _environment(self) -> dict[str, str]:
        scripts = sysconfig.get_path("scripts")
        return {
            **os.environ,
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
            "PYTHONPATH": "",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "MALLOC_MMAP_THRESHOLD_": "1048576",
        }


def _script(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
