"""Benchmarks and comparisons with other libraries. Run with `python -m benchmarks.NAME`; each prints JSON lines."""
