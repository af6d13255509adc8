"""Scores: what is measured on a split, from a model's outputs to labelled numbers."""
