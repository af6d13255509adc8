import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny import with_weights

from headway.core.errors import UserError
from headway.core.spec import documentation
from headway.core.yaml import read_tree
from headway.recipe.library import first_sentence, head_comment, packaged
from headway.recipe.recipe import Recipe, from_tree, load
from headway.recipe.text import WIDTH, annotated

RATES = st.floats(0, 1e3)
SMALL = st.integers(1, 64)
LENGTHS = st.builds(
    "{} {}".format, st.integers(1, 10**9) | st.floats(1e-3, 1e30), st.sampled_from(["steps", "epochs", "tokens"])
)
POSITIONS = st.sampled_from(["none", "learned", "alibi", "alibi-symmetric", "t5"]) | st.builds(
    dict, kind=st.sampled_from(["rotary", "sinusoidal"]), base=st.floats(2, 1e6)
)
TREES = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**70),
        "data": st.fixed_dictionaries(
            {
                "source": st.just("files"),
                "path": st.text(min_size=1) | st.sampled_from(["-5", "null", "Inf", "- a", "a "]),
            },
            optional={
                "valid_fraction": st.floats(0.01, 0.99),
                "tokenizer": st.sampled_from(["char", "word", {"kind": "bpe", "size": 300}]),
                "batches": st.sampled_from(["crops", "contiguous"]),
            },
        ),
        "model": st.fixed_dictionaries(
            {"mixer": st.fixed_dictionaries({"heads": st.sampled_from([1, 2, 4])}, optional={"window": SMALL})},
            optional={"layers": SMALL, "positions": POSITIONS, "dropout": st.floats(0, 0.9), "tied": st.booleans()},
        ),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "duration": LENGTHS,
                "batch": SMALL,
                "optimizer": st.fixed_dictionaries(
                    {"kind": st.sampled_from(["adamw", "adam", "sgd", "adagrad"])}, optional={"learning_rate": RATES}
                ),
                "schedule": st.fixed_dictionaries({}, optional={"warmup": st.none() | LENGTHS}),
                "evaluate_on": st.lists(st.text(), max_size=3),
                "clip": st.none() | st.floats(1e-9, 1e9),
            },
        ),
        "scoring": st.fixed_dictionaries({}, optional={"splits": st.none() | st.lists(st.text()), "stride": SMALL}),
    },
)


def read_back(text: str) -> Recipe:
    tree, lines = read_tree(text, "text")
    return from_tree(tree, "text", lines)


@settings(max_examples=60, deadline=None)
@given(tree=TREES)
def test_any_recipe_can_be_read_back_from_its_text(tree):
    try:
        recipe = from_tree(tree, "drawn")
    except UserError:
        assume(False)
        raise
    again = read_back(annotated(recipe))
    assert again == recipe
    assert again.hash == recipe.hash


@pytest.mark.parametrize("name", with_weights(sorted(packaged())))
def test_every_packaged_recipe_can_be_read_back_from_its_text(name):
    assert read_back(annotated(load(name))) == load(name)


def test_the_text_is_standard_yaml():
    recipe = Recipe()
    assert yaml.safe_load(annotated(recipe))["model"]["mixer"]["heads"] == recipe.model.mixer.heads


def test_every_key_is_there_with_its_documentation_above_it():
    recipe = Recipe()
    lines = annotated(recipe).splitlines()
    for key, spec in {
        "seed: 0": recipe,
        "  segment: null": recipe.data,
        "    heads: 4": recipe.model.mixer,
        "  batch: 16": recipe.training,
        '  duration: "1000 steps"': recipe.training,
        "  evaluate_on: [valid]": recipe.training,
    }.items():
        at = lines.index(key)
        above = [line.strip().removeprefix("# ") for line in lines[max(0, at - 4) : at]]
        told = " ".join(documentation(type(spec))[key.strip().split(":")[0]].split())
        assert told, key
        assert " ".join(above).endswith(told)
    assert max(map(len, lines)) <= WIDTH


def test_the_documentation_of_a_chosen_variant_is_included():
    text = annotated(Recipe().with_changes(["model.positions=rotary"]))
    assert "    # The slowest pair of dimensions turns once" in text
    assert "    base: 10000.0\n" in text


def test_the_first_comment_of_a_file_is_its_description():
    text = "# What it is.\n# command: x\nseed: 3\n# not this\n"
    assert head_comment(text) == "# What it is.\n# command: x\n"
    assert first_sentence(text) == "What it is."
    assert (head_comment("seed: 3\n"), first_sentence("seed: 3\n")) == ("", "")
