"""Audits of data: rows with labels, running text, tokens, batches."""
