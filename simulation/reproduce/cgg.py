"""The coupled generalized-Gaussian densities of the SCKM paper (section 9, Figure 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray
from scipy.special import gamma

from simulation.charts import COLOURS
from simulation.reproduce.item import Claim, Findings, Options, Picture
from simulation.table import Table

__all__ = ["density", "expansion", "exponent", "figure_2", "moments"]

_CONSTANT = 4 / (3 ** (2 / 3) * math.pi) * gamma(2 / 3)  # as printed in Eqs. 16 and 17
_COUPLINGS = (-0.5, -0.25, 0.0, 0.25, 0.5, 0.75)
_LEVELS = (0.9, 0.5, 0.1, 0.01)  # of the density's peak
_GAUSSIAN_KURTOSIS = 3.0


def exponent(g1: ArrayLike, g2: ArrayLike, rho: float) -> NDArray[np.float64]:
    """Return the bracket in Eq. 16 with unit scales: |g1 + rho g2|³ + |g2 + rho g1|³."""
    u, v = np.asarray(g1, dtype=np.float64), np.asarray(g2, dtype=np.float64)
    return np.asarray(np.abs(u + rho * v) ** 3 + np.abs(v + rho * u) ** 3)


def density(g1: ArrayLike, g2: ArrayLike, rho: float) -> NDArray[np.float64]:
    """Return Eq. 16 as printed, with unit scales.

    Parameters
    ----------
    g1, g2 : arrays of one shape
        Gradient coordinates of two clients, each in units of its scale.
    rho : float
        The coupling.
    """
    return np.asarray(_CONSTANT * np.exp(-exponent(g1, g2, rho)))


def expansion(g1: ArrayLike, g2: ArrayLike, rho: float) -> NDArray[np.float64]:
    """Return the bracket in Eq. 17 as printed, with unit scales."""
    u, v = np.asarray(g1, dtype=np.float64), np.asarray(g2, dtype=np.float64)
    return np.asarray((1 + rho**3) * (u**3 + v**3) + 3 * rho * (u**2 * v + u * v**2))


def moments(rho: float, *, points: int = 1200) -> tuple[float, float, float]:
    """Return integrals over Eq. 16 by the midpoint rule, for |rho| < 1.

    Returns
    -------
    total mass; E[G1² G2]; and the kurtosis E[G1⁴] / E[G1²]² of a coordinate, the expectations under
    the density divided by its mass.

    Raises
    ------
    ValueError
        If |rho| is 1 or more: the mass is infinite at 1.
    """
    if not abs(rho) < 1:
        raise ValueError(f"rho = {rho:g}: must be in (-1, 1)")
    # The longest axis of a level set grows as 1 / (1 - |rho|); exp(-3³) is nothing.
    reach = 3.0 / (1 - abs(rho))
    step = 2 * reach / points
    axis = -reach + step * (np.arange(points) + 0.5)
    u, v = axis[:, np.newaxis], axis[np.newaxis, :]
    weights = density(u, v, rho) * step**2
    mass = weights.sum()
    second, fourth = (float((weights * u**k).sum() / mass) for k in (2, 4))
    third = float((weights * u**2 * v).sum() / mass)
    return float(mass), third, fourth / second**2


def figure_2(options: Options) -> Findings:
    """Draw Eq. 16 for several couplings, and check what the paper says of it; nothing is run."""
    found = {rho: moments(rho) for rho in _COUPLINGS}
    grid = np.linspace(-1, 1, 201)
    u, v = grid[:, np.newaxis], grid[np.newaxis, :]
    gaps = {rho: np.abs(exponent(u, v, rho) - expansion(u, v, rho)) for rho in _COUPLINGS}
    positive = {rho: float(gap[100:, 100:].max()) for rho, gap in gaps.items()}
    rows = tuple(
        (
            f"{rho:g}",
            f"{mass:.4f}",
            f"{1 - rho**2:.4f}",
            f"{kurtosis:.3f}",
            f"{third:.1e}",
            f"{gaps[rho].max():.3f}",
            f"{positive[rho]:.3f}",
        )
        for rho, (mass, third, kurtosis) in found.items()
    )
    headings = (
        "ρ",
        "mass of Eq. 16",
        "|det| of Eqs. 14, 15",
        "kurtosis of G1",
        "E[G1² G2]",
        "Eq. 17 off by at most",
        "the same, G1, G2 ≥ 0",
    )
    note = (
        "Unit scales, by numerical integration; kurtosis and E[G1² G2] of the density scaled to "
        "mass 1. Off by: the bracket of Eq. 17 against that of Eq. 16 on [-1, 1]²."
    )
    return Findings(
        title="Figure 2: densities of the coupled generalized Gaussian",
        notes=_NOTES,
        tables=(Table(headings, rows, note),),
        pictures=(
            Picture(
                "figure-2",
                _level_sets(_COUPLINGS),
                "level sets of the density of two clients' gradient coordinates, one panel for "
                f"each ρ of {', '.join(f'{rho:g}' for rho in _COUPLINGS)}",
            ),
        ),
        claims=_claims(found, positive),
    )


_NOTES = (
    "Level sets of Eq. 16 with σ1 = σ2 = 1; nothing is random here. Which ρ the paper's figure has "
    "is not in its text.",
    "Eq. 16 is not normalised. Its integral is the printed constant times 4 Γ(4/3)² / (1 - ρ²), so "
    "the constant should be (1 - ρ²) / (4 Γ(4/3)² σ1 σ2): the determinant of Eqs. 14 and 15 is "
    "missing, and at ρ = 0 the printed one is too large by a factor of 2.6. At |ρ| = 1, which the "
    "paper allows, the integral is infinite. This scales the density and moves no level set.",
    "Eq. 17 is not the expansion of Eq. 16: it has x³ where Eq. 16 has |x|³, so that it grows "
    "without bound where the coordinates are negative, and even for positive ones the cross term "
    "lacks a factor 1 + ρ (and with general scales has σ1 σ2 for σ1² σ2² in the denominator).",
    "Eq. 16 is the same at (g1, g2) and (-g1, -g2). So every odd moment is 0, E[G1² G2] and with "
    "it the expected SCKM of two clients included, whatever ρ is: the model does not explain why "
    "SCKM should tell pairs apart. With β = 3 the tails are lighter than a Gaussian's, not "
    "heavier, and a coordinate's marginal is generalized normal for ρ = 0 alone.",
    "ρ acts by a linear map, so that every level set is a linear image of |x|³ + |y|³ = const; it "
    "is stretched along a diagonal, but no farther from an ellipse for a larger |ρ|.",
)


def _claims(
    found: dict[float, tuple[float, float, float]], positive: dict[float, float]
) -> tuple[Claim, ...]:
    masses = [mass for mass, _, _ in found.values()]
    thirds = [abs(third) for _, third, _ in found.values()]
    kurtoses = [kurtosis for _, _, kurtosis in found.values()]
    return (
        Claim(
            "Eq. 16 is a density: it integrates to 1 for every ρ",
            bool(np.allclose(masses, 1, atol=1e-3)),
            f"{min(masses):.3f} to {max(masses):.3f}",
        ),
        Claim(
            "Eq. 17 expands Eq. 16, where both coordinates are positive",
            max(positive.values()) < 1e-9,
            f"the brackets differ by up to {max(positive.values()):.3f} on [0, 1]²",
        ),
        Claim(
            "ρ ≠ 0 makes the third-order co-moment E[G1² G2] differ from 0",
            max(thirds) > 1e-6,
            f"at most {max(thirds):.1e}",
        ),
        Claim(
            "the model has heavy tails: kurtosis above a Gaussian's 3",
            min(kurtoses) > _GAUSSIAN_KURTOSIS,
            f"{min(kurtoses):.3f} to {max(kurtoses):.3f}",
        ),
    )


def _level_sets(couplings: Sequence[float]) -> Figure:
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    panels = figure.subplots(2, math.ceil(len(couplings) / 2), sharex=True, sharey=True)
    axis = np.linspace(-4, 4, 401)
    u, v = np.meshgrid(axis, axis)
    colours = COLOURS[: len(_LEVELS)]
    for panel, rho in zip(panels.flat, couplings, strict=True):
        values = np.exp(-exponent(u, v, rho))
        panel.contour(u, v, values, levels=sorted(_LEVELS), colors=colours[::-1], linewidths=1.4)
        panel.set_title(f"ρ = {rho:g}", fontsize=10)
        panel.set_aspect("equal")
        panel.grid(color="#DDDDDD", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("gradient coordinate of client 1, g1 (units of σ1)", fontsize=10)
    figure.supylabel("gradient coordinate of client 2, g2 (units of σ2)", fontsize=10)
    handles = [Line2D([], [], color=colour) for colour in colours]
    labels = [f"{100 * level:g}% of the peak" for level in _LEVELS]
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure
