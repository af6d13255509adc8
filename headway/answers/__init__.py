"""What `--json` prints, verb by verb: one schema each. `headway schema` prints them as JSON Schema.

An answer is checked against its schema before it is printed, so what is written here is so. Keys with a default may be
absent; a number that is not finite is null.
"""
