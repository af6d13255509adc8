"""Faults of how a model is trained."""
