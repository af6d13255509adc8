"""Texts with labels, for classifiers."""
