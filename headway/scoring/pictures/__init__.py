"""Scores of models that match pictures and captions."""
