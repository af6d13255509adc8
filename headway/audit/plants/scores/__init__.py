"""Faults of the numbers that are reported."""
