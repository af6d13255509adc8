"""Faults of training."""
