"""The answers to a study's questions: an effect, its interval, and a sentence that claims no more than they do.

    verdicts = analyse([Better(arm="alibi", than="learned", on="valid.perplexity")], results)

Every effect is an improvement: positive is better, whichever way the score runs. The p values of all questions of a
study are corrected together (Holm), and the sentence goes by the corrected one; the interval is that of the question
alone.
"""

from collections.abc import Sequence

from headway.core.errors import UserError
from headway.stats.tests import holm
from headway.study.design.questions import Best, Better, Depends, Ordered, Question
from headway.study.results.evidence import Correct, StudyEvidence
from headway.study.verdicts.analysis import Analysis, Family, Verdict
from headway.study.verdicts.best_arm import BestArm
from headway.study.verdicts.interaction import Interaction
from headway.study.verdicts.ordered import OrderedScores
from headway.study.verdicts.two_arms import TwoArms


def analyse(questions: Sequence[Question], evidence: StudyEvidence, correct: Correct | None = None) -> list[Verdict]:
    """A verdict for every question, the p values corrected for there being all of them.

    Where `correct` knows which rows classifiers get right (`results.correct_in(runs)` reads it from their folders),
    accuracies are also compared row by row."""
    analyses = [_analysis(question, evidence, correct) for question in questions]
    p_values = [analysis.p for analysis in analyses if analysis.p is not None]
    corrected = iter(holm(p_values))
    return [
        analysis.verdict(Family(len(p_values), 1.0 if analysis.p is None else next(corrected))) for analysis in analyses
    ]


def _analysis(question: Question, evidence: StudyEvidence, correct: Correct | None) -> Analysis:
    match question:
        case Better():
            return TwoArms(question, evidence, correct)
        case Best():
            return BestArm(question, evidence)
        case Ordered():
            return OrderedScores(question, evidence)
        case Depends():
            return Interaction(question, evidence)
        case _:
            raise UserError(f"nobody knows how to answer a question of kind '{question.kind}'")
