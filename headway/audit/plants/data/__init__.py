"""Faults of data, and what is done to a text or a set to plant them."""
