"""The command line as people meet it: mostly inside this process, and through a real one where that is the point."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import Answer
from tiny import snapshot

from headway.cli import app

VERBS = sorted(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)
LABEL = "segment 16, stride 16, no state carried"


@pytest.fixture
def home(workshop, tmp_path, monkeypatch) -> Path:
    """The current folder of a test: a recipe, its text, and runs/ with a finished run that may be written to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    shutil.copytree(workshop.runs, tmp_path / "runs")
    shutil.copy(workshop.recipe, tmp_path)
    shutil.copy(workshop.text, tmp_path)
    return tmp_path


@pytest.fixture
def headway(home, command_line):
    """Runs a command line in this process."""
    return command_line


COMMAND = [sys.executable, "-m", "headway.cli"]


def headway_process(*words: str, **settings) -> Answer:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=env, **settings)
    return Answer(done.returncode, done.stdout, done.stderr)


# --- help ------------------------------------------------------------------------------------------------------------


def test_the_verbs_are_those_the_readme_names():
    named = "audit bench case cases classify export import look recipe recipes runs sample score train tune"
    assert named.split() == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_shows_an_example_and_knows_json(headway, verb):
    answer = headway(verb, "--help")
    assert answer.code == 0
    assert f"Example: headway {verb}" in answer.words
    assert "--json" in answer.out


def test_help_is_quick_and_imports_nothing_heavy(home):
    def seconds() -> float:
        """Of the processor: a busy machine is no reason to fail."""
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
    assert found["scores"] == json.loads((home / "runs" / "other" / "scores.json").read_text())


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
    assert headway("runs", "--runs", "nowhere", "--json").json == {"runs": []}


def test_cases_as_json(headway):
    found = headway("cases", "--json").json["cases"]
    assert "see the future" in found["B7"]["title"] and "minutes" in found["B7"]["quick"]


# --- every verb, for people ------------------------------------------------------------------------------------------


def test_train_says_its_choices_and_ends_with_labelled_scores(headway):
    answer = headway("train", "tiny.yaml", "--name", "other")
    assert answer.code == 0
    assert "float32: on a CPU, bf16 gains nothing" in answer.err
    assert "perplexity per token (char) · valid · " in answer.out and LABEL in answer.out
    assert "kept in runs/" in answer.out


def test_a_warm_up_longer_than_training_is_warned_about(headway):
    answer = headway("train", "tiny.yaml", "training.schedule.warmup=1 epoch", "--name", "short")
    assert "warning: training ends in the warm-up" in answer.err


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


def test_export_and_import_say_what_they_made_and_what_to_do_with_it(headway):
    left = headway("export", "tiny")
    assert left.code == 0 and "tiny-gpt2/: README.md, config.json" in left.out
    assert 'load it: .from_pretrained("tiny-gpt2")' in left.out
    back = headway("import", "tiny-gpt2")
    assert back.code == 0 and "runs/tiny-gpt2/: " in back.out and "headway sample runs/tiny-gpt2" in back.out
    assert "data.source=python-docs, because no folder says what its model was trained on" in back.err


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


def test_a_classifier_is_trained_scored_and_asked(headway, classifier):
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
    listed = headway("runs").out
    assert "perplexity per token or accuracy" in " ".join(listed.split()) and "valid 1.000" in listed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sample pets --prompt cats", "to write is asked of language models, and pets is a classifier"),
        ("score pets --text cats", "the perplexity of a sentence is asked of language models"),
        ("score pets --stride 2", "segments and strides are asked of language models"),
        ("export pets", "model.kind: GPT-2 is a language-model, not a classifier"),
        (
            "classify tiny cats",
            "classes are asked of classifiers, and tiny is a language-model; try headway score",
        ),
        ("classify pets ''", "the text is empty"),
        ("classify pets 'a b c d e f g h i'", "9 tokens, but the learned positions end at 8"),
        ("train pets.yaml --name x data.label=lable data.text=1", "'tiny.tsv' has no column of that name"),
        ("train pets.yaml --name x data.text=2 data.label=9", "data.label=9: 'tiny.tsv' has columns 1 to 2"),
        ("train tiny.yaml --name x model=classifier", "a classifier learns from labelled data, not from text data"),
        ("train pets.yaml --name x data={source: sst}", "there is no corpus called 'sst'"),
    ],
)
def test_what_the_one_can_the_other_cannot(headway, classifier, words, message):
    answer = headway(*shlex.split(words.replace("{source: sst}", "'{source: sst}'")))
    assert (answer.code, answer.out) == (2, "") and message in answer.err and "Traceback" not in answer.err


# --- bad input -------------------------------------------------------------------------------------------------------

NOT_FITTING = "tiny-but-wide"

BAD = {
    "a missing file": ("train tiny.yaml --name new data.path=none.txt", "there is no file or folder 'none.txt'"),
    "an empty file": ("train tiny.yaml --name new data.path=empty.txt", "'empty.txt' is empty; expected text"),
    "a binary file": (
        "train tiny.yaml --name new data.path=binary.txt",
        "'binary.txt' is binary, not text: there is a zero byte",
    ),
    "a missing file to score": ("score tiny --file none.txt", "'none.txt' cannot be read: No such file"),
    "an empty file to score": ("score tiny --file empty.txt", "'empty.txt' is empty"),
    "a binary file to score": ("score tiny --file binary.txt", "'binary.txt' is binary"),
    "a text shorter than a segment": (
        "train tiny.yaml --name new data.path=short.txt",
        "the train split has 10 tokens, too few for a segment of 16 tokens and the one after it; the longest possible",
    ),
    "a split that is too short": (
        "train tiny.yaml --name new data.path=longer.txt data.valid_fraction=0.03",
        "split 'valid' of 'longer.txt' is a single token",
    ),
    "width and heads": ("train tiny.yaml model.width=30 model.mixer.heads=4", "width 30 is not divisible by 4 heads"),
    "positions in training": ("train tiny.yaml data.segment=17", "the learned positions end at 16"),
    "positions in scoring": ("train tiny.yaml scoring.segment=17", "learned positions end at 16"),
    "positions asked later": ("score tiny --segment 17", "a segment of 17 tokens, but the learned positions end at 16"),
    "an unknown recipe": ("train shakespear", "there is no recipe 'shakespear'; did you mean 'shakespeare-char-cpu'?"),
    "an unknown recipe file": ("train tiny.yml", "there is no recipe file tiny.yml; did you mean 'tiny.yaml'?"),
    "an unknown key": ("train tiny.yaml model.wdith=3", "model.wdith: unknown key; did you mean 'width'?"),
    "no key at all": ("train tiny.yaml alibi", "'alibi' is not a change; write key=value"),
    "an unknown device": (
        "train tiny.yaml training.device=gpu",
        "there is no device 'gpu'; there are: auto, cpu, cuda",
    ),
    "an unknown corpus": (
        "train tiny.yaml data.source=wikitext",
        "no corpus called 'wikitext'; did you mean 'wikitext-2'",
    ),
    "an unknown split": (
        "train tiny.yaml --name new training.evaluate_on=[vlid]",
        "no split 'vlid'; did you mean 'valid'?",
    ),
    "an unknown verb": ("trian tiny.yaml", "No such command 'trian'. Did you mean 'train'?"),
    "an unknown option": ("train tiny.yaml --nmae x", "No such option: --nmae (Possible options: --name)"),
    "an unknown run": ("score tniy", "there is no run 'tniy'; did you mean 'tiny'?"),
    "an unknown checkpoint": ("score tiny --checkpoint 7", "tiny has no checkpoint '7'; there are: last, 12, 8"),
    "a learning rate of NaN": (
        "train tiny.yaml training.optimizer.learning_rate=nan",
        "expected a finite number, not nan",
    ),
    "a negative learning rate": (
        "train tiny.yaml training.optimizer.learning_rate=-1",
        "training.optimizer.learning_rate: expected a number greater than or equal to 0, not -1",
    ),
    "a learning rate of NaN among others": (
        "train tiny.yaml --vary training.optimizer.learning_rate=1e-3,nan",
        "expected a finite number, not nan",
    ),
    "a run that exists": (
        "train tiny.yaml",
        "runs/tiny exists: continue it with --resume, or give this run another name",
    ),
    "one of many runs that exists": ("train tiny.yaml --vary seed=8..9", "runs/tiny-seed-9 exists: continue it with"),
    "a run of another recipe": (
        "train tiny.yaml seed=3 --resume",
        "made by another recipe: seed was 0 and is 3; use --name",
    ),
    "nothing to resume": ("train tiny.yaml --name new --resume", "there is nothing to resume: runs/new does not exist"),
    "a name that is a path": ("train tiny.yaml --name a/b", "'a/b' cannot be the name of a run"),
    "a name that is too long": (f"train tiny.yaml --name {'x' * 300}", "cannot be the name of a run"),
    "a newer version's run": ("score newer", "written by Headway 9.9 in format 99; this is"),
    "resuming a newer version's run": ("train tiny.yaml --name newer --resume", "use a newer Headway"),
    "no run": ("score photos", "photos is not a run folder: it has no run.json"),
    "a checkpoint that does not fit": (f"score {NOT_FITTING}", "the checkpoint's weights do not fit this recipe"),
    "a broken checkpoint": ("score broken", "broken has no checkpoint that is whole"),
    "letters outside the vocabulary": (
        "score tiny --text snow☃",
        "lacks '☃' (U+2603); the first is '☃' in line 1, column",
    ),
    "letters outside the vocabulary, prompted": ("sample tiny --prompt ☃", "lacks '☃' (U+2603)"),
    "a prompt that is too long": (
        "sample tiny --prompt ThequickbrownfoxnoZoë",
        "the prompt has 21 tokens, but the model's context is 16",
    ),
    "an empty prompt": ("sample tiny --prompt=", "the prompt is empty"),
    "an empty text": ("score tiny --text=", "the text is empty"),
    "two things to score": ("score tiny --text a --file tiny.txt", "are three different things to score: give one"),
    "a temperature below zero": ("sample tiny --temperature -1", "Invalid value for '--temperature'"),
    "no HEADWAY_DATA": (
        "train shakespeare-char-cpu",
        "read from the folder named by the environment variable HEADWAY_DATA, which is not set",
    ),
    "a recipe that is no YAML": ("train broken.yaml", "broken.yaml: not valid YAML: line 2, column"),
    "a key given twice": ("recipe twice.yaml", "twice.yaml:2: seed is given twice"),
    "replicas of different shape": (
        "train tiny.yaml --vary model.width=16,32",
        "they differ in model.width; only seed,",
    ),
    "an export to an unknown format": (
        "export tiny --to gpt-2",
        "no format 'gpt-2' to export to; did you mean 'gpt2'?",
    ),
    "an export that is there": ("export tiny -o photos", "photos exists: remove it, or name another folder with -o"),
    "an export without a GPT-2 form": ("export rotary", "model.positions: GPT-2 learns a vector per position"),
    "an import of nothing": ("import none", "there is no folder 'none'; expected one with config.json"),
    "an import of no model": ("import photos", "photos/config.json is missing: is this the folder of a model?"),
    "an import of pickle": ("import pickled", "pickle (pytorch_model.bin), which is not read"),
    "an import as a run that exists": ("import pickled --name tiny", "runs/tiny exists"),
    "runs inside a file": ("train tiny.yaml --runs tiny.txt", "cannot make the run folder tiny.txt/tiny"),
}


@pytest.fixture
def traps(home) -> Path:
    """Everything the commands above may stumble over."""
    (home / "empty.txt").touch()
    (home / "binary.txt").write_bytes(b"MZ\x00\xff")
    (home / "short.txt").write_text("a" * 12)
    (home / "longer.txt").write_text("a" * 30)
    (home / "broken.yaml").write_text("model:\n\twidth: 3\n")
    (home / "twice.yaml").write_text("seed: 1\nseed: 2\n")
    (home / "photos").mkdir()
    for name in ("newer", NOT_FITTING, "broken", "tiny-seed-9"):
        shutil.copytree(home / "runs" / "tiny", home / "runs" / name)
    facts = home / "runs" / "newer" / "run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"format": 99, "headway": "9.9"}))
    recipe = home / "runs" / NOT_FITTING / "recipe.yaml"
    recipe.write_text(recipe.read_text("utf-8").replace("width: 16", "width: 32"), "utf-8")
    (home / "pickled").mkdir()
    (home / "pickled" / "config.json").write_text('{"model_type": "gpt2"}')
    (home / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    shutil.copytree(home / "runs" / "tiny", home / "runs" / "rotary")
    recipe = home / "runs" / "rotary" / "recipe.yaml"
    recipe.write_text(recipe.read_text("utf-8").replace("kind: learned", "kind: rotary"), "utf-8")
    for weights in (home / "runs" / "broken").rglob("weights.safetensors"):
        weights.write_bytes(weights.read_bytes()[:100])
    return home


@pytest.mark.parametrize("mistake", BAD)
def test_bad_input_is_one_clear_message_and_nothing_is_touched(headway, traps, mistake):
    words, message = BAD[mistake]
    before = snapshot(traps)
    answer = headway(*words.split())
    assert answer.code == 2
    assert message in answer.words
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert snapshot(traps) == before


@pytest.mark.parametrize("mistake", ["an unknown key", "a binary file", "a run that exists", "an unknown verb"])
def test_bad_input_is_no_different_through_a_real_process(traps, mistake):
    words, message = BAD[mistake]
    answer = headway_process(*words.split())
    assert answer.code == 2
    assert message in answer.words
    assert answer.out == "" and "Traceback" not in answer.err


def test_all_mistakes_are_told_at_once(headway):
    changes = [
        "model.wdith=3",
        "sed=1",
        "training.batch=x",
        "training.optimizer.learning_rate=nan",
        "model.positions=q",
    ]
    answer = headway("train", "tiny.yaml", *changes)
    assert answer.code == 2
    assert answer.err.startswith("headway: tiny.yaml: 5 things are wrong\n")
    assert answer.err.count("command line: ") == 5


@pytest.mark.parametrize("number", [28, 30])
def test_a_disk_that_cannot_be_written_is_said_in_words(headway, home, monkeypatch, number):
    def fail(self, checkpoint):
        raise OSError(number, os.strerror(number), "there")

    monkeypatch.setattr("headway.run.Run.save_checkpoint", fail)
    answer = headway("train", "tiny.yaml", "--name", "full")
    assert answer.code == 2
    assert answer.err.endswith(f"headway: {os.strerror(number)} (there); what was saved before is whole\n")


def test_our_own_mistakes_are_not_hidden(headway, monkeypatch):
    def fail(*given):
        raise ZeroDivisionError

    monkeypatch.setattr("headway.recipe.load", fail)
    with pytest.raises(ZeroDivisionError):
        headway("train", "tiny.yaml")


def test_a_reader_that_goes_away_is_no_reason_to_complain(home):
    command = shlex.join([*COMMAND, "sample", "tiny", "--tokens", "400"])
    done = subprocess.run(["bash", "-c", f"{command} | head -c 5"], capture_output=True, text=True)
    assert len(done.stdout) == 5
    assert done.stderr == ""


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def wait_for(path: Path, process: subprocess.Popen) -> None:
    until = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size):
        assert process.poll() is None and time.monotonic() < until, "training did not begin"
        time.sleep(0.005)


def test_ctrl_c_saves_scores_and_says_how_to_go_on_and_going_on_ends_as_if_nothing_had_been(headway, home):
    seldom = ["training.evaluate_every=50 steps", "training.checkpoint_every=50 steps"]
    changes = ["training.duration=600 steps", "model.dropout=0.1", *seldom]
    words = ["train", "tiny.yaml", *changes, "--runs", "my runs", "--name"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*COMMAND, *words, "cut"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as process:
        wait_for(home / "my runs" / "cut" / "metrics.jsonl", process)
        process.send_signal(signal.SIGINT)
        out, err = (text.decode() for text in process.communicate(timeout=60))
    assert process.returncode == 130, err
    assert "finishing this step, then saving" in err
    facts = json.loads((home / "my runs" / "cut" / "run.json").read_text())
    step = facts["step"]
    assert facts["status"] == f"interrupted at step {step}" and 0 < step < 600
    assert (home / "my runs" / "cut" / "checkpoints" / f"step-{step:08d}" / "weights.safetensors").exists()
    assert "valid.loss" in json.loads((home / "my runs" / "cut" / "scores.json").read_text())
    assert LABEL in out

    again = shlex.split(err.rsplit("to go on: ", 1)[1])
    assert again == ["headway", *words, "cut", "--resume"]
    assert headway_process(*again[1:]).code == 0
    assert headway_process(*words, "whole").code == 0
    cut, whole = (snapshot(home / "my runs" / name) for name in ("cut", "whole"))
    assert json.loads(cut["run.json"])["status"] == "finished"
    for name in ("metrics.jsonl", "scores.json", "checkpoints/step-00000600/weights.safetensors"):
        assert cut[name] == whole[name], name
