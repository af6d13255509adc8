"""Running text, for language models and masked language models."""
