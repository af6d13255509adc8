"""Faults of data, and the changes of texts and data sets that plant them."""
