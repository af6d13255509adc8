"""Models that are not of our shape, as `transformers` runs them."""
