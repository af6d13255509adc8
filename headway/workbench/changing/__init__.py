"""Changing a recipe in a form, estimating what the change takes, and comparing it with the original in a study."""
