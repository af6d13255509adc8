import pytest
import yaml
from pydantic import ValidationError
from tiny import RECIPE, with_weights

from headway.core.errors import UserError
from headway.core.yaml import read_tree
from headway.data.running.batches import Contiguous
from headway.data.running.spec import Text
from headway.data.vocabularies import Word
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.block import Rms, SwiGlu
from headway.nn.dropout import NoiseSpec
from headway.nn.heads import ReweightCausal, Shift
from headway.nn.penalty import NO_PENALTY, PenaltySpec
from headway.nn.positions import Alibi, Learned, Rotary
from headway.recipe.library import packaged
from headway.recipe.recipe import Recipe, from_tree, load
from headway.recipe.text import annotated
from headway.training.adam import AdamW
from headway.training.optimizers import Sgd
from headway.training.schedule import Constant, Duration
from headway.training.spec import TrainingSpec


def write(folder, text):
    path = folder / "r.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def complaints(*overrides: str, text: str = "") -> list[str]:
    """What is wrong with a recipe of this text after these changes, one line per mistake."""
    tree, lines = read_tree(text, "r.yaml")
    with pytest.raises(UserError) as caught:
        from_tree(tree, "r.yaml", {key: f"r.yaml:{line}" for key, line in lines.items()}, overrides)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


# --- where recipes come from -----------------------------------------------------------------------------------------


def test_a_file_and_python_make_the_same_recipe(tmp_path):
    text = """
    seed: 3
    data: {source: files, path: a.txt, tokenizer: {kind: word, size: 99}, batches: contiguous}
    model: {width: 64, mixer: {heads: 8, fusion: {kind: shift, by: 2}}, positions: alibi}
    training: {duration: 10 epochs, optimizer: {kind: sgd, momentum: 0.5}, schedule: constant, clip: null}
    """
    assert load(write(tmp_path, text)) == Recipe(
        seed=3,
        data=Text(source="files", path="a.txt", tokenizer=Word(size=99), batches=Contiguous()),
        model=LanguageModelSpec(width=64, mixer=AttentionSpec(heads=8, fusion=Shift(by=2)), positions=Alibi()),
        training=TrainingSpec(
            duration=Duration(10, "epochs"), optimizer=Sgd(momentum=0.5), schedule=Constant(), clip=None
        ),
    )


def test_an_empty_file_is_the_default_recipe(tmp_path):
    assert load(write(tmp_path, "# nothing\n")) == Recipe()


@pytest.mark.parametrize("name", with_weights(sorted(packaged())))
def test_every_packaged_recipe_loads_and_has_a_description(name):
    load(name)
    assert packaged()[name].startswith("# ")


def test_a_packaged_name_precedes_a_file_and_takes_changes():
    assert load("shakespeare-char-cpu", ["seed=7"]).seed == 7


def test_a_name_without_a_recipe_gets_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"there is no recipe 'shakespear-char'; did you mean 'shakespeare-char-cpu'\?$"
    ):
        load("shakespear-char")
    with pytest.raises(
        UserError, match=r"there is no recipe 'q'; headway recipes lists them, and a file's name must end in .yaml"
    ):
        load("q")
    write(tmp_path, "")
    with pytest.raises(UserError, match=r"there is no recipe 'r'; did you mean 'r.yaml'\?$"):
        load("r")


def test_a_missing_file_gets_the_nearest_name(tmp_path):
    write(tmp_path, "")
    with pytest.raises(UserError, match=r"there is no recipe file .*r.yml; did you mean '.*r.yaml'\?"):
        load(str(tmp_path / "r.yml"))
    with pytest.raises(UserError, match=r"there is no recipe file nowhere/r\.yaml$"):
        load("nowhere/r.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot read the recipe"):
        load(str(tmp_path / "bad.yaml"))
    with pytest.raises(UserError, match=r"cannot read the recipe .*a folder"):
        load(f"{tmp_path}/")


# --- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "made"),
    [
        (["seed=3"], {"seed": 3}),
        ([" seed = 3 "], {"seed": 3}),
        (["training.optimizer.learning_rate=1e-3"], {"training.optimizer.learning_rate": 0.001}),
        (["training.optimizer.learning_rate=.003"], {"training.optimizer.learning_rate": 0.003}),
        (["training.optimizer.learning_rate=1"], {"training.optimizer.learning_rate": 1.0}),
        (["training.optimizer.learning_rate=0"], {"training.optimizer.learning_rate": 0.0}),
        (["training.evaluate_tokens=20_000"], {"training.evaluate_tokens": 20000}),
        (["training.evaluate_tokens=null"], {"training.evaluate_tokens": None}),
        (["training.clip=~"], {"training.clip": None}),
        (["training.evaluate_on=[valid,test]"], {"training.evaluate_on": ["valid", "test"]}),
        (["training.evaluate_on=[]"], {"training.evaluate_on": []}),
        (["training.duration=5 epochs"], {"training.duration": Duration(5, "epochs")}),
        (["training.duration=2.5Mtokens"], {"training.duration": Duration(2.5e6, "tokens")}),
        (["model.tied=false"], {"model.tied": False}),
        (["model.positions=rotary"], {"model.positions": Rotary()}),
        (["model.positions=rotary", "model.positions.base=500"], {"model.positions": Rotary(base=500)}),
        (["model.positions.kind=rotary", "model.positions.base=500"], {"model.positions": Rotary(base=500)}),
        (["model.positions={kind: rotary, base: 500}"], {"model.positions": Rotary(base=500)}),
        (["model.mixer.fusion=reweight-causal"], {"model.mixer.fusion": ReweightCausal()}),
        (["training.optimizer=sgd"], {"training.optimizer": Sgd()}),
        (["training.optimizer.kind=sgd"], {"training.optimizer": Sgd()}),
        (["training.optimizer.weight_decay=0"], {"training.optimizer": AdamW(learning_rate=0.5, weight_decay=0.0)}),
        (
            ["training.optimizer.momentum=0.5", "training.optimizer.kind=sgd"],
            {"training.optimizer": Sgd(momentum=0.5)},
        ),
        (
            ["training.optimizer.momentum=0.5", "training.optimizer={kind: sgd, momentum: 0.8}"],
            {"training.optimizer": Sgd(momentum=0.8)},
        ),
        (
            ["training.optimizer={kind: sgd, momentum: 0.8}", "training.optimizer.momentum=0.5"],
            {"training.optimizer": Sgd(momentum=0.5)},
        ),
        (
            ["training.optimizer.momentum=0.5", "training.optimizer={kind: sgd, learning_rate: 0.2}"],
            {"training.optimizer": Sgd(momentum=0.5, learning_rate=0.2)},
        ),
        (
            ["training.optimizer.momentum=0.5", "training={optimizer: {momentum: 0.8, kind: sgd}}"],
            {"training.optimizer.momentum": 0.8},
        ),
        (["model.penalty.size=2", "model.penalty=null"], {"model.penalty": NO_PENALTY}),
        (["model.penalty.size=2", "model={layers: 2, penalty: null}"], {"model.penalty": NO_PENALTY}),
        (["model.penalty=null", "model.penalty.size=2"], {"model.penalty": PenaltySpec(size=2)}),
        (["model.noise.kind=locked", "model.noise=each"], {"model.noise": NoiseSpec(kind="each")}),
        (["model.noise.words=0.1", "model.noise=locked"], {"model.noise": NoiseSpec(kind="locked", words=0.1)}),
        (
            ["model.layers=2", "model.mixer.1.heads=8", "model.mixer=[{heads: 4}, {heads: 2}]"],
            {"model.mixer": [AttentionSpec(heads=4), AttentionSpec(heads=2)]},
        ),
        (
            ["model.layers=2", "model.mixer.1.heads=8", "model.mixer=[{heads: 4}, {dropout: 0.1}]"],
            {"model.mixer": [AttentionSpec(heads=4), AttentionSpec(heads=8, dropout=0.1)]},
        ),
        (["model.positions.buckets=8", "model.positions=t5"], {"model.positions.buckets": 8}),
        (["model.norm.kind=rms"], {"model.norm": Rms()}),
        (["model.norm.placement=post", "model.norm.kind=rms"], {"model.norm": Rms(placement="post")}),
        (["model.norm=rms"], {"model.norm": Rms()}),
        (["model.feedforward=swiglu"], {"model.feedforward": SwiGlu()}),
        (["seed=1", "seed=2"], {"seed": 2}),
        (["data={source: python-docs}"], {"data": Text()}),
    ],
)
def test_a_change_sets_its_key(overrides, made):
    text = "data: {source: python-docs}\ntraining: {optimizer: {kind: adamw, learning_rate: 0.5}}\n"
    tree, lines = read_tree(text, "r.yaml")
    recipe = from_tree(tree, "r.yaml", lines, overrides)
    for key, value in made.items():
        found = recipe
        for part in key.split("."):
            found = getattr(found, part)
        assert found == value
        assert type(found) is type(value)


def test_another_kind_resets_its_settings():
    """Settings of the previous kind mean nothing to the new one."""
    assert Recipe().with_changes(["training.optimizer.kind=sgd"]).training.optimizer == Sgd()


def test_changes_do_not_modify_the_original_recipe():
    base = Recipe()
    assert base.with_changes(["model.width=64"]).model.width == 64
    assert base == Recipe()


@pytest.mark.parametrize("override", ["seed", "=3", "model..width=3", ".=3", ""])
def test_invalid_changes_are_refused(override):
    with pytest.raises(UserError, match=r"is not a change; write key=value, for example model\.width=256"):
        Recipe().with_changes([override])


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_all_mistakes_are_reported_together_with_their_places():
    text = "sed: 1\nmodel:\n  wdith: 3\n  layers: two\n  positions: rotry\ntraining:\n  clip: -1\n"
    assert complaints("training.batch=x", "lr=3", "data.source=wikitext2", text=text) == [
        "r.yaml:4: model.layers: expected a valid integer, not 'two'",
        "r.yaml:5: model.positions: unknown kind 'rotry'; did you mean 'rotary'?",
        "r.yaml:3: model.wdith: unknown key; did you mean 'width'?",
        "command line: training.batch: expected a valid integer, not 'x'",
        "r.yaml:7: training.clip: expected a number greater than 0, not -1",
        "r.yaml:1: sed: unknown key; did you mean 'seed'?",
        "command line: lr: unknown key; did you mean 'training.optimizer.learning_rate'?",
        "command line: data.source: there is no corpus called 'wikitext2'; did you mean 'wikitext-2'?",
    ]


def test_a_mistake_in_a_change_is_located_on_the_command_line():
    assert complaints("seed=-1", text="seed: 3")[0].startswith("command line: seed: ")


def test_a_change_inside_a_wrong_value_of_the_file_names_both():
    (line,) = complaints("model.positions.base=3", text="model:\n  positions: rotry\n")
    assert line.startswith("r.yaml:2 or command line: model.positions: unknown kind 'rotry'")


def test_a_setting_of_another_kind_names_that_kind():
    (line,) = complaints("model.positions.base=3")
    assert line == "command line: model.positions.base: learned has no such setting; sinusoidal, rotary have"


@pytest.mark.parametrize("value", ["nan", ".nan", "-1", "-1e-9", "inf", "-inf", "1e999", "fast", "null", "true", "[1]"])
def test_an_invalid_learning_rate_is_refused(value):
    (line,) = complaints(f"training.optimizer.learning_rate={value}")
    assert line.startswith("command line: training.optimizer.learning_rate: expected a ")


@pytest.mark.parametrize(
    ("changes", "keys", "reason"),
    [
        ("model.width=30 model.mixer.heads=4", "model.width, model.mixer.heads", "heads that fit: 1, 2, 3, 5, 6, 10"),
        ("model.width=12 model.positions=rotary", "model.positions, model.width, model.mixer.heads", "odd head"),
        ("data.segment=99", "data.segment, model.context", "segments of 99 tokens do not fit"),
        ("data.segment=99 model.positions=alibi", "data.segment, model.context", "whose context is 64"),
        ("scoring.segment=99", "scoring.segment, model.context", "learned positions end at 64, so segments of 99"),
        ("scoring.stride=65", "scoring.stride, scoring.segment", "a stride of 65 would skip tokens"),
        ("scoring.stride=9 scoring.segment=8", "scoring.stride, scoring.segment", "between segments of 8"),
        ("data.source=files", "data.source, data.path", "needs a path"),
        ("data.path=a.txt", "data.source, data.path", "only read with source: files"),
        ("data.source=wiki", "data.source", "there is no corpus called 'wiki'"),
        ("training.batch=5 training.accumulate=2", "training.batch, training.accumulate", "2 equal parts"),
        (
            "training.keep_best=true training.evaluate_on=[]",
            "training.keep_best, training.evaluate_on",
            "needs a split",
        ),
        ("training.patience=2 training.evaluate_on=[]", "training.patience, training.evaluate_on", "needs a split"),
    ],
)
def test_impossible_combinations_are_refused_before_anything_starts(changes, keys, reason):
    (line,) = complaints(*changes.split())
    assert line.startswith(f"command line: {keys}: ")
    assert reason in line


def test_longer_segments_than_in_training_may_be_scored_if_positions_allow_it():
    assert Recipe().with_changes(["model.positions=alibi", "scoring.segment=99"]).scoring_segment == 99


@pytest.mark.parametrize(
    "changes",
    [
        "model.width=30 model.mixer.heads=x",
        "model.width=x model.mixer.heads=3",
        "data.segment=99 model.context=x",
        "scoring.stride=99 scoring.segment=x",
        "training.batch=x training.accumulate=3",
    ],
)
def test_a_combination_with_an_invalid_key_is_not_checked(changes):
    (line,) = complaints(*changes.split())
    assert "expected a valid integer, not 'x'" in line


def test_impossible_combinations_are_reported_together():
    changes = ["model.width=30", "data.segment=99", "training.batch=5", "training.accumulate=2", "data.source=files"]
    assert len(complaints(*changes)) == 4


def test_an_impossible_recipe_cannot_be_made_in_python_either():
    with pytest.raises(UserError, match="width 30 is not divisible by 4 heads"):
        Recipe(model=LanguageModelSpec(width=30))


# --- identity of a recipe ---------------------------------------------------------------------------------------------


def test_a_recipe_is_frozen():
    recipe = Recipe()
    with pytest.raises(ValidationError, match="frozen"):
        recipe.seed = 3
    with pytest.raises(ValidationError, match="frozen"):
        recipe.model.mixer.heads = 3


def test_equal_recipes_have_equal_hashes_however_they_were_written(tmp_path):
    short = load(write(tmp_path, "model: {positions: rotary, width: 64}\nseed: 2\n"))
    long = load(write(tmp_path, "seed: 2\nmodel: {width: 64, layers: 4, positions: {base: 1e4, kind: rotary}}\n"))
    whole = load(write(tmp_path, yaml.safe_dump(short.model_dump(mode="json"))))
    assert (
        short.hash
        == long.hash
        == whole.hash
        == Recipe().with_changes(["seed=2", "model.width=64"]).with_changes(["model.positions=rotary"]).hash
    )


def test_different_recipes_have_different_hashes():
    changes = ["seed=1", "model.width=64", "model.positions=alibi", "training.clip=null", "training.duration=999 steps"]
    hashes = {Recipe().hash, *(Recipe().with_changes([change]).hash for change in changes)}
    assert len(hashes) == len(changes) + 1


def test_the_hash_of_this_recipe_never_changes():
    """If it changes, existing run folders no longer match their recipes: a default or a key was changed."""
    tree, _ = read_tree(RECIPE.format(path="a.txt"), "r.yaml")
    assert from_tree(tree, "r.yaml").hash == "e75827f2999e"


def test_newer_keys_are_part_of_the_hash_only_if_used(monkeypatch):
    before = Recipe().hash
    monkeypatch.setattr(type(Recipe().training), "added", frozenset({"accumulate"}))
    assert Recipe().hash != before  # other newer keys are then part of it too
    left, used = Recipe().hash, Recipe().with_changes(["training.accumulate=2"]).hash
    assert left == Recipe().with_changes(["training.accumulate=1"]).hash != used


def test_recipes_without_a_kind_are_language_models():
    old = {"data": {"source": "files", "path": "a.txt"}, "model": {"width": 64}}
    made = from_tree(old, "r.yaml")
    assert (made.data.kind, made.model.kind) == ("text", "language-model")
    assert made == Recipe().with_changes(["data.source=files", "data.path=a.txt", "model.width=64"])


def test_the_kind_of_a_model_comes_first_in_the_text():
    lines = [line.strip() for line in annotated(Recipe()).splitlines() if not line.strip().startswith("#")]
    assert lines[lines.index("model:") + 1] == "kind: language-model"


def test_segments_and_strides_follow_from_each_other():
    recipe = Recipe().with_changes(["model.context=32"])
    assert (recipe.segment, recipe.scoring_segment, recipe.stride) == (32, 32, 32)
    recipe = recipe.with_changes(["data.segment=16", "scoring.stride=4"])
    assert (recipe.segment, recipe.scoring_segment, recipe.stride) == (16, 16, 4)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        (["model.norm.placement=post", "training.schedule=constant"], "post-norm without a warm-up"),
        (["model.mixer.fusion=reweight"], "see the future"),
        (["training.optimizer.learning_rate=0"], "nothing will be learnt"),
    ],
)
def test_misleading_settings_are_warned_about(changes, warning):
    (found,) = Recipe().with_changes(changes).warnings()
    assert warning in found


def test_the_defaults_need_no_warning():
    assert Recipe().warnings() == []
    assert Recipe().model.positions == Learned()


@pytest.mark.parametrize(
    "change",
    [
        "seed=100000000000000000000000000",
        "training.batch=1000000000000000000000000",
        "training.clip=1e300",
        "training.optimizer.learning_rate=1e39",
        "training.evaluate_tokens=100000000000000000000",
        "scoring.segment=1000000000000000000000000",
        "model.mixer.window=10000000000000000000000",
        "data.tokenizer={kind: bpe, size: 100000000000000000000000}",
    ],
)
def test_huge_numbers_are_refused_with_their_key(change: str):
    key = "data.tokenizer.size" if "size" in change else change.partition("=")[0]
    with pytest.raises(UserError, match=rf"{key}: 1e\+\d+ is too large; the limit is \d.\de\+\d\d"):
        load("demo", [change])
