"""Recipes: the complete description of a run, as YAML or Python."""
