"""Audits of populations: is each of many models that were trained as one what it would be alone?"""
