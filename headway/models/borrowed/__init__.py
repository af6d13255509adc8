"""Models of architectures that we do not have, run by `transformers`."""
