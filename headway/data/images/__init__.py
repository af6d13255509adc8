"""Pictures with captions, for models that match the two."""
