"""Audits of a training: did it train at all, and what kept it from doing better?

They are asked in order, and a later one is silent where an earlier one is the reason: a model that has not trained is
neither over- nor underfitted. Thresholds were set on real runs, good and spoilt ones; the docstrings give them.
"""

from headway.audit.audit import Audit
from headway.audit.training.fit import ABOUT_FIT
from headway.audit.training.judged import ABOUT_JUDGING
from headway.audit.training.rate import ABOUT_THE_RATE
from headway.audit.training.trained import ABOUT_TRAINING

TRAINING_AUDITS: tuple[Audit, ...] = (*ABOUT_TRAINING, *ABOUT_THE_RATE, *ABOUT_FIT, *ABOUT_JUDGING)
