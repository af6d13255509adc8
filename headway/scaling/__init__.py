"""Scaling laws of what was measured: points from a table, what follows from them, and pictures of it."""
