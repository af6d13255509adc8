"""What is trained: stacks of blocks with a head."""
