"""The models that are trained: stacks of blocks with a head."""
