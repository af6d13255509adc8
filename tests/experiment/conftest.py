"""A tiny recipe, and four variants of it that can be trained as one population."""

from pathlib import Path

import pytest
from varied import STEPS, VARIED

from headway.data.running.spec import Text
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.recipe.recipe import Recipe
from headway.training.adam import AdamW
from headway.training.schedule import Constant, Duration
from headway.training.spec import TrainingSpec


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe of a tiny model on a small text; runs are written to `runs` in the current folder."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {k} of {k * k % 17} and {k % 5}\n" for k in range(80)))
    return Recipe(
        data=Text(source="files", path=str(text), valid_fraction=0.2),
        model=LanguageModelSpec(layers=1, width=8, context=8, mixer=AttentionSpec(heads=2), dropout=0.1),
        training=TrainingSpec(
            duration=Duration(STEPS, "steps"),
            batch=4,
            optimizer=AdamW(learning_rate=1e-2),
            schedule=Constant(),
            evaluate_every=Duration(3, "steps"),
            evaluate_tokens=64,
            checkpoint_every=Duration(5, "steps"),
            device="cpu",
        ),
    )


@pytest.fixture
def variants(base: Recipe) -> list[Recipe]:
    return [base.with_changes(changes) for changes in VARIED]
