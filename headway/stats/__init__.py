"""Numbers in, numbers out: intervals and tests."""
