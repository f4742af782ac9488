"""The tables and figures of the SCKM paper, in its order."""

from __future__ import annotations

from simulation.reproduce.cgg import figure_2
from simulation.reproduce.item import Item
from simulation.reproduce.probe import table_3, table_4
from simulation.reproduce.sckm_accuracy import figure_3, figure_4, figure_5, table_5, table_6

__all__ = ["ITEMS"]

ITEMS: tuple[Item, ...] = (
    Item("figure-2", "densities of the coupled generalized Gaussian", figure_2),
    Item("table-3", "features of pairs of clients, ranked", table_3),
    Item("table-4", "relative accuracy of features of pairs", table_4),
    Item("figure-4", "accuracy of SCKM-Select on CIFAR-10", figure_4),
    Item("table-5", "averages of SCKM-Select on CIFAR-10", table_5),
    Item("figure-3", "number of clusters on CIFAR-100", figure_3),
    Item("figure-5", "accuracy of SCKM-Cluster on CIFAR-100", figure_5),
    Item("table-6", "averages of SCKM-Cluster on CIFAR-100", table_6),
)
