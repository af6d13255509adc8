"""`headway look` on the command line and in Python."""

import json
from pathlib import Path

import pytest
import torch
from tiny import cache_in, snapshot, tiny_recipe

import headway
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.look.maps import Maps
from headway.nn.taps import without_head

SENTENCE = "The dog said Zoë"


@pytest.fixture(scope="module")
def runs(workshop, tmp_path_factory) -> Path:
    """The shared run, one with other position embeddings, and one with a vocabulary of words."""
    made = tmp_path_factory.mktemp("runs")
    recipes = {
        "alibi": tiny_recipe(workshop.text, "model.positions=alibi"),
        "words": tiny_recipe(workshop.text, "data.tokenizer=word"),
    }
    with cache_in(workshop.cache):
        for name, recipe in recipes.items():
            train([recipe], [name], made)
    (made / "tiny").symlink_to(workshop.run.folder)
    return made


@pytest.fixture
def look(runs, command_line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: command_line("look", *words, "--runs", str(runs))


def test_a_terminal_gets_the_maps_and_the_numbers(look):
    code, out, _ = look("tiny", SENTENCE)
    assert code == 0
    for text in (
        "Attention of tiny",
        "layer 0 · head 1",
        "entropy  of ln n",
        "the kernel's output and weights·values differ by at most",
    ):
        assert text in out


def test_statistics_as_json(look):
    code, out, _ = look("tiny", SENTENCE, "--json")
    found = json.loads(out)
    assert code == 0 and found["run"].endswith("tiny") and found["file"] is None
    assert "".join(found["tokens"]) == SENTENCE.replace(" ", "␣")
    assert [(h["layer"], h["head"]) for h in found["heads"]] == [(0, 0), (0, 1)]
    names = {"entropy", "entropy_share", "distance", "on_self", "on_first", "on_previous"}
    assert all(names <= head.keys() and 0 <= head["entropy_share"] <= 1 for head in found["heads"])
    assert found["largest_difference"] < 1e-5


@pytest.mark.parametrize("ending", ["html", "svg", "png"])
@pytest.mark.parametrize("what", [[], ["--layer", "0", "--head", "1"], ["--beside", "alibi"], ["--show", "rollout"]])
def test_files(look, tmp_path, runs, ending, what):
    before = snapshot(runs)
    code, out, err = look("tiny", SENTENCE, *what, "-o", f"maps.{ending}")
    assert (code, out) == (0, f"maps.{ending}\n"), err
    assert (tmp_path / f"maps.{ending}").stat().st_size > 5000
    assert snapshot(runs) == before


def test_two_runs_side_by_side(look):
    code, out, _ = look("tiny", SENTENCE, "--beside", "alibi", "--json")
    found = json.loads(out)
    assert code == 0 and found["with"]["run"].endswith("alibi")
    assert set(found["comparison"]["distances"]) == {"layer 0 · head 0", "layer 0 · head 1"}
    code, out, _ = look("tiny", SENTENCE, "--beside", "alibi")
    assert "alibi − tiny" in out and "They differ most in layer 0" in " ".join(out.split())


def test_runs_with_different_tokenizers_are_shown_and_not_compared(look, tmp_path):
    code, _, err = look("tiny", SENTENCE, "--beside", "words", "-o", "two.svg")
    assert code == 0 and "tiny and words do not read the same tokens (16 and 4)" in err
    assert "<text" in (tmp_path / "two.svg").read_text("utf-8")


def test_gradients(look):
    code, out, _ = look("tiny", SENTENCE, "--show", "gradients", "--json")
    assert code == 0 and len(json.loads(out)["predictions"]) == len(SENTENCE)
    assert "depends most on" in look("tiny", SENTENCE, "--show", "gradients")[1]


def test_unknown_words_are_a_warning(look):
    code, _, err = look("words", "The dragon jumps", "-o", "maps.svg")
    assert code == 0 and "1 of 3 words is unknown and read as <unk>: dragon" in err


def test_from_python(workshop):
    maps = headway.look_at(workshop.run, SENTENCE)
    assert isinstance(maps, Maps) and "<svg" in maps._repr_html_()
    model, _ = load_model(workshop.run)
    ids = torch.tensor(maps.sentence.ids)[None, None]
    with torch.no_grad(), headway.intervene(model, {"layers.0.attention.mixed": without_head(0, 1)}):
        silent, _ = model(ids)
    with torch.no_grad():
        assert not torch.allclose(silent, model(ids)[0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny", ""], "the sentence is empty: there is nothing to look at"),
        (["tiny", "The €"], "lacks '€' (U+20AC)"),
        (["tiny", "fox " * 5], "20 tokens, but the learned positions end at 16 (model.context)"),
        (["tiny", SENTENCE, "--layer", "3"], "tiny has no attention in layer 3; layers with attention: 0"),
        (["tiny", SENTENCE, "--head", "-1"], "tiny has no head -1 in layer 0: it has heads 0 to 1"),
        (["tiny", SENTENCE, "-o", "maps.jpg"], "maps.jpg: unknown picture format '.jpg'"),
        (["tiny", SENTENCE, "-o", "nowhere/maps.png"], "nowhere/maps.png: there is no folder nowhere"),
        (["tiny", SENTENCE, "--show", "gradient"], "unknown --show gradient; did you mean 'gradients'?"),
        (["tiny", SENTENCE, "--show", "gradients", "--head", "0"], "leave out --layer and --head"),
        (["tiny", SENTENCE, "--show", "rollout", "--head", "0"], "rollout averages the heads"),
        (["tinny", SENTENCE], "there is no run 'tinny'; did you mean 'tiny'?"),
        (["tiny", SENTENCE, "--with", "alibbi"], "there is no run 'alibbi'; did you mean 'alibi'?"),
    ],
)
def test_mistakes(look, tmp_path, words, said):
    code, out, err = look(*words)
    assert (code, out) == (2, "") and said in err
    assert list(tmp_path.iterdir()) == []


def test_html_in_the_sentence_is_escaped(look, tmp_path):
    code, _, _ = look("words", "<img src=x onerror=alert(1)> The fox", "-o", "maps.html")
    html = (tmp_path / "maps.html").read_text("utf-8")
    assert code == 0 and "<img" not in html and "&lt;img" in html and "http" not in html
