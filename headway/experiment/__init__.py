"""From a recipe to a finished run, and what can be done with one."""
