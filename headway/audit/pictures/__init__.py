"""Audits of models that match pictures and captions, and the baselines for them."""
