"""Audits of models that guess hidden tokens: what is hidden, what is guessed, and what cheap methods guess."""
