"""SCKM-Select (SCKM paper, Algorithm 1)."""

from __future__ import annotations

from typing import Any, Literal

from strategies.selection.selectors import SCKMSelector
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["SCKMSelect"]
