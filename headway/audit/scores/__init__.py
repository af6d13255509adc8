"""Audits of scores: is what was scored what was said, and is every number right when it is counted again?"""
