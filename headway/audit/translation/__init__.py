"""Audits of translators, what they write, and what it is set beside."""
