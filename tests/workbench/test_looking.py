"""The data of the look page, compared with `headway look`; sent as bytes, and computed by a process that may die."""

import base64
import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench_tools import asker
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny import cache_in, tiny_recipe

from headway.core.errors import UserError
from headway.experiment.inspect import gradients_at, look_at
from headway.experiment.train import train
from headway.run.folder import open_run
from headway.workbench.bench import Bench
from headway.workbench.looking import kept
from headway.workbench.looking.frames import half, pack, unpack
from headway.workbench.looking.pictures import brought
from headway.workbench.looking.subject import SMALL, Subject

SENTENCE = "The lazy dog"


@pytest.fixture(scope="module")
def folder(workshop, tmp_path_factory) -> Path:
    """Two runs, one with attention and one with a recurrence."""
    made = tmp_path_factory.mktemp("bench")
    recipes = {
        "attention": tiny_recipe(workshop.text, "model.layers=2", "model.positions=alibi"),
        "gru": tiny_recipe(workshop.text, "model.mixer=gru", "model.positions=none"),
    }
    with cache_in(workshop.cache):
        for name, recipe in recipes.items():
            train([recipe], [name], made / "runs")
    return made


def ask(folder: Path, question: str, run: str = "attention", **given):
    return unpack(kept.answer(str(folder / "runs" / run), question, **given))


@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(), max_size=3),
    st.lists(st.tuples(st.sampled_from(["uint8", "float16", "float32"]), st.lists(st.integers(0, 4), max_size=3))),
)
def test_packed_arrays_are_unpacked(header, shapes):
    header.pop("arrays", None)
    drawn = np.random.default_rng(0)
    arrays = {str(k): drawn.integers(0, 200, shape).astype(dtype) for k, (dtype, shape) in enumerate(shapes)}
    told, found = unpack(pack(header, arrays))
    assert told == header and found.keys() == arrays.keys()
    assert all((found[k] == arrays[k]).all() and found[k].dtype == arrays[k].dtype for k in arrays)


def test_every_array_is_aligned_for_the_browser():
    frame = pack({"name": "Zoë"}, {"a": np.zeros(3, np.uint8), "b": np.zeros(5, np.float32)})
    length = int.from_bytes(frame[:4], "little")
    assert (4 + length) % 8 == 0 and len(frame) % 8 == 0


def test_only_weights_of_exactly_zero_are_blank():
    found = half(np.array([0, 1e-12, 1e-8, 0.25, 1], np.float32))
    assert found.dtype == np.float16 and (found > 0).tolist() == [False, True, True, True, True]
    assert found[3:].tolist() == [0.25, 1]


def test_maps_equal_those_of_headway_look(folder):
    maps = look_at(open_run(str(folder / "runs" / "attention")), SENTENCE)
    found, arrays = ask(folder, "maps", text=SENTENCE)
    assert found["tokens"] == list(maps.tokens) and len(found["heads"]) == 4
    for head in found["heads"]:
        weights = maps.weights(head["layer"], head["head"])
        n, small = len(maps.tokens), arrays["small"][head["small"]]
        assert np.abs((small[:n, :n] / 255.0) ** 2 - weights.numpy()).max() < 0.005
        assert ((small[:n, :n] > 0) == (weights > 0).numpy()).all()
        _, whole = ask(folder, "map", text=SENTENCE, stack="self", layer=head["layer"], head=head["head"])
        assert np.abs(whole["map"] - weights.numpy()).max() < 1e-3
    _, rolled = ask(folder, "rollout", text=SENTENCE)
    assert np.abs(rolled["map"] - maps.rollout().numpy()).max() < 1e-3
    numbers, _ = ask(folder, "numbers", text=SENTENCE)
    assert numbers["heads"][3]["entropy"] == pytest.approx(maps.statistics[1].of(1)["entropy"])


def test_small_maps_of_long_texts_show_the_largest_weight_of_each_block(folder):
    text = (SENTENCE + " ") * 20
    found, arrays = ask(folder, "maps", text=text)
    tokens = len(found["tokens"])
    assert tokens > SMALL and found["stacks"][0]["small"] == [SMALL, SMALL]
    _, whole = ask(folder, "map", text=text, stack="self", layer=1, head=0)
    pooled = F.adaptive_max_pool2d(torch.tensor(whole["map"][None]).float(), SMALL)[0].numpy()
    assert np.abs((arrays["small"][2] / 255.0) ** 2 - pooled).max() < 0.006


def test_losses_equal_those_of_headway_score_and_change_with_heads_off(folder):
    from headway.experiment.load import load_model
    from headway.tasks import LanguageModelling
    from headway.tasks.abilities import ReadingWindow

    run = open_run(str(folder / "runs" / "attention"))
    scored = LanguageModelling.score_text(run, load_model(run)[0], SENTENCE, ReadingWindow())
    found, _ = ask(folder, "losses", text=SENTENCE)
    assert found["nats"] == pytest.approx(scored.nats, abs=1e-5) and "without" not in found
    off, _ = ask(folder, "losses", text=SENTENCE, off=[["self", 0, 1], ["self", 1, 0]])
    assert off["nats"] == found["nats"] and off["without"] != found["nats"]
    each, _ = ask(folder, "each_off", text=SENTENCE)
    alone, _ = ask(folder, "losses", text=SENTENCE, off=[["self", 1, 1]])
    assert each["each"][3]["nats"] == pytest.approx(sum(alone["without"]) - sum(alone["nats"]), abs=1e-6)


def test_gradients_of_long_texts_are_computed_one_prediction_at_a_time(folder):
    whole = gradients_at(open_run(str(folder / "runs" / "attention")), SENTENCE)
    found, arrays = ask(folder, "gradients", text=SENTENCE)
    assert found["places"] is None and np.abs(arrays["map"] - whole.shares.numpy()).max() < 1e-3
    text = (SENTENCE + " ") * 8
    all_rows = gradients_at(open_run(str(folder / "runs" / "attention")), text)
    found, arrays = ask(folder, "gradients", text=text, row=40)
    assert found["places"] == [40] and arrays["map"].shape[0] == 1
    assert np.abs(arrays["map"][0] - all_rows.shares[40].numpy()).max() < 1e-3


def test_a_recurrence_has_losses_and_a_note_instead_of_maps(folder):
    found, arrays = ask(folder, "maps", "gru", text=SENTENCE)
    assert found["heads"] == [] and arrays["small"].size == 0 and "no attention" in found["notes"][0]
    assert len(ask(folder, "losses", "gru", text=SENTENCE)[0]["nats"]) == len(found["tokens"])
    with pytest.raises(UserError, match="no attention"):
        ask(folder, "rollout", "gru", text=SENTENCE)


@pytest.mark.parametrize(
    ("question", "given", "words"),
    [
        ("maps", {"text": ""}, "empty"),
        ("map", {"text": SENTENCE, "stack": "self", "layer": 9, "head": 0}, "no attention in layer 9"),
        ("map", {"text": SENTENCE, "stack": "cross", "layer": 0, "head": 0}, "no maps of 'cross'"),
        ("losses", {"text": SENTENCE, "off": [["self", 0, 5]]}, "no head 5"),
        ("classify", {"text": SENTENCE}, "only possible with classifiers"),
        ("match", {"text": SENTENCE, "image": "/etc/passwd"}, "pictures and captions"),
    ],
)
def test_mistakes_are_reported(folder, question, given, words):
    with pytest.raises(UserError, match=words):
        ask(folder, question, **given)


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        ("é", "not valid base64"),
        ("bm8gcGljdHVyZQ==", "not one of PNG"),
        ("", "is empty"),
        ("iVBORw0KGgo=", "cannot be read"),
    ],
)
def test_an_upload_that_is_no_picture_is_refused(picture, words):
    with pytest.raises(UserError, match=words):
        brought(picture)


def test_a_picture_is_uploaded_as_the_bytes_of_its_file():
    file = io.BytesIO()
    Image.new("L", (30, 20), 200).save(file, "PNG")
    shown = brought(base64.b64encode(file.getvalue()).decode())
    assert shown.image.size == (30, 20) and shown.image.mode == "RGB"


def test_texts_too_long_for_memory_are_refused_before_anything_is_computed(folder, monkeypatch):
    subject = Subject(folder / "runs" / "attention", "auto")
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 10)
    with pytest.raises(UserError, match="a text of about"):
        subject.maps(SENTENCE * 100)


def test_new_weights_are_loaded(folder, workshop, tmp_path):
    with cache_in(workshop.cache):
        (run,) = train([tiny_recipe(workshop.text)], ["again"], tmp_path)
    before = kept.answer(str(run.folder), "losses", text=SENTENCE)
    assert kept.answer(str(run.folder), "losses", text=SENTENCE) == before
    saved = run.checkpoint("last")
    for tensor in saved.weights.values():
        tensor.mul_(0.5)
    for one in run.home.iterdir():
        shutil.rmtree(one)
    run.save_checkpoint(saved)
    assert kept.answer(str(run.folder), "losses", text=SENTENCE) != before


def test_a_page_gets_bytes_or_an_error_message(folder):
    asked = {"run": "runs/attention", "text": SENTENCE}
    with asker(Bench(folder)) as client:
        first = client.post("/api/ask/look/maps", json=asked)
        assert first.headers["content-type"] == "application/octet-stream"
        assert first.content == kept.answer(str(folder / "runs/attention"), "maps", text=SENTENCE)
        assert client.post("/api/ask/look/about", json={"run": "runs/x"}).status_code == 404
        assert client.post("/api/ask/look/about", json={"run": "../bench/runs/attention"}).status_code == 404
        empty = client.post("/api/ask/look/maps", json={**asked, "text": ""})
        assert (empty.status_code, empty.json()["error"]) == (422, "the sentence is empty: there is nothing to look at")
        assert client.post("/api/ask/look/nothing", json=asked).status_code == 422
        assert len(client.get("/api/ask/look/colours").json()["weights"]) == 256
