"""The schemas of what `--json` prints, one per command. `headway schema` prints them as JSON Schema.

An answer is checked against its schema before it is printed. Keys with a default may be absent; a number that is not
finite is null.
"""
