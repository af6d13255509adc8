"""Foundations used everywhere: error messages, specs, atomic files, random numbers, events, plugins."""
