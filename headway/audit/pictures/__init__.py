"""Audits of models that match pictures and captions, and what these are set beside."""
