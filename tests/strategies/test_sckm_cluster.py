from __future__ import annotations

from fakes import StubClients, stub_model

from simulation.inline import InlineGrid
from strategies import RoundRecord, SCKMCluster, SketchSpec


def test_each_round_counts_its_clusters_and_their_mean() -> None:
    """Eq. 10: the floor of the mean number of clusters over the rounds so far."""
    clients = StubClients()
    records: list[RoundRecord] = []
    strategy = SCKMCluster(clients_per_round=4, min_clusters=2, sketch=SketchSpec(ratio=0.1))
    strategy.start(
        InlineGrid(clients.app, 12),
        stub_model(),
        num_rounds=6,
        evaluate_every=0,
        on_round=lambda record, model: records.append(record),
    )
    counts = [record.diagnostics["clusters"] for record in records]
    assert all(2 <= count <= 12 for count in counts)
    assert [record.diagnostics["mean-clusters"] for record in records] == [
        sum(counts[:t]) // t for t in range(1, 7)
    ]
    for record in records:
        line = record.to_json()
        assert line["clusters"] == record.diagnostics["clusters"]
        assert len(set(record.selected)) == 4
        assert set(record.scores) == {str(i) for i in range(12)}
