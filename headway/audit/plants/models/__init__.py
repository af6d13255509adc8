"""Faults of what a model computes."""
