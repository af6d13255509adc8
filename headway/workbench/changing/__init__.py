"""A recipe as a form, what a change of it would take, and the study that sets it against the original"""
