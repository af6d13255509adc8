"""What was measured, read from run folders."""
