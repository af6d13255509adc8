"""Reads and writes model formats of other libraries."""
