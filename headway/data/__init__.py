"""Data: sources, tokenizers, and the batches of each step."""
