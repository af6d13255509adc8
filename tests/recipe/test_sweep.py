import pytest

from headway.core.errors import UserError
from headway.recipe.recipe import Recipe
from headway.recipe.sweep import MAX_REPLICAS, varied

RATE = "training.optimizer.learning_rate"


def test_without_variation_there_is_one_recipe_under_its_own_name():
    assert varied(Recipe(), "base", []) == (["base"], [Recipe()])


@pytest.mark.parametrize(
    ("text", "seeds"), [("0..3", [0, 1, 2, 3]), ("5", [5]), ("1,3..4,9", [1, 3, 4, 9]), ("2..2", [2]), ("0, 7", [0, 7])]
)
def test_ranges_and_lists_of_values(text, seeds):
    names, recipes = varied(Recipe(), "base", [f"seed={text}"])
    assert [r.seed for r in recipes] == seeds
    assert names == [f"base-seed-{seed}" for seed in seeds]


def test_two_variations_give_every_combination_and_the_last_varies_fastest():
    names, recipes = varied(Recipe(), "base", ["seed=0..1", f"{RATE}=1e-3,3e-3"])
    assert [(r.seed, r.training.optimizer.learning_rate) for r in recipes] == [
        (0, 1e-3), (0, 3e-3), (1, 1e-3), (1, 3e-3)
    ]  # fmt: skip
    assert names[1] == "base-seed-0-learning_rate-3e-3"
    assert len(set(names)) == 4


def test_everything_else_equals_the_base_recipe():
    base = Recipe().with_changes(["model.width=64", "training.optimizer.kind=sgd"])
    _, (made,) = varied(base, "base", ["seed=4"])
    assert made == base.with_changes(["seed=4"])


@pytest.mark.parametrize(
    ("variations", "message"),
    [
        (["seed"], "--vary seed: write --vary KEY=VALUES, for example --vary seed=0..7"),
        (["seed="], "write --vary KEY=VALUES"),
        (["seed=3..1"], "--vary seed=3..1: 3..1 counts backwards"),
        (["seed=1,1"], "a value is given twice"),
        (["seed=0..2,1"], "a value is given twice"),
        (["seed=0..1", "seed=2"], "--vary seed is given twice: give all values together"),
        (["seed=a"], "seed: expected a valid integer, not 'a'"),
        (["sed=1"], "sed: unknown key; did you mean 'seed'?"),
        (["model.width=30"], "width 30 is not divisible by 4 heads"),
        ([f"seed=0..{MAX_REPLICAS}"], "4,097 combinations are more than the limit of one population (4096)"),
    ],
)
def test_invalid_variations_are_refused(variations, message):
    with pytest.raises(UserError) as caught:
        varied(Recipe(), "base", variations)
    assert message in str(caught.value)
