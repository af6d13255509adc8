"""The command line: mostly inside the test's process, and in a real process where that matters."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from command_line import headway_process
from tiny import snapshot

from headway.cli import app

VERBS = sorted(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)
LABEL = "segment 16, stride 16, no state carried"


# --- help ------------------------------------------------------------------------------------------------------------


def test_the_verbs_are_those_the_readme_names():
    named = (
        "audit bench cache case cases classify compare continue export fill import look match open recipe recipes "
        "runs sample schema score train translate tune"
    )
    assert named.split() == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_shows_an_example_and_the_json_option(headway, verb):
    answer = headway(verb, "--help")
    assert answer.code == 0
    assert f"Example: headway {verb}" in answer.words
    assert "--json" in answer.out or verb == "open"  # open serves an API instead


def test_help_is_quick_and_imports_nothing_heavy(home):
    def seconds() -> float:
        """CPU time, so that a busy machine does not fail the test."""
        began = os.times()
        assert headway_process("--help").code == 0
        ended = os.times()
        return ended.children_user - began.children_user + ended.children_system - began.children_system

    assert min(seconds() for _ in range(3)) < 0.5
    code = "import sys; from headway.cli import app; app(standalone_mode=False); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert answer.stdout.endswith("False\n")


def test_without_a_verb_there_is_help(headway):
    assert "Usage: headway" in headway().out


# --- every verb, as JSON ---------------------------------------------------------------------------------------------


def labelled(scores: dict) -> bool:
    return bool(scores) and all(set(s) == {"value", "label"} and LABEL in s["label"] for s in scores.values())


def test_train_as_json(headway, home):
    found = headway("train", "tiny.yaml", "seed=1", "--name", "other", "--json").json
    assert found["run"] == "runs/other" and found["status"] == "finished"
    assert labelled(found["scores"])
    kept = json.loads((home / "runs" / "other" / "scores.json").read_text())
    assert found["scores"] == {name: {key: one[key] for key in ("value", "label")} for name, one in kept.items()}


def test_train_many_as_json(headway):
    found = headway("train", "tiny.yaml", "--vary", "seed=0..2", "--json").json
    assert [r["run"] for r in found["runs"]] == [f"runs/tiny-seed-{s}" for s in range(3)]
    assert all(labelled(r["scores"]) for r in found["runs"])
    assert found["scores"] == found["runs"][0]["scores"]


def test_score_as_json(headway):
    found = headway("score", "tiny", "--json").json
    assert found["run"] == "runs/tiny"
    assert labelled(found["scores"])
    assert set(found["scores"]) == {
        f"valid.{s}" for s in ("loss", "perplexity", "perplexity_per_word", "bits_per_byte")
    }


def test_score_a_text_as_json(headway):
    found = headway("score", "tiny", "--text", "Zoë said", "--json").json
    assert labelled(found["scores"])
    assert "".join(t["token"] for t in found["tokens"]) == "Zoë␣said"
    mean = sum(t["nats"] for t in found["tokens"]) / 8
    assert found["scores"]["text.loss"]["value"] == pytest.approx(mean)


def test_score_a_file_as_json(headway):
    found = headway("score", "tiny", "--file", "tiny.txt", "--segment", "8", "--stride", "2", "--json").json
    assert "segment 8, stride 2" in found["scores"]["tiny.txt.loss"]["label"]


def test_sample_as_json(headway):
    found = headway("sample", "tiny", "--prompt", "The", "--tokens", "9", "--json").json
    assert found["run"] == "runs/tiny" and found["prompt"] == "The" and found["note"] is None
    assert found["text"].startswith("The") and len(found["text"]) == 12


def test_export_and_import_as_json(headway, home):
    found = headway("export", "tiny", "--to", "gpt2", "-o", "left", "--json").json
    assert (found["run"], found["folder"], found["step"]) == ("runs/tiny", "left", 12)
    assert found["files"] == sorted(file.name for file in (home / "left").iterdir())
    back = headway("import", "left", "--name", "back", "data.source=files", "data.path=tiny.txt", "--json").json
    assert (back["run"], back["notes"]) == ("runs/back", [])
    loss = {run: headway("score", run, "--json").json["scores"]["valid.loss"]["value"] for run in ("tiny", "back")}
    assert loss["tiny"] == loss["back"]
    texts = [headway("sample", run, "--prompt", "The", "--json").json["text"] for run in ("tiny", "back")]
    assert texts[0] == texts[1]


def test_recipe_as_json(headway):
    found = headway("recipe", "tiny.yaml", "model.positions=t5", "--json").json
    assert found["recipe"]["model"]["positions"]["kind"] == "t5"
    assert len(found["hash"]) == 12


def test_recipes_as_json(headway):
    assert "nanoGPT" in headway("recipes", "--json").json["recipes"]["shakespeare-char-cpu"]


def test_runs_as_json(headway):
    (found,) = headway("runs", "--json").json["runs"]
    assert found["run"] == "runs/tiny" and labelled(found["scores"])
    assert found["facts"]["status"] == "finished"
    assert headway("runs", "--runs", "nowhere", "--json").json == {"runs": [], "damaged": {}}


def test_cases_as_json(headway):
    found = headway("cases", "--json").json["cases"]
    assert "see the future" in found["B7"]["title"] and "minutes" in found["B7"]["quick"]


# --- every verb, as text ---------------------------------------------------------------------------------------------


def test_train_prints_its_choices_and_ends_with_labelled_scores(headway):
    answer = headway("train", "tiny.yaml", "--name", "other")
    assert answer.code == 0
    assert "float32: " in answer.err and "cpu: " in answer.err
    assert "perplexity per token (char) · valid · " in answer.out and LABEL in answer.out
    assert "saved in runs/" in answer.out


def test_a_warm_up_longer_than_training_is_warned_about(headway):
    answer = headway("train", "tiny.yaml", "training.schedule.warmup=1 epoch", "--name", "short")
    assert "warning: training ends during warm-up" in answer.err


def test_the_text_of_recipe_is_itself_a_recipe(headway, home):
    (home / "whole.yaml").write_text(headway("recipe", "tiny.yaml", "seed=5").out, "utf-8")
    whole = headway("recipe", "whole.yaml", "--json").json
    assert whole["hash"] == headway("recipe", "tiny.yaml", "seed=5", "--json").json["hash"]
    assert (home / "whole.yaml").read_text().startswith("# A tiny model of a tiny text.\n")


def test_score_colours_a_text_and_lists_splits(headway):
    assert "Zoë␣said" in headway("score", "tiny", "--text", "Zoë said").out
    assert "nats per token (char) · train ·" in headway("score", "tiny", "--split", "train").out


def test_sample_writes_the_text_and_nothing_else(headway):
    words = ("sample", "tiny", "--prompt", "The", "--tokens", "30", "--seed", "3")
    answer = headway(*words)
    assert answer.out == headway(*words, "--json").json["text"] + "\n"
    assert answer.err == ""


def test_export_and_import_print_what_they_made_and_how_to_use_it(headway):
    left = headway("export", "tiny")
    assert left.code == 0 and "tiny-gpt2/: README.md, config.json" in left.out
    assert ': .from_pretrained("tiny-gpt2")' in left.out
    back = headway("import", "tiny-gpt2")
    assert back.code == 0 and "runs/tiny-gpt2/: " in back.out
    assert re.search(r"^to try it: headway \w+ runs/tiny-gpt2", back.out, re.MULTILINE)
    assert "data.source=python-docs, since the folder does not say what the model was trained on" in back.err


def test_an_imported_run_is_trained_on_by_its_own_recipe(headway):
    headway("export", "tiny", "-o", "left")
    changes = ["data.source=files", "data.path=tiny.txt", "training.duration=3 steps", "training.batch=2"]
    assert headway("import", "left", "--name", "back", *changes).code == 0
    found = headway("train", "runs/back/recipe.yaml", "--name", "back", "--resume", "--json").json
    assert found["run"] == "runs/back" and found["status"] == "finished"


def test_runs_and_recipes_are_listed(headway):
    assert "tiny  finished" in headway("runs").out
    assert "shakespeare-char-cpu" in headway("recipes").out
    assert "there are no runs in nowhere yet" in headway("runs", "--runs", "nowhere").err


# --- classes ---------------------------------------------------------------------------------------------------------

CLASSIFIER = """# A tiny classifier.
data: {kind: labelled, source: files, path: tiny.tsv, text: 1, label: 2}
model: {kind: classifier, layers: 1, width: 16, context: 8, mixer: {heads: 2}}
training: {duration: 30 steps, batch: 4, schedule: {warmup: 2 steps}, optimizer: {learning_rate: 1e-2}}
"""


@pytest.fixture
def classifier(home, headway) -> str:
    rows = [f"{word} number {k}\t{label}" for k in range(20) for word, label in (("cats", "cat"), ("dogs", "dog"))]
    (home / "tiny.tsv").write_text("\n".join(rows), "utf-8")
    (home / "pets.yaml").write_text(CLASSIFIER, "utf-8")
    assert headway("train", "pets.yaml").code == 0
    return "pets"


def test_a_classifier_is_trained_scored_and_used(headway, classifier):
    scored = headway("score", classifier)
    assert scored.code == 0 and "accuracy: 4 of 4 · 95 % interval" in scored.out and "→1" in scored.out
    answer = headway("classify", classifier, "dogs number strange")
    assert answer.code == 0 and answer.err == "1 of 3 tokens are unknown words\n"
    assert [line.split()[0] for line in answer.out.splitlines()] == ["class", "dog", "cat"]
    asked = json.loads(headway("classify", classifier, "cats", "--json").out)
    assert list(asked["classes"]) == ["cat", "dog"] and asked["unknown"] == 0 and asked["text"] == "cats"
    scores = json.loads(headway("score", classifier, "--split", "train", "--json").out)["scores"]
    assert scores["train.accuracy"]["confusion"]["classes"] == ["cat", "dog"]
    assert len(scores["train.accuracy"]["interval"]) == 2


def test_runs_of_both_kinds_are_listed_together(headway, classifier):
    listed = " ".join(headway("runs").out.split())
    assert "steps scores" in listed and "perplexity per token: valid" in listed and "accuracy: valid 1.000" in listed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sample pets --prompt cats", "writing text is only possible with language models, but pets is a classifier"),
        ("score pets --text cats", "scoring a text is only possible with language models"),
        ("score pets --stride 2", "choosing segments and strides is only possible with language models"),
        ("export pets", "BERT's norms come after each sublayer"),
        (
            "classify tiny cats",
            "classifying is only possible with classifiers, but tiny is a language-model; try headway score",
        ),
        ("classify pets ''", "the text is empty"),
        ("classify pets 'a b c d e f g h i'", "9 tokens, but the learned positions end at 8"),
        ("train pets.yaml --name x data.label=lable data.text=1", "'tiny.tsv' has no column of that name"),
        ("train pets.yaml --name x data.text=2 data.label=9", "data.label=9: 'tiny.tsv' has columns 1 to 2"),
        ("train tiny.yaml --name x model=classifier", "a classifier learns from labelled data, not from text data"),
        ("train pets.yaml --name x data={source: sst}", "there is no corpus called 'sst'"),
    ],
)
def test_abilities_a_kind_of_model_lacks_are_refused(headway, classifier, words, message):
    answer = headway(*shlex.split(words.replace("{source: sst}", "'{source: sst}'")))
    assert (answer.code, answer.out) == (2, "") and message in answer.err and "Traceback" not in answer.err


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_saves_and_scores_and_a_resumed_run_equals_an_uninterrupted_one(forge, home):
    seldom = ["training.evaluate_every=50 steps", "training.checkpoint_every=50 steps"]
    changes = ["training.duration=300 steps", "model.dropout=0.1", *seldom]
    words = ["train", "tiny.yaml", *changes, "--runs", "my runs", "--name"]
    began = home / "my runs" / "cut" / "metrics.jsonl"
    child = forge.at(home).start(*words, "cut")
    child.wait_until(lambda: began.exists() and began.stat().st_size > 0)
    code, out, err, _ = child.interrupt()
    assert code == 130, err
    assert "finishing this step, then saving" in err
    facts = json.loads((home / "my runs" / "cut" / "run.json").read_text())
    step = facts["step"]
    assert facts["status"] == "interrupted" and 0 < step < 300
    assert (home / "my runs" / "cut" / "checkpoints" / f"step-{step:08d}" / "weights.safetensors").exists()
    assert "valid.loss" in json.loads((home / "my runs" / "cut" / "scores.json").read_text())
    assert LABEL in out

    again = shlex.split(err.rsplit("to resume: ", 1)[1])
    assert again == ["headway", *words, "cut", "--resume"]
    assert forge.at(home).run(*again[1:]).code == 0
    assert forge.at(home).run(*words, "whole").code == 0
    cut, whole = (snapshot(home / "my runs" / name) for name in ("cut", "whole"))
    assert json.loads(cut["run.json"])["status"] == "finished"
    for name in ("metrics.jsonl", "scores.json", "checkpoints/step-00000300/weights.safetensors"):
        assert cut[name] == whole[name], name


def test_ctrl_c_during_audits_says_how_to_resume_and_nothing_is_lost(headway, home, monkeypatch):
    """Training handles Ctrl-C between two steps itself; here training is over."""
    words = ("train", "tiny.yaml", "training.duration=2 steps", "--name", "stopped")

    def ctrl_c(runs, task):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headway.experiment.train.audit_runs", ctrl_c)
        answer = headway(*words)
    assert answer.code == 130 and "--resume" in answer.err and "Traceback" not in answer.err
    again = headway(*words, "--resume")
    assert again.code == 0 and (home / "runs" / "stopped" / "audit.json").exists()
