"""Experiments and exercises that somebody reported, done again."""
