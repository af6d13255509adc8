"""Verdicts: what follows from the results, and how sure one can be."""
