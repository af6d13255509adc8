"""Every fault of pictures and captions is caught by the audit meant for it, and clean ones raise no alarm."""

import shutil

import numpy as np
import pytest
from captioned import captioned_folder, class_folder, clip_recipe
from tiny import cache_in

from headway import tasks
from headway.audit.audit import AUDITS, run_audits
from headway.audit.pictures.data import PICTURE_AUDITS, PictureRows
from headway.audit.plants.library import faults
from headway.audit.plants.needs import MATCHER
from headway.audit.plants.planting import Fault, planted
from headway.experiment.audit import audit_recipe, audit_run
from headway.experiment.evaluate import score_splits_again
from headway.experiment.train import train
from headway.run.folder import open_run

OURS = [fault for fault in faults() if MATCHER in fault.needs]
OF_DATA, OF_RUNS = ([one for one in OURS if (one.data is not None) == of_data] for of_data in (True, False))
QUICK = ("captions_that_are_ignored", "ties_that_count_as_found")
NOT_OURS = ("training", "baselines")


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    home = tmp_path_factory.mktemp("pictures")
    captioned_folder(home / "set")
    class_folder(home / "classes", copies=5)
    with cache_in(home / "cache"):
        yield home


@pytest.fixture(scope="module")
def clean(ground):
    train([clip_recipe(ground / "set")], ["clean"], ground / "runs")
    return ground / "runs" / "clean"


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, id=one.name, marks=[] if one.name in QUICK else [pytest.mark.slow]) for one in OF_RUNS],
)
def test_planted(fault: Fault, ground, clean):
    with planted(fault):
        if fault.trains:
            train([clip_recipe(ground / "set", *fault.recipe)], [fault.name], ground / "runs")
        else:
            shutil.copytree(clean, ground / "runs" / fault.name)
        run = open_run(fault.name, ground / "runs")
        score_splits_again(run)
        report = audit_run(run)
    found = {f.audit: f.sentence for f in report.failures}
    assert fault.caught_by in found, f"not caught; {report}"
    of_training = {name for name in found if AUDITS[name].subject in NOT_OURS}
    assert not set(found) - {fault.caught_by, *fault.also} - of_training, found


def test_a_clean_run_raises_no_alarm(clean):
    report = audit_run(open_run("clean", clean.parent))
    assert [f for f in report.failures if AUDITS[f.audit].subject not in NOT_OURS] == []
    found = {f.audit for f in report.findings}
    assert {one.name for one in tasks.Contrastive.probing.audits} <= found
    assert {"picture-captions", "false-negatives", "scores-again", "scored-split", "says-nothing"} <= found


OTHERS = {
    "classes": ["model.contrast=sigmoid", "model.dropout=0.1", "data.batches={flip: true, shift: 2}"],
    "rotary": ["model.picture.positions=rotary", "model.contrast.repeats=wrong", "model.pooling=last"],
    "gru": ["model.picture.positions=none", "model.picture.pooling=max", "model.norm=rms", "model.picture.mixer=gru"],
}


@pytest.mark.parametrize("name", ["classes", *(pytest.param(one, marks=pytest.mark.slow) for one in ("rotary", "gru"))])
def test_other_clean_recipes_raise_no_alarm(name, ground):
    recipe = clip_recipe(ground / ("classes" if name == "classes" else "set"), *OTHERS[name])
    assert [(f.audit, f.sentence) for f in audit_recipe(recipe).failures] == []


@pytest.fixture(scope="module")
def rows():
    """Pictures of noise in large cells, so that no two are similar."""
    rng = np.random.default_rng(0)
    drawn = {split: rng.integers(0, 255, (n, 3, 6, 6), np.uint8) for split, n in SIZES.items()}
    pixels = {split: small.repeat(4, 2).repeat(4, 3) for split, small in drawn.items()}
    captions = {split: [f"{split} picture {k}" for k in range(n)] for split, n in SIZES.items()}
    return PictureRows(pixels, captions)


SIZES = {"train": 200, "valid": 40, "test": 40}


@pytest.mark.parametrize("fault", OF_DATA, ids=lambda fault: fault.name)
def test_planted_in_pictures(fault: Fault, rows):
    failures = {f.audit for f in run_audits(PICTURE_AUDITS, fault.into(rows)).failures}
    assert fault.caught_by in failures and not failures - {fault.caught_by, *fault.also}


def test_clean_pictures_raise_no_alarm(rows):
    report = run_audits(PICTURE_AUDITS, rows)
    assert not report.failures and not report.warnings


def test_captions_of_classes_are_not_audited(rows):
    report = run_audits(PICTURE_AUDITS, PictureRows(rows.pixels, {s: ["a cat"] * n for s, n in SIZES.items()}, True))
    assert "captions-in-train" in report.not_run


@pytest.mark.parametrize(("repeats", "verdict"), [("wrong", "fail"), ("left-out", "pass")])
def test_right_answers_that_count_as_wrong(ground, repeats, verdict):
    """With six classes, most pictures of a batch share their caption with another one."""
    report = (
        tasks.load(clip_recipe(ground / "classes", f"model.contrast.repeats={repeats}")).gather_evidence().reading()
    )
    (found,) = (f for f in report.findings if f.audit == "false-negatives")
    assert found.verdict == verdict and found.value > 0.5
