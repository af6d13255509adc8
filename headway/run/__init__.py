"""A run on disk: the only thing that later stages read."""
