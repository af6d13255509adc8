"""Model formats of other programs, read and written."""
