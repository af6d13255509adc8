"""Trains recipes into finished runs, and evaluates, audits and inspects them."""
