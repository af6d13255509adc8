"""Language modelling: what the task says of itself."""

from headway.audit.audit import read_report
from headway.audit.evidence import TextEvidence
from headway.tasks.language_modelling import LanguageModelling


def test_its_scores_and_those_of_cheap_methods_are_those_it_promises(workshop):
    assert [score.name.partition(".")[2] for score in workshop.run.scores()] == list(LanguageModelling.quantities)
    report = read_report(workshop.run.folder)
    assert report is not None
    assert {baseline.method for baseline in report.baselines} == set(TextEvidence.cheap_methods)
    assert {baseline.score.name for baseline in report.baselines} == {f"valid.{TextEvidence.quantity}"}
