"""Audits of a model: its answers, attention and pieces, and what a step of training does to it."""
