"""Scaling laws: read points from a table, fit and analyse them, and draw figures."""
