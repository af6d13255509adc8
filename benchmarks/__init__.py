"""Measurements against peers. Each module prints one JSON line per figure; run with `python -m benchmarks.NAME`."""
