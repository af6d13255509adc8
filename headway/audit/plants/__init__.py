"""Faults as people make them, to be planted: what audits are tried with, in the tests and on one's own recipe."""
