"""Run a Flower App on Flower's Ray backend, and end every process that was started for it.

`flwr run` alone leaves a SuperLink behind and exits with 0 even when the ServerApp raised. Here
each run, or each `superlink()` block, has a SuperLink of its own, and whether a run succeeded is
judged by the status that SuperLink reports.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sysconfig
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import tomli_w

from server.errors import UserError

__all__ = ["RunFailed", "SuperLink", "run_on_ray", "superlink"]

Scalar = bool | int | float | str

_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_CONNECTION = "sim"  # the name flwr knows this SuperLink by


class RunFailed(UserError):  # noqa: N818, reads as what happened
    """A run did not complete.

    The message is one line for the user; `log` holds everything the run printed.
    """

    def __init__(self, message: str, log: str = "") -> None:
        """Make one line of `message`."""
        super().__init__(" ".join(message.split()))
        self.log = log


def run_on_ray(
    app_dir: Path,
    run_config: Mapping[str, Scalar],
    *,
    num_clients: int,
    cpus: int | None = None,
    on_line: Callable[[str], None] = print,
) -> None:
    """Run the Flower App in `app_dir` once, each client on one CPU of a Ray pool.

    Parameters
    ----------
    app_dir : Path
        The folder with the app's `pyproject.toml`.
    run_config : mapping
        Run-config keys to override. Paths in it must be absolute: the run has another working
        directory.
    num_clients : int
        Simulated SuperNodes, at least 1.
    cpus : int, optional
        CPUs for Ray, which is also how many clients work at a time; by default all this process
        may use.
    on_line : callable
        Called with each line the ServerApp prints or logs, without Flower's own messages.

    Raises
    ------
    RunFailed
        If the app, a key or a number is not valid, or the run did not complete.
    """
    _check(app_dir, run_config, num_clients, cpus)
    with superlink() as link:
        link.run(app_dir, run_config, num_clients=num_clients, cpus=cpus, on_line=on_line)


@contextmanager
def superlink() -> Iterator[SuperLink]:
    """Start a SuperLink on a free loopback port and end it, with its children, on leaving.

    Raises
    ------
    RunFailed
        If it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="muster-") as home:
        link = SuperLink(Path(home))
        try:
            link._wait_until_up()
            yield link
        finally:
            link._stop()


class SuperLink:
    """A running SuperLink; made by `superlink()`."""

    def __init__(self, home: Path) -> None:
        """Start the process; `home` is an empty folder for its files."""
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}/health"
        self._home = home
        connection = {"address": f"127.0.0.1:{port}", "insecure": True}
        config = {"superlink": {"default": _CONNECTION, _CONNECTION: connection}}
        (home / "config.toml").write_text(tomli_w.dumps(config))
        self._env = _environment(home)
        # Ray looks for packages in the SuperLink's working directory before the app's: an empty
        # one holds no stale copies.
        self._cwd = home / "cwd"
        self._cwd.mkdir()
        self._log = home / "superlink.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    _script("flower-superlink"),
                    *("--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)),
                ],
                cwd=self._cwd,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends the others
            )

    def run(
        self,
        app_dir: Path,
        run_config: Mapping[str, Scalar],
        *,
        num_clients: int,
        cpus: int | None = None,
        on_line: Callable[[str], None] = print,
    ) -> None:
        """Run an app and wait for its end; parameters and errors as for `run_on_ray`."""
        app_dir = app_dir.resolve()
        _check(app_dir, run_config, num_clients, cpus)
        cpus = cpus or _available_cpus()
        config_file = self._home / "run.toml"
        config_file.write_text(tomli_w.dumps(dict(run_config)))
        federation = (
            f"num-supernodes={num_clients} client-resources-num-cpus=1 init-args-num-cpus={cpus}"
        )
        submitted = self._flwr_json(
            *("run", str(app_dir), _CONNECTION),
            *(("--run-config", str(config_file)) if run_config else ()),
            *("--federation-config", federation),
        )
        run_id = str(submitted["run-id"])
        log: list[str] = []
        for line in _own_lines(self._stream(run_id), log):
            on_line(line)
        self._check_status(run_id, log)

    def _stream(self, run_id: str) -> Iterator[str]:
        """Yield the run's log line by line until the run ends."""
        command = [_script("flwr"), "log", run_id, _CONNECTION, "--stream"]
        with subprocess.Popen(
            command,
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            try:
                yield from process.stdout
            finally:
                process.kill()

    def _check_status(self, run_id: str, log: list[str]) -> None:
        """Raise unless the run completed. The log may end a little before the run does."""
        text = "\n".join(log)
        for _ in range(30):
            if self._process.poll() is not None:
                raise RunFailed("the SuperLink ended during the run", text)
            listed = self._flwr_json("list", _CONNECTION, "--run-id", run_id)
            run = listed["runs"][0]
            if run["status"].startswith("finished"):
                break
            time.sleep(1.0)
        if run["status"] != "finished:completed":
            raise RunFailed(_reason(run["status"], run["status-details"], log), text)

    def _flwr_json(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [_script("flwr"), *arguments, "--format", "json"],
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if not answer.get("success"):
            message = answer.get("error-message") or done.stderr or done.stdout
            last = [line for line in message.splitlines() if line.strip()][-1:]
            raise RunFailed(f"flwr {arguments[0]} failed: {''.join(last)}", message)
        return answer

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(self._url):
                return
            time.sleep(0.05)
        log = self._log.read_text(errors="replace")
        last = [line for line in log.splitlines() if line.strip()][-1:]
        raise RunFailed(f"Flower's SuperLink did not start: {''.join(last)}", log)

    def _stop(self) -> None:
        """End the SuperLink and all that it started; its SuperExec has a session of its own."""
        processes = []
        with suppress(psutil.NoSuchProcess):
            superlink_process = psutil.Process(self._process.pid)
            processes = [*superlink_process.children(recursive=True), superlink_process]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=_STOP_SECONDS)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()


def _available_cpus() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _script(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


def _environment(home: Path) -> dict[str, str]:
    """Return the environment for Flower's processes, which find one another by PATH."""
    python_path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]),
        # Relative entries would mean another folder in the SuperLink's working directory.
        "PYTHONPATH": os.pathsep.join(
            str(Path(entry).resolve()) for entry in python_path.split(os.pathsep) if entry
        ),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore::FutureWarning",  # Ray's tip about a future default
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _check(
    app_dir: Path, run_config: Mapping[str, Scalar], num_clients: int, cpus: int | None
) -> None:
    """Raise for what can be known to be wrong before anything is started."""
    if num_clients < 1:
        raise RunFailed(f"clients: {num_clients} is not allowed; at least 1")
    available = _available_cpus()
    if cpus is not None and not 1 <= cpus <= available:
        raise RunFailed(f"cpus: {cpus} is not allowed; 1 to {available}, what this machine has")
    # Of a wrong key Flower says no more than that the configuration is invalid.
    try:
        project = tomllib.loads((app_dir / "pyproject.toml").read_text())
    except FileNotFoundError:
        raise RunFailed(f"{app_dir} is not a Flower App: it has no pyproject.toml") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise RunFailed(f"{app_dir / 'pyproject.toml'}: {error}") from None
    app = project.get("tool", {}).get("flwr", {}).get("app")
    if app is None:
        raise RunFailed(f"{app_dir} is not a Flower App: pyproject.toml has no [tool.flwr.app]")
    allowed = app.get("config", {})
    for key in run_config:
        if key not in allowed:
            raise RunFailed(f"{key}: unknown key; allowed are {', '.join(sorted(allowed))}")


_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) *: {0,6}(.*)")
_NOISE = re.compile(
    r"Using SuperLink:|Starting Flower Simulation|Starting logstream|Successfully installed "
    r"|Since flwr 1\.32|Federation `.*simulated SuperNodes|To change federation size"
    r"|\s*flwr federation simulation-config|Manually terminating|Stopping Simulation Runtime"
    r"|\(\w+ pid=\d+\)|\(raylet\)|\[\d{4}-\d\d-\d\d .*core_worker"
)


def _own_lines(lines: Iterable[str], log: list[str]) -> Iterator[str]:
    """Yield what the ServerApp itself prints, without level prefixes; append all lines to `log`.

    After an error Flower logs the traceback, often several times over: nothing is yielded from
    there on, for the run's status tells the reason.
    """
    failing = False
    started = False
    for raw in lines:
        line = _STYLE.sub("", raw).rstrip()
        log.append(line)
        level = _LEVEL.fullmatch(line)
        text = level[2] if level else line
        failing = failing or (level is not None and level[1] in ("ERROR", "CRITICAL"))
        if failing or _NOISE.match(text):
            continue
        started = started or bool(text)
        if started:
            yield text


def _reason(status: str, details: str, log: list[str]) -> str:
    """Return one line saying why a run did not complete."""
    if any("ActorPool is empty" in line for line in log):
        return "too few CPUs: Ray cannot hold even one client"
    if status == "finished:stopped":
        return "the run was stopped"
    reason = details.removeprefix("Simulation failed with exception: ")
    if "An error was encountered" in reason or reason in ("", "N/A"):
        # Flower hides the cause: take the first exception of the traceback it logged.
        errors = [
            line for line in log if re.match(r"[A-Za-z_.]+(Error|Exception|Exit)\b.*: ", line)
        ]
        reason = errors[0] if errors else reason
    return reason
