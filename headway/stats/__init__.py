"""Statistics: intervals and tests, numbers in and numbers out."""
