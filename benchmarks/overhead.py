"""Time per message of a two-phase round against Flower's own FedAvg, on one Ray simulation.

Run with `make bench-overhead`. The two-phase round asks all clients and trains a third of them. It
is held against FedAvg that trains all of them, and against FedAvg that trains a third of them too.
The strategies take turns within one run; a ratio is the median over the turns.
"""

import json
import statistics
import tempfile
from pathlib import Path

from simulation.flower import run_on_ray

APP = Path(__file__).parent / "overhead_app"
BOUNDS = {10: 0.6, 100: 1.0}
ROUNDS = {10: 20, 100: 5}
REPEATS = 5


def main() -> None:
    print(
        f"{'clients':>7}  {'FedAvg trains':>13}  {'FedAvg':>9}  {'two-phase':>9}  {'ratio':>6}  "
        "bound"
    )
    for clients, bound in BOUNDS.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "times.json"
            config = {"out": str(out), "rounds": ROUNDS[clients], "repeats": REPEATS}
            run_on_ray(APP, config, num_clients=clients, on_line=lambda line: None)
            times = json.loads(out.read_text())
        ours = statistics.median(turn["two-phase"] for turn in times)
        for which, trained in (("all", clients), ("cohort", clients // 3)):
            flower = statistics.median(turn[which] for turn in times)
            ratio = statistics.median(turn["two-phase"] / turn[which] for turn in times)
            verdict = "" if ratio <= bound else "  MISSED"
            print(
                f"{clients:>7}  {trained:>13}  {1e3 * flower:6.2f} ms  {1e3 * ours:6.2f} ms  "
                f"{ratio:6.2f}  {bound:5.1f}{verdict}"
            )


if __name__ == "__main__":
    main()
