"""Planted faults: mistakes as people make them, with which audits are tested, here and on a user's own recipe."""
