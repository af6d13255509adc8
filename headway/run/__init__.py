"""Runs on disk, from which all later stages read."""
