"""Texts in pairs, a source and its target, for translators."""
