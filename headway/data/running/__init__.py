"""Running text, for language models."""
