"""Runs exported for other programs, and models of other programs imported as runs."""
