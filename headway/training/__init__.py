"""The loop and all it needs; it knows nothing of models, data and scores."""
