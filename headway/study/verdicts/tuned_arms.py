"""Is one level of a factor better than another, each at its best settings?

Comparing two optimizers at one learning rate only shows which one that rate suits. Here each level is represented by
its best arm on one split, and the two arms are compared on another split, so that the luck of the selection does not
carry over.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headway.core.errors import UserError
from headway.study.design.questions import Better, BetterTuned
from headway.study.results.evidence import Correct, StudyEvidence, best_arms
from headway.study.verdicts.analysis import Verdict
from headway.study.verdicts.two_arms import TwoArms


class TunedArms(TwoArms):
    answers = "better-tuned"

    def __init__(self, question: BetterTuned, evidence: StudyEvidence, correct: Correct | None = None):
        best = best_arms(evidence, question.chosen_on, question.factor)
        if missing := [level for level in (question.level, question.than) if level not in best]:
            raise UserError(f"no arm of '{missing[0]}' has the score {question.chosen_on} at all of its seeds")
        self.asked, self.best = question, best
        asked = Better.model_validate({"arm": best[question.level], "than": best[question.than], "on": question.on})
        super().__init__(asked, evidence, correct)
        self.looks = [look for look in evidence.earlier_looks if str(question) in look.outcomes]

    def more_notes(self, units: Callable[[float], float]) -> Iterator[str]:
        yield from super().more_notes(units)
        for level in (self.asked.level, self.asked.than):
            there = [arm for arm, about in self.evidence.arms.items() if about.levels.get(self.asked.factor) == level]
            best = f"the best of its {len(there)} arms on {self.asked.chosen_on}"
            yield f"{level} is represented by {self.best[level]}, {best}"

    def cannot_say(self, why: str, arms: Any) -> Verdict:
        return replace(super().cannot_say(why, arms), question=self.asked)

    def concluded(self, about: Any, outcome: Any, sentence: str, **found: Any) -> Verdict:
        return replace(super().concluded(about, outcome, sentence, **found), question=self.asked)
