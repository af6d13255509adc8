"""The specification of a study: arms, seeds, questions and claims, with their validation. Nothing here needs torch
until a recipe is built."""

from headway.study.design.claims import Claim, Reported
from headway.study.design.factors import Arm, Factor
from headway.study.design.measures import Measure
from headway.study.design.questions import Question
from headway.study.design.study import Study, load_study

__all__ = ["Arm", "Claim", "Factor", "Measure", "Question", "Reported", "Study", "load_study"]
