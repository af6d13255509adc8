"""Audits of translators and of what they write, and the baselines for them."""
