"""Who is who: nodes, client names, and what the server remembers of each client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.naming import natural_key

__all__ = ["Pool", "Roster"]


@dataclass(frozen=True)
class Pool:
    """The clients that could be asked in this round, sorted by name.

    Attributes
    ----------
    names : tuple of N str
        Client names.
    examples : array of shape (N,), int64
        Local training examples; 1 where not known yet.
    ages : array of shape (N,), int64
        Rounds since the client was last selected; the round number if it never was.
    seconds : array of shape (N,), float64
        Latest reply time; NaN if none was measured.
    """

    names: tuple[str, ...]
    examples: NDArray[np.int64]
    ages: NDArray[np.int64]
    seconds: NDArray[np.float64]


class Roster:
    """Maps Flower's node ids, which change when a node reconnects, to client names, which stay."""

    def __init__(self) -> None:
        self._name_of: dict[int, str] = {}
        self._examples: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._selected_in: dict[str, int] = {}

    def name(self, node: int) -> str | None:
        """Return the client's name, or None before it has given one."""
        return self._name_of.get(node)

    def label(self, node: int) -> str:
        """Return the client's name, or the node id for a node without one."""
        return self._name_of.get(node, f"node {node}")

    def nodes_by_name(self, nodes: Iterable[int]) -> dict[str, int]:
        """Map the names of nodes to the nodes; of two with one name, the one introduced last."""
        present = set(nodes)
        return {name: node for node, name in self._name_of.items() if node in present}

    def introduce(self, node: int, name: str, examples: int) -> None:
        """Note what a node's reply says of its client."""
        self._name_of[node] = name
        self._examples[name] = examples

    def time(self, name: str, seconds: float) -> None:
        """Note how long a client's reply took."""
        self._seconds[name] = seconds

    def select(self, names: Iterable[str], server_round: int) -> None:
        """Note that clients were selected; one that then fails has had its turn all the same."""
        self._selected_in.update(dict.fromkeys(names, server_round))

    def ages(self, names: Iterable[str], server_round: int) -> NDArray[np.int64]:
        """Return the rounds since each client was selected, int64."""
        return np.array(
            [server_round - self._selected_in.get(name, 0) for name in names], dtype=np.int64
        )

    def seconds(self, names: Iterable[str]) -> NDArray[np.float64]:
        """Return each client's latest reply time in seconds, float64, NaN if there is none."""
        return np.array([self._seconds.get(name, np.nan) for name in names])

    def pool(self, names: Iterable[str], server_round: int) -> Pool:
        """Return what is known of the named clients, sorted by name."""
        ordered = tuple(sorted(names, key=natural_key))
        return Pool(
            names=ordered,
            examples=np.array([self._examples.get(n, 1) for n in ordered], dtype=np.int64),
            ages=self.ages(ordered, server_round),
            seconds=self.seconds(ordered),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: everything by name, nothing by node id."""
        return {
            "examples": dict(self._examples),
            "seconds": dict(self._seconds),
            "selected-in": dict(self._selected_in),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._examples = dict(state["examples"])
        self._seconds = dict(state["seconds"])
        self._selected_in = dict(state["selected-in"])
