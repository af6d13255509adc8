"""What follows from it, and how sure one can be."""
