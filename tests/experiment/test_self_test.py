"""`headway audit --self-test`: faults are planted, detected or not, and completely removed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway import cli
from headway.audit.audit import AUDITS
from headway.audit.plants.library import by_kind, faults
from headway.audit.plants.needs import ATTENTION, positions
from headway.audit.plants.planting import FAULTS, Bed, Patches, planted
from headway.core import plugins
from headway.experiment.self_test import chosen, self_test
from headway.nn import backends, masks
from headway.recipe.recipe import load

HERE = __name__


@pytest.fixture
def recipe(workshop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    return lambda *changes: load(str(workshop.recipe), changes)


@pytest.fixture
def bed():
    yield Bed("of tests")
    FAULTS.forget(HERE)


@pytest.fixture(autouse=True)
def no_plugins():
    yield
    for plugin in plugins.loaded():
        plugins.forget(plugin)


def outcomes(recipe, only: str) -> dict[str, tuple[str, str]]:
    return {trial.fault.name: (trial.outcome, trial.sentence) for trial in self_test(recipe, only).trials}


def test_a_fault_is_seen_or_cannot_show_and_is_removed(recipe):
    before = {**vars(masks.Causal)}, {**vars(backends.Sdpa)}, {**vars(backends.Plain)}
    found = outcomes(recipe("model.positions=rotary"), "order")
    assert found["one_rotary_angle_for_all"][0] == "seen"
    assert found["one_t5_bucket"] == ("cannot show", "it needs t5 positions")
    assert ({**vars(masks.Causal)}, {**vars(backends.Sdpa)}, {**vars(backends.Plain)}) == before


def test_a_fault_of_each_subject_in_a_users_recipe(recipe):
    for name, kind in (
        ("temperature_in_the_score", "scores"),
        ("first_seed_for_all", "populations"),
        ("half_of_the_embeddings_frozen", "learning"),
        ("a vocabulary that was learnt on all splits", "tokens"),
        ("the_test_split_is_watched", "training"),
    ):
        (trial,) = self_test(recipe(), name).trials
        expected = "cannot show" if kind == "training" else "seen"  # this text has no test split
        assert (trial.outcome, trial.fault.kind) == (expected, kind), trial


def test_faults_without_effect_cannot_show_and_small_ones_are_not_seen(recipe, bed):
    honest = masks.Causal.allows
    bed.add("nothing", "order", ATTENTION, module=HERE, put=lambda patch: patch.setattr(masks.Causal, "allows", honest))
    bed.add("a little", "order", module=HERE, spoil=lambda model: model.embedding.weight.mul_(1.01))
    bed.add("much", "order", module=HERE, spoil=lambda model: model.embedding.weight.fill_(torch.nan))
    bed.add("broken", "order", module=HERE, put=lambda patch: patch.setattr(masks.Causal, "allows", None))
    tested = self_test(recipe("model.mixer.backend=plain"), "of tests")
    found = {trial.fault.name: (trial.outcome, trial.sentence) for trial in tested.trials}
    assert [trial.instead for trial in tested.trials if trial.fault.name == "much"] == [("finite",)]
    assert found["nothing"] == ("cannot show", "it changes nothing in this recipe")
    assert found["a little"][0] == found["much"][0] == "not seen"
    assert found["broken"][0] == "cannot show" and "nothing runs" in found["broken"][1]


def test_an_audit_that_fails_without_a_fault_cannot_see_one(recipe):
    found = outcomes(recipe("model.mixer.fusion=reweight"), "mask_off_by_one")
    outcome, why = found["mask_off_by_one"]
    assert outcome == "cannot show" and why.startswith("causality fails even without it: sees the future")


def test_ctrl_c_leaves_nothing_behind(recipe, bed, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def interrupted(patch):
        patch.setattr(masks.Causal, "allows", None)
        raise KeyboardInterrupt

    bed.add("a first", "order", positions("none"), module=HERE)
    bed.add("interrupted", "order", module=HERE, put=interrupted)
    honest = masks.Causal.allows
    tested = self_test(recipe(), "of tests")
    assert tested.stopped and [trial.fault.name for trial in tested.trials] == ["a first"]
    assert masks.Causal.allows is honest and list(tmp_path.iterdir()) == []


def test_patches_of_inherited_attributes_are_undone():
    patches = Patches()
    patches.setattr(backends.Plain, "why_not", lambda self, needs: "no")
    assert "why_not" in vars(backends.Plain)
    patches.undo()
    assert "why_not" not in vars(backends.Plain)


def test_every_fault_names_an_audit_of_its_own_subject():
    assert all(fault.caught_by in AUDITS for fault in faults())
    assert len(faults()) >= 200 and min(by_kind().values()) >= 2
    assert {fault.kind for fault in chosen("causality")} == {"leaks", "recurrence", "translators"}


# --- the command -----------------------------------------------------------------------------------------------------

PLUGIN = """
from headway.audit.plants.planting import Bed
from headway.nn import masks

bed = Bed("my own")


@bed.plant("kernel")
def mask_of_mine(patch):
    pass


@bed.plant("causality")
def leak_of_mine(patch):
    from headway.audit.plants.models.parts import written_out
    written_out(patch)
    patch.setattr(masks.Causal, "allows", lambda self, row, i, j: j <= i + 1)
"""


@pytest.fixture
def audit(workshop, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.setenv("COLUMNS", "300")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["headway", "audit", *words, "--self-test", "--runs", str(tmp_path / "runs")])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def test_faults_in_a_users_file_are_tried(audit, workshop, tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    mine = ("--with", str(tmp_path / "mine.py"), "--only", "my own")
    code, out, err = audit(str(workshop.recipe), *mine, "--json", "--strict")
    found = {one["fault"]: one["outcome"] for one in json.loads(out)["faults"]}
    assert found == {"mask of mine": "cannot show", "leak of mine": "seen"} and code == 0
    assert "2 of 2 faults to try" in err and not (tmp_path / "runs").exists()


def test_strict_fails_if_a_fault_is_not_seen(audit, workshop, bed):
    bed.add("a little", "order", module=HERE, spoil=lambda model: model.embedding.weight.mul_(1.01))
    code, out, _ = audit(str(workshop.recipe), "--only", "of tests", "--strict")
    assert code == 1 and out.startswith("NOT SEEN")
    assert "0 of 1 faults are detected by the audit meant for them" in out


def test_mistakes_are_clear_messages(audit, workshop):
    assert "did you mean 'causality'?" in audit(str(workshop.recipe), "--only", "causalty")[2]
    assert "'dem' is neither a run nor a recipe; did you mean 'demo'?" in audit("dem")[2]


def test_training_does_not_import_the_library_of_faults():
    seen = "[m for m in sys.modules if m.startswith('headway.audit.plants')]"
    code = f"import sys, headway.cli, headway.experiment.train; assert not {seen}, {seen}"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_every_fault_and_every_audit():
    """To update it: python docs/audits.py."""
    page = (Path(__file__).parents[2] / "docs" / "audits.md").read_text("utf-8")
    table = page.partition("<!-- faults, by docs/audits.py -->")[2]
    rows = set(re.findall(r"^\| (.+?) \| `([\w-]+)` \|", table, re.MULTILINE))
    assert rows == {(fault.words, fault.caught_by) for fault in faults()}
    from headway.audit.runner import ALL_AUDITS

    listed = re.findall(r"^\| `([\w-]+)` \| (\w+) \|", page, re.MULTILINE)
    assert listed == [(one.name, one.subject) for one in ALL_AUDITS]


def test_a_fault_is_planted_only_within_the_context():
    fault = FAULTS["mask_off_by_one"]
    honest = masks.Causal.allows
    with planted(fault):
        assert masks.Causal.allows is not honest
    assert masks.Causal.allows is honest
