"""Audits of a training run: did it train at all, and what kept it from doing better?

They run in order, and a later one is skipped where an earlier one explains the problem: a model that has not trained is
neither over- nor underfitted. Thresholds were set on real runs, good and bad ones; the docstrings give the values.
"""

from headway.audit.audit import Audit
from headway.audit.training.fit import ABOUT_FIT
from headway.audit.training.judged import ABOUT_JUDGING
from headway.audit.training.rate import ABOUT_THE_RATE
from headway.audit.training.trained import ABOUT_TRAINING

TRAINING_AUDITS: tuple[Audit, ...] = (*ABOUT_TRAINING, *ABOUT_THE_RATE, *ABOUT_FIT, *ABOUT_JUDGING)
