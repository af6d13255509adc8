"""The answers to a study's questions: an effect, its interval, and a sentence that claims no more than they show.

    verdicts = analyse([Better(arm="alibi", than="learned", on="valid.perplexity")], results)

Every effect is an improvement: positive is better, whether the score is higher-is-better or lower-is-better. The p
values of all questions of a study are corrected together (Holm), and the sentence follows the corrected p value. The
interval is not corrected for the other questions.
"""

from collections.abc import Sequence

from headway.stats.tests import holm
from headway.study.design.questions import Question
from headway.study.results.evidence import Correct, StudyEvidence
from headway.study.verdicts import (  # noqa: F401 (importing them registers their analyses)
    best_arm,
    interaction,
    ordered,
    other_sentences,
    scaling_laws,
    tuned_arms,
    two_arms,
)
from headway.study.verdicts.analysis import ANALYSES, Family, Verdict


def analyse(questions: Sequence[Question], evidence: StudyEvidence, correct: Correct | None = None) -> list[Verdict]:
    """Answer every question with a verdict; p values are corrected for the number of questions.

    If `correct` knows which rows each classifier gets right (`results.correct_in(runs)` reads it from their folders),
    accuracies are also compared row by row."""
    analyses = [ANALYSES.find(question.kind)(question, evidence, correct) for question in questions]
    p_values = [analysis.p for analysis in analyses if analysis.p is not None]
    corrected = iter(holm(p_values))
    return [
        analysis.verdict(Family(len(p_values), 1.0 if analysis.p is None else next(corrected))) for analysis in analyses
    ]
