"""The whole description of one run, as YAML or Python."""
