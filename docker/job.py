#!/usr/bin/env python
"""Use the deployment from its own network.

job register FOLDER        register every client key (*.pub) in a folder; known ones are skipped
job run [OPTIONS]          `flwr run` with these options; wait for the end, exit with 0 only if
                           the run completed (`flwr run --stream` exits with 0 whatever became
                           of it)
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

APP, CONNECTION = "/app", "deployment"


def flwr(*arguments: str) -> dict[str, Any]:
    """Run a flwr command and return its JSON answer."""
    done = subprocess.run(
        ["flwr", *arguments, "--format", "json"], capture_output=True, text=True, check=False
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {"success": False, "error-message": done.stderr or done.stdout}
    return answer


def require(answer: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the answer, or end with its error."""
    if not answer.get("success"):
        sys.exit(f"{what}: {answer.get('error-message')}")
    return answer


def register(folder: Path) -> None:
    """Register every key in a folder."""
    for key in sorted(folder.glob("*.pub")):
        answer = flwr("supernode", "register", str(key), CONNECTION, "--name", key.stem)
        if "already in use" not in str(answer.get("error-message")):
            require(answer, f"registering {key.stem}")
        print(f"registered: {key.stem}", flush=True)


def run(options: list[str]) -> None:
    """Run the app to its end."""
    run_id = str(require(flwr("run", APP, CONNECTION, *options), "flwr run")["run-id"])
    log = subprocess.Popen(["flwr", "log", run_id, CONNECTION, "--stream"])
    while True:
        # The log's stream ends with the run, or earlier if the SuperLink is restarted.
        with contextlib.suppress(subprocess.TimeoutExpired):
            log.wait(timeout=15)
        answer = require(flwr("list", CONNECTION, "--run-id", run_id), "flwr list")
        status = answer["runs"][0]["status"]
        if status.startswith("finished"):
            break
        if log.poll() is not None:
            time.sleep(5)
    log.terminate()
    log.wait()
    print(f"run {run_id}: {status} {answer['runs'][0].get('status-details', '')}", flush=True)
    sys.exit(status != "finished:completed")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "register":
        register(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["run"]:
        run(sys.argv[2:])
    else:
        sys.exit(__doc__)
