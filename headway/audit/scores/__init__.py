"""Audits of scores: was the right thing scored, and is every number right when it is computed again?"""
