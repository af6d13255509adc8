"""The library: every case loads in both sizes and keeps its promises, and a tiny version of one runs from end to
end."""

import os
from pathlib import Path

import pytest
from tiny import with_weights

from headway.cases.catalogue import folder_of, load_case, packaged, takes, title_of
from headway.cases.table import case_table
from headway.core.errors import UserError
from headway.data.labelled import sources as labelled_sources
from headway.data.pairs import sources as pair_sources
from headway.data.running import sources
from headway.study.conclude import conclude
from headway.study.design.study import Study
from headway.study.execution.execute import execute
from headway.study.execution.in_process import InProcess
from headway.study.execution.plan import Sizes, budgets, check_scores

CASES = list(packaged())
STUDIES = [name for name in CASES if isinstance(load_case(name, True), Study)]
EMBEDDED = {*sources.EMBEDDED, *labelled_sources.EMBEDDED, *pair_sources.EMBEDDED}
FLOPS_A_SECOND = {
    "language-model": 2 * 28e9,
    "classifier": 2 * 55e9,
    "encoder-decoder": 2 * 20e9,
    "decoder-only": 2 * 20e9,
}
"""Of two cores, with these small models and including audits, measured together with the minutes given in the
library."""


def test_the_cases_so_far():
    assert CASES == [
        "A1",
        "A2",
        "A3",
        "A4",
        "B1",
        "B2",
        "B3",
        "B4",
        "B5",
        "B6",
        "B7",
        "B8",
        "B9",
        "C1",
        "C2",
        "C3",
        "C4",
        "D1",
        "D2",
        "D3",
        "D4",
        "D5",
        "D6",
        "D7",
        "D8",
        "E1",
        "E2",
        "E3",
        "E4",
        "E5",
        "E6",
    ]
    assert set(CASES) - set(STUDIES) == {"B1", "B2", "D1", "D2", "D3", "D8", "E1"}


def study_of(name: str, quick: bool) -> Study:
    found = load_case(name, quick)
    assert isinstance(found, Study)
    return found


@pytest.mark.parametrize("name", with_weights(STUDIES))
def test_a_case_has_the_report_and_what_it_rests_on(name):
    for quick in (True, False):
        study = study_of(name, quick)
        assert study.reported and study.reported.conclusion and study.claims and study.about
        assert title_of(name).endswith("?") and "minutes" in takes(name, True)
    # The library does not name the authors of reports.
    assert load_case(name, True).title == load_case(name, False).title == title_of(name)


@pytest.mark.parametrize("name", with_weights(STUDIES))
def test_the_quick_form_is_quick(name):
    """All arms, at least three seeds, embedded data, and no more work than two minutes."""
    quick, whole, sizes = study_of(name, True), study_of(name, False), Sizes()
    # quick data has no faulty rows for these arms to keep
    arms = [arm.name for arm in whole.arms if not (name == "C1" and arm.name.startswith("kept"))]
    if quick.ladder is None:
        assert [arm.name for arm in quick.arms] == arms
        assert len(quick.seeds) >= 3 and len(whole.seeds) >= 3
    else:  # only sizes and budgets are reduced; neighbouring sizes support each other, so two seeds suffice
        assert len(quick.ladder.rungs) >= 3 and len(quick.seeds) >= 2
    seconds = 0.0
    for run in quick.runs(budgets(quick, sizes)):
        assert run.recipe.data.source in EMBEDDED
        size = sizes.of(run.recipe.model_copy(update={"seed": 0}))
        seconds += size.steps * size.flops_per_step / FLOPS_A_SECOND[run.recipe.model.kind]
    assert seconds <= 120
    check_scores(quick, sizes)


@pytest.mark.data
@pytest.mark.skipif("HEADWAY_DATA" not in os.environ, reason="needs the corpora under HEADWAY_DATA")
@pytest.mark.parametrize("name", with_weights(STUDIES))
def test_scores_asked_for_by_the_whole_form_are_measured(name):
    check_scores(study_of(name, False), Sizes())


def test_e5_reuses_models_of_e2_and_e4():
    own, others = study_of("E5", False).recipes, study_of("E4", False).recipes | study_of("E2", False).recipes
    assert own["lstm"].hash == others["middle.two"].hash and own["transformer"].hash == others["transformer"].hash


def test_the_references_of_c2_to_c4_are_reused_from_the_case_before():
    for name, before, arms in (
        ("C2", "C1", {"two-layers": "dropped.as-reported"}),
        ("C3", "C2", {"narrower": "as-reported"}),
        ("C4", "C3", {"shallower": "as-reported", "shallower-put-right": "put-right"}),
    ):
        own, others = study_of(name, False).recipes, study_of(before, False).recipes
        assert all(own[ours].hash == others[theirs].hash for ours, theirs in arms.items())


def test_arms_of_e6_have_equally_many_parameters():
    for quick, vocabulary in ((True, 1000), (False, 33278)):
        models = [r.model.build(vocabulary) for r in study_of("E6", quick).recipes.values()]
        counts = [sum(p.numel() for p in model.parameters()) for model in models]
        assert max(counts) <= 1.01 * min(counts)


def test_a_case_that_does_not_exist():
    with pytest.raises(UserError, match=r"there is no case 'B77'; did you mean 'B7'\?; headway cases lists them"):
        load_case("B77", True)


def tiny(name: str, **changed) -> Study:
    """A quick case reduced to the smallest size, which only shows that it runs."""
    tree = study_of(name, True).model_dump(mode="json", by_alias=True)
    small = ["model.layers=1", "training.duration=6 steps", "training.schedule.warmup=1 step", "training.batch=4"]
    tree["changes"] += [*small, "training.evaluate_every=3 steps", "training.evaluate_tokens=500"]
    return Study.model_validate({**tree, "seeds": 2, **changed})


@pytest.mark.audited
def test_a_quick_case_from_end_to_end(tmp_path: Path):
    """B7: trained, measured, audited, judged, reported, and added to the table of all cases."""
    whole = study_of("B7", True).named_arms
    arms = {arm: whole[arm] for arm in ("concat", "reweight-raw")}
    study, folder = tiny("B7", arms=arms, questions=[]), tmp_path / folder_of("B7", True)
    outcome = execute(study, folder, InProcess())
    assert (outcome.done, outcome.failed) == (4, {})
    found = conclude(folder)
    causal, better, worse = found.judgements
    assert causal.status == better.status == "does not hold" and "sees the future" in causal.why
    assert worse.claim.answer == "worse"
    assert found.report is not None
    page = found.report.read_text("utf-8")
    assert "sees the future" in page and "tokens per segment" in page and "Attention of concat.seed-0" in page
    assert [arm for arm, about in found.results.arms.items() if "causality" in about.failed_audits] == ["reweight-raw"]
    table = case_table(tmp_path)
    assert "| [B7](#b7) |" in table and "**does not hold**" in table and "reweight-raw (**sees the future" in table
    assert "Full size: not run." in table
