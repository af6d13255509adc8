"""What happens inside a model, as numbers."""
