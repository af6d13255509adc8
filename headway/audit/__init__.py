"""Checks before scores; each is a function whose docstring is its documentation."""
