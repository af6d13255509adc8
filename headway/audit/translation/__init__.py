"""Audits of translation models and of their translations, and the baselines for them."""
