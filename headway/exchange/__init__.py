"""Exports runs for other libraries, and imports their models as runs."""
