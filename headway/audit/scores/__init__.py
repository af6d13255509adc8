"""Audits of scores: was the right split scored, and is every number the same when it is computed again?"""
