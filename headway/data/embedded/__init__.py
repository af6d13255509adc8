"""Data sets generated on any machine with Python, without downloads."""
