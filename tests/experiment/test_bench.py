"""`headway bench` is quick, complete and readable."""

import pytest

from headway.core.errors import UserError
from headway.experiment import bench as benches
from headway.experiment.bench import Size, bars, bench


def test_a_size_is_measured_as_one_replica_and_in_populations(monkeypatch):
    monkeypatch.setitem(benches.SIZES, "atom", Size(1, 1, 8, 8, 2, 11))
    figures = list(bench(["atom"], seconds=0.02, device="cpu"))
    assert [f["replicas"] for f in figures][:2] == [1, 2]
    assert all(f["tokens_per_second"] > 0 and f["parameters"] > 0 and f["device"] == "cpu" for f in figures)
    assert all("mfu" not in f for f in figures)  # the peak of a CPU is unknown


def test_an_unknown_size_gets_the_nearest_name():
    with pytest.raises(UserError, match="unknown size 'smal'; did you mean 'small'"):
        list(bench(["smal"]))


def test_bars_are_proportional_to_the_speed():
    figures = [
        {"replicas": 1, "tokens_per_second": 1000, "mfu": 0.0123, "gib": 1.5},
        {"replicas": 2, "tokens_per_second": 2000},
        {"replicas": 4, "error": "does not fit into memory"},
    ]
    first, second, third = bars(figures, width=10)
    assert first.count("█") == 5 and second.count("█") == 10
    assert "1.2% of peak FLOPs" in first and "1.50 GiB" in first and "does not fit" in third
