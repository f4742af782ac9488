from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gamma

from simulation.reproduce.cgg import density, expansion, exponent, figure_2, moments
from simulation.reproduce.item import Options


@pytest.mark.parametrize("rho", [0.0, 0.4, -0.7])
def test_mass_is_that_of_the_change_of_variables(rho: float) -> None:
    mass, third, kurtosis = moments(rho)
    constant = 4 / (3 ** (2 / 3) * math.pi) * gamma(2 / 3)
    assert mass == pytest.approx(constant * 4 * gamma(4 / 3) ** 2 / (1 - rho**2), rel=1e-5)
    assert third == pytest.approx(0, abs=1e-12)
    if rho == 0:  # a generalized normal with beta = 3
        assert kurtosis == pytest.approx(gamma(5 / 3) * gamma(1 / 3), rel=1e-4)


def test_expansion_holds_with_what_it_lacks() -> None:
    u, v = np.random.default_rng(0).uniform(0, 1, (2, 50))
    rho = 0.6
    missing = 3 * rho**2 * (u**2 * v + u * v**2)
    np.testing.assert_allclose(exponent(u, v, rho), expansion(u, v, rho) + missing)
    np.testing.assert_allclose(exponent(u, v, 0), expansion(u, v, 0))


def test_density_is_even_and_symmetric() -> None:
    u, v = np.random.default_rng(1).standard_normal((2, 50))
    np.testing.assert_array_equal(density(u, v, 0.3), density(-u, -v, 0.3))
    np.testing.assert_allclose(density(u, v, 0.3), density(v, u, 0.3))


@pytest.mark.parametrize("rho", [1.0, -1.0, math.nan])
def test_full_coupling_has_no_mass(rho: float) -> None:
    with pytest.raises(ValueError, match="rho = "):
        moments(rho)


def test_findings(tmp_path: Path) -> None:
    findings = figure_2(Options(out=tmp_path, full=False))
    assert [claim.holds for claim in findings.claims] == [False] * 4
    (picture,) = findings.pictures
    assert all(len(panel.collections) for panel in picture.figure.axes)
    assert all(len(row) == len(findings.tables[0].headings) for row in findings.tables[0].rows)
