"""A study as it is described: arms, seeds, questions, claims, and everything that can be wrong with them. Nothing here
needs torch, until a recipe is built."""

from headway.study.design.claims import Claim, Reported
from headway.study.design.factors import Arm, Factor
from headway.study.design.measures import Measure
from headway.study.design.questions import Question
from headway.study.design.study import Study, load_study

__all__ = ["Arm", "Claim", "Factor", "Measure", "Question", "Reported", "Study", "load_study"]
