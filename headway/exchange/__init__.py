"""Runs as folders that others read, and folders of others as runs."""
