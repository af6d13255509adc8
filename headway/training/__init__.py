"""The training loop and all it needs; it does not depend on particular models, data or scores."""
