#!/usr/bin/env python
"""Register client keys, run the app to its end, and exit with 0 only if it completed.

`flwr run --stream` exits with 0 whatever became of the run, so its status is asked for.
Usage: job [--register FOLDER] [flwr run's options]
"""

import json
import subprocess
import sys
import time
from pathlib import Path

APP, CONNECTION = "/app", "deployment"


def flwr(*arguments: str) -> dict:
    """Run a flwr command and return its JSON answer; end if it failed."""
    done = subprocess.run(
        ["flwr", *arguments, "--format", "json"], capture_output=True, text=True, check=False
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"flwr {arguments[0]} failed: {done.stderr or done.stdout}")
    if not answer.get("success"):
        sys.exit(f"flwr {arguments[0]} failed: {answer.get('error-message')}")
    return answer


def main() -> None:
    """Do what the docstring above says."""
    options = sys.argv[1:]
    if options[:1] == ["--register"]:
        for key in sorted(Path(options[1]).glob("*.pub")):
            flwr("supernode", "register", str(key), CONNECTION, "--name", key.stem)
        options = options[2:]
    run_id = str(flwr("run", APP, CONNECTION, *options)["run-id"])
    log = subprocess.Popen(["flwr", "log", run_id, CONNECTION, "--stream"])
    while True:
        time.sleep(2)
        run = flwr("list", CONNECTION, "--run-id", run_id)["runs"][0]
        if run["status"].startswith("finished"):
            break
    time.sleep(1)
    log.terminate()
    log.wait()
    print(f"run {run_id}: {run['status']} {run.get('status-details', '')}", flush=True)
    sys.exit(run["status"] != "finished:completed")


main()
