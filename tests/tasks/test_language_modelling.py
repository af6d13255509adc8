"""Language modelling: what the task says of itself."""

from headway.audit.audit import read_report
from headway.scoring.metrics import parsed
from headway.tasks.language_modelling import LanguageModelling


def test_its_scores_and_those_of_cheap_methods_are_those_it_promises(workshop):
    promised = [metric.name for metric in LanguageModelling.metrics]
    assert [parsed(score.name).metric for score in workshop.run.scores()] == promised
    report = read_report(workshop.run.folder)
    assert report is not None
    assert {baseline.method for baseline in report.baselines} == set(LanguageModelling.cheap_methods.names)
    assert {baseline.score.name for baseline in report.baselines} == {f"valid.{LanguageModelling.headline.name}"}
