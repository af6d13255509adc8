"""The cases, one file each: a study is YAML, an exercise is Python. `headway/cases/catalogue.py` reads them."""
