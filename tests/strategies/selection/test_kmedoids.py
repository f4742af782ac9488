"""The k-medoids libraries behind one function, compared with each other."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from strategies.selection import cluster_sckm
from strategies.selection.kmedoids import improve_medoids

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".venv-sklearn-extra"
PACKAGES = ["numpy<2", "scikit-learn<1.10", "scikit-learn-extra==0.3.0"]

# Runs in the other environment. `strategies` itself imports Flower, which is not there, so the
# package is entered without running its __init__.
OTHER = """
import sys, types
import numpy as np
package = types.ModuleType("strategies")
package.__path__ = [sys.argv[1]]
sys.modules["strategies"] = package
from strategies.selection.cluster import cluster_sckm
with np.load(sys.argv[2]) as problems:
    losses = {
        name: cluster_sckm(
            problems[name], 10, rng=np.random.default_rng(0), backend="sklearn-extra"
        ).losses
        for name in problems
    }
np.savez(sys.argv[3], **losses)
"""


def distances(seed, n=60):
    points = np.random.default_rng(seed).standard_normal((n, 3))
    matrix = np.linalg.norm(points[:, None] - points, axis=2)
    return (matrix / matrix.max()).astype(np.float32)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 5, 30, 59])
def test_no_single_swap_improves_the_result(seed, count):
    matrix = distances(seed)
    before = matrix.copy()
    start = np.random.default_rng(seed).choice(60, count, replace=False)
    medoids = improve_medoids(matrix, start, "onebatch")
    np.testing.assert_array_equal(matrix, before)
    assert len(set(medoids)) == count
    loss = matrix[medoids].min(axis=0).sum(dtype=np.float64)
    assert loss <= matrix[start].min(axis=0).sum(dtype=np.float64) * (1 + 1e-6)
    for position in range(count):
        kept = matrix[np.delete(medoids, position)].min(axis=0)
        swapped = np.minimum(kept, matrix).sum(axis=1, dtype=np.float64)
        assert swapped.min() >= loss * (1 - 1e-4)


def test_a_missing_library_says_what_it_needs():
    try:
        import sklearn_extra.cluster  # noqa: F401
    except (ImportError, ValueError):
        with pytest.raises(ImportError, match="NumPy < 2"):
            improve_medoids(distances(0), np.arange(3), "sklearn-extra")
    else:
        pytest.skip("scikit-learn-extra loads here")


@pytest.fixture(scope="module")
def other_python():
    """Return the interpreter of an environment with scikit-learn-extra, made when missing."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("scikit-learn-extra 0.3.0 needs Python 3.11")
    folder = "Scripts" if sys.platform == "win32" else "bin"
    python = ENVIRONMENT / folder / "python"
    probe = [python, "-c", "import sklearn_extra.cluster"]
    if not python.exists() or subprocess.run(probe, capture_output=True).returncode:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        install = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *PACKAGES], capture_output=True, text=True
        )
        if install.returncode:
            reason = (install.stderr.strip().splitlines() or ["no message"])[-1]
            pytest.skip(f"scikit-learn-extra cannot be installed: {reason}")
    return python


@pytest.mark.slow
def test_both_libraries_reach_the_same_loss(other_python, tmp_path):
    random = np.random.default_rng(0)
    problems = {}
    for index in range(50):
        clients, entries, kinds = random.integers([20, 5, 2], [80, 60, 8])
        centres = 2 * random.standard_normal((kinds, entries))
        noise = random.standard_normal((clients, entries))
        problems[str(index)] = centres[random.integers(0, kinds, clients)] + noise
    np.savez(tmp_path / "problems.npz", **problems)
    subprocess.run(
        [
            other_python,
            "-c",
            OTHER,
            ROOT / "strategies",
            tmp_path / "problems.npz",
            tmp_path / "losses.npz",
        ],
        check=True,
    )
    with np.load(tmp_path / "losses.npz") as losses:
        for name, sketches in problems.items():
            ours = cluster_sckm(sketches, 10, rng=np.random.default_rng(0)).losses
            np.testing.assert_allclose(losses[name], ours, rtol=0.01)
