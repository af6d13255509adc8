"""The cases, one file each: a study is YAML, an exercise is Python. `headway/study/cases.py` reads them."""
