"""Verdicts: the answers to a study's questions, with their uncertainty."""
