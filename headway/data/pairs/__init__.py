"""Pairs of texts, source and target, for translators."""
