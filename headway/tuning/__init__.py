"""Search on dev, scored once on test."""
