"""Classification: texts with labels."""

from headway.tasks.task import Task


class Classification(Task):
    pass
