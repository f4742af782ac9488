"""In a deployment every message starts a Python process: what is imported is waited for."""

import json
import os
import subprocess
import sys

SCRIPT = """
import json, sys
import client.app
from client.identity import local_data
from flwr.app import Context, RecordDict
from server.config import RunConfig
from tasks.config import TaskConfig

config = RunConfig().to_run_config()
node = {"partition-id": 0, "num-partitions": 3}
context = Context(0, 0, node, RecordDict(), config)
examples = len(local_data(context, TaskConfig.from_run_config(config)).y_train)
before = "torch" in sys.modules
from client import training
print(json.dumps([examples, before, "torch" in sys.modules]))
"""


def test_torch_is_imported_only_to_train() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    examples, before, after = json.loads(done.stdout.splitlines()[-1])
    assert examples > 0
    assert not before
    assert after
