"""Bad input on the command line: one clear message, nothing touched, exit code 2."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import COMMAND, Answer
from tiny import reseal, snapshot

NOT_FITTING = "tiny-but-wide"

BAD = {
    "a missing file": ("train tiny.yaml --name new data.path=none.txt", "there is no file or folder 'none.txt'"),
    "an empty file": ("train tiny.yaml --name new data.path=empty.txt", "'empty.txt' is empty; expected text"),
    "a binary file": (
        "train tiny.yaml --name new data.path=binary.txt",
        "'binary.txt' is binary, not text: it has a zero byte",
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
        "split 'valid' of 'longer.txt' has fewer than two tokens",
    ),
    "width and heads": ("train tiny.yaml model.width=30 model.mixer.heads=4", "width 30 is not divisible by 4 heads"),
    "positions in training": ("train tiny.yaml data.segment=17", "the learned positions end at 16"),
    "positions in scoring": ("train tiny.yaml scoring.segment=17", "learned positions end at 16"),
    "positions asked later": (
        "score tiny --segment 17",
        "a segment of 17 tokens is too long: the learned positions end at 16",
    ),
    "an unknown recipe": ("train shakespear", "there is no recipe 'shakespear'; did you mean 'shakespeare-char-cpu'?"),
    "an unknown recipe file": ("train tiny.yml", "there is no recipe file tiny.yml; did you mean 'tiny.yaml'?"),
    "an unknown key": ("train tiny.yaml model.wdith=3", "model.wdith: unknown key; did you mean 'width'?"),
    "no key at all": ("train tiny.yaml alibi", "'alibi' is not a change; write key=value"),
    "an unknown device": (
        "train tiny.yaml training.device=gpu",
        "there is no device 'gpu'; use auto, cpu, cuda",
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
        "train tiny.yaml seed=3 --name tiny --resume",
        "made with a different recipe: seed was 0 and is 3; use --name",
    ),
    "nothing to resume": ("train tiny.yaml --name new --resume", "there is nothing to resume: runs/new does not exist"),
    "a name that is a path": ("train tiny.yaml --name a/b", "'a/b' cannot be the name of a run"),
    "a name that is too long": (f"train tiny.yaml --name {'x' * 300}", "cannot be the name of a run"),
    "a newer version's run": ("score newer", "written by Headway 9.9 in format 99; this is"),
    "resuming a newer version's run": ("train tiny.yaml --name newer --resume", "use a newer Headway"),
    "no run": ("score photos", "photos is not a run folder: it has no run.json"),
    "a checkpoint that does not fit": (f"score {NOT_FITTING}", "the checkpoint's weights do not fit this recipe"),
    "a broken checkpoint": ("score broken", "broken has no intact checkpoint"),
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
    "two things to score": ("score tiny --text a --file tiny.txt", "give only one of --split, --file and --text"),
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
        "unknown export format 'gpt-2'; did you mean 'gpt2'?",
    ),
    "an export that is there": ("export tiny -o photos", "photos exists: remove it, or choose another folder with -o"),
    "an export without a GPT-2 form": ("export rotary", "model.positions: GPT-2 learns an embedding per position"),
    "an import of nothing": ("import none", "there is no folder 'none'; expected a folder with config.json"),
    "an import of no model": ("import photos", "photos/config.json is missing: is this the folder of a model?"),
    "an import of pickle": ("import pickled", "pickle (pytorch_model.bin), which Headway does not read"),
    "an import as a run that exists": ("import pickled --name tiny", "runs/tiny exists"),
    "runs inside a file": ("train tiny.yaml --runs tiny.txt", "cannot make the run folder tiny.txt/tiny"),
}


@pytest.fixture
def traps(home) -> Path:
    """The faulty files that the commands above name."""
    (home / "empty.txt").touch()
    (home / "binary.txt").write_bytes(b"MZ\x00\xff")
    (home / "short.txt").write_text("ab" * 6)
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
    for name in ("newer", NOT_FITTING, "rotary"):
        reseal(home / "runs" / name)
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


@pytest.mark.parametrize("mistake", ["a run that exists", "an unknown verb"])
def test_bad_input_gives_the_same_message_in_a_real_process(forge, traps, mistake):
    words, message = BAD[mistake]
    answer = Answer(*forge.at(traps).run(*words.split())[:3])
    assert answer.code == 2
    assert message in answer.words
    assert answer.out == "" and "Traceback" not in answer.err


def test_all_mistakes_are_reported_at_once(headway):
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
def test_a_disk_that_cannot_be_written_is_a_clear_message(headway, home, monkeypatch, number):
    def fail(self, checkpoint):
        raise OSError(number, os.strerror(number), "there")

    monkeypatch.setattr("headway.run.folder.Run.save_checkpoint", fail)
    answer = headway("train", "tiny.yaml", "--name", "full")
    assert answer.code == 2
    assert answer.err.endswith(f"headway: {os.strerror(number)} (there); everything saved before is intact\n")


def test_bugs_of_headway_keep_their_traceback(headway, monkeypatch):
    def fail(*given):
        raise ZeroDivisionError

    monkeypatch.setattr("headway.recipe.recipe.load", fail)
    with pytest.raises(ZeroDivisionError):
        headway("train", "tiny.yaml")


def test_a_closed_pipe_is_no_error(home):
    command = shlex.join([*COMMAND, "sample", "tiny", "--tokens", "400"])
    done = subprocess.run(["bash", "-c", f"{command} | head -c 5"], capture_output=True, text=True)
    assert len(done.stdout) == 5
    assert done.stderr == ""
