"""A recipe: the complete description of one run (data, model, training, scoring, seed).

It comes from a packaged name, a YAML file or Python. `key.path=value` changes it, and its hash identifies it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from headway.core.errors import UserError
from headway.core.spec import Problem, Spec, as_ever
from headway.core.validation import ImpossibleError, validated, variants
from headway.core.yaml import read_value
from headway.data.images.spec import Pictures  # noqa: F401 (registers a kind that only recipes name)
from headway.data.labelled.spec import Labelled  # noqa: F401
from headway.data.pairs.spec import Pairs  # noqa: F401
from headway.data.running.spec import Text
from headway.data.spec import DataSpec
from headway.formats.pretrained import Pretrained  # noqa: F401 (registers a kind that only recipes name)
from headway.models.classifier import ClassifierSpec  # noqa: F401 (registers a kind that only recipes name)
from headway.models.clip import ClipSpec  # noqa: F401
from headway.models.decoder_only import DecoderOnlySpec  # noqa: F401
from headway.models.encoder_decoder import EncoderDecoderSpec  # noqa: F401
from headway.models.language_model import LanguageModelSpec
from headway.models.masked_language_model import MaskedLanguageModelSpec  # noqa: F401
from headway.models.spec import ModelSpec
from headway.models.start import StartSpec
from headway.recipe import plugins
from headway.recipe.extends import written
from headway.recipe.trained import TrainedFirst  # noqa: F401 (registers a kind that only recipes name)
from headway.scoring.reading import Reading
from headway.scoring.spec import ScoringSpec
from headway.training.spec import TrainingSpec

CALLED_ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate", "max_lr", "eta"), "training.optimizer.learning_rate"),
    **dict.fromkeys(("wd", "weight_decay"), "training.optimizer.weight_decay"),
    **dict.fromkeys(("betas", "adam_beta1"), "training.optimizer.beta1"),
    **dict.fromkeys(("steps", "max_steps", "num_steps", "n_steps"), "training.duration={value} steps"),
    **dict.fromkeys(("iters", "max_iters", "iterations", "updates"), "training.duration={value} steps"),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "max_epochs", "epoch"), "training.duration={value} epochs"),
    **dict.fromkeys(("tokens", "max_tokens", "train_tokens"), "training.duration={value} tokens"),
    **dict.fromkeys(("batch_size", "bs", "train_batch_size", "bsz"), "training.batch"),
    **dict.fromkeys(("warmup", "warmup_steps", "warmup_iters"), "training.schedule.warmup={value} steps"),
    **dict.fromkeys(("grad_clip", "clip_grad", "max_grad_norm", "gradient_clip"), "training.clip"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulation", "grad_accum"), "training.accumulate"),
    **dict.fromkeys(("eval_every", "eval_interval", "eval_steps"), "training.evaluate_every={value} steps"),
    **dict.fromkeys(("save_every", "save_steps", "save_interval"), "training.checkpoint_every={value} steps"),
    **dict.fromkeys(("early_stopping", "early_stop"), "training.patience"),
    **dict.fromkeys(("lr_scheduler", "scheduler", "lr_schedule", "decay"), "training.schedule"),
    **dict.fromkeys(("dtype", "amp", "fp16", "bf16", "mixed_precision"), "training.precision"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"), "model.layers"),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads", "nhead"), "model.mixer.heads"),
    **dict.fromkeys(("d_model", "n_embd", "hidden_size", "embed_dim", "dim", "hidden", "emb_dim"), "model.width"),
    **dict.fromkeys(("block_size", "seq_len", "context_length", "max_len", "n_ctx", "max_length"), "model.context"),
    **dict.fromkeys(("position", "pos", "positional_encoding", "position_encoding", "pos_emb"), "model.positions"),
    **dict.fromkeys(("attention", "attn"), "model.mixer"),
    **dict.fromkeys(("dataset", "corpus"), "data.source"),
    **dict.fromkeys(("file", "filename"), "data.path"),
    **dict.fromkeys(("vocab_size", "vocab", "vocabulary"), "data.tokenizer"),
    **dict.fromkeys(("random_seed", "manual_seed", "random_state"), "seed"),
}
"""The names of settings in other tools, for hints in error messages."""


class Recipe(Spec):
    called_elsewhere: ClassVar[Mapping[str, str]] = CALLED_ELSEWHERE

    seed: int = Field(default=0, ge=0)
    """The initial weights, the data order and the dropout of a run follow from this number alone."""
    data: DataSpec = Text()
    model: ModelSpec = LanguageModelSpec()
    training: TrainingSpec = TrainingSpec()
    scoring: ScoringSpec = ScoringSpec()

    @model_validator(mode="before")
    @classmethod
    def _own_tokens(cls, given: Any) -> Any:
        """Pretrained weights need the tokenizer they were trained with, so it is filled in if not given."""
        model, data = (given.get(part, {}) if isinstance(given, dict) else None for part in ("model", "data"))
        start = model.get("start") if isinstance(model, dict) else None
        if start is None or not isinstance(data, dict) or "tokenizer" in data:
            return given
        try:
            own = TypeAdapter(StartSpec).validate_python(start).tokenizer
        except ValidationError:
            return given  # reported by the validation of model.start
        return given if own is None else {**given, "data": {**data, "tokenizer": own}}

    @model_validator(mode="after")
    def _goes_together(self) -> "Recipe":
        if problems := list(self.all_problems()):
            raise ImpossibleError(problems)
        return self

    def problems(self) -> Iterator[Problem]:
        if self.model.reads != self.data.kind:
            reason = f"a {self.model.kind} learns from {self.model.reads} data, not from {self.data.kind} data"
            yield Problem(("model.kind", "data.kind"), f"{reason}; set data.kind={self.model.reads}")
            return
        yield from self.data.problems_with(self.model, self.scoring)
        own = self.model.own_tokenizer
        if own is not None and self.data.tokenizer.kind not in (own["kind"], "given"):
            origin = own.get("from") or own.get("recipe")
            reason = f"the embeddings of {origin} are for its own tokens, not for those of {self.data.tokenizer.kind}"
            yield Problem(("data.tokenizer", "model.start"), f"{reason}; leave data.tokenizer out")
        by, evaluated = self.training.best_by, self.model.evaluated
        if by not in evaluated:
            reason = f"'{by}' is not evaluated while a {self.model.kind} trains; available: {', '.join(evaluated)}"
            yield Problem(("training.best_by", "model.kind"), reason)
        if self.training.tuning.needs_head and not self.model.has_head:
            reason = f"{self.training.tuning.kind} trains a new head, but a {self.model.kind} has none"
            yield Problem(("training.tuning", "model.kind"), f"{reason}; set training.tuning=full")

    @property
    def segment(self) -> int:
        """Tokens per training row."""
        return self.data.row_length(self.model.context)

    @property
    def scoring_segment(self) -> int:
        return self.scoring.segment or self.segment

    @property
    def stride(self) -> int:
        return self.scoring.stride or self.scoring_segment

    @property
    def carries(self) -> bool:
        """Whether evaluation reads a text as one stream with carried state: as asked for, else as in training."""
        trained_so = self.model.remembers > 0 and self.data.rows_go_on
        return trained_so if self.scoring.state is None else self.scoring.state == "carried"

    @property
    def reading(self) -> Reading:
        """How a text is read for scoring."""
        segment, stride = self.scoring_segment, self.stride
        return Reading(segment, stride, self.carries and stride == segment)

    @property
    def hash(self) -> str:
        """Twelve hex digits, equal for equal recipes, however they were written."""
        # How work is split over processes does not change the result; the kind of data follows from the model's kind.
        tree = self.model_dump(mode="json", exclude={"training": {"parallel"}, "data": {"kind"}})
        tree = as_ever(self, tree)
        if own := plugins.used_by(self):
            tree["plugins"] = sorted(plugin.digest for plugin in own)
        text = json.dumps(tree, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def warnings(self) -> list[str]:
        """Settings that are allowed but have misled people."""
        found = []
        if self.model.needs_warmup and self.training.schedule.warmup is None:
            what = f"{self.model.needs_warmup} without a warm-up"
            found.append(f"{what} often fails to train: set training.schedule.warmup")
        found += self.model.warnings()
        if self.training.optimizer.learning_rate == 0:
            found.append("the learning rate is 0: nothing will be learnt")
        return found

    def with_changes(self, overrides: Sequence[str], said_on: str = "command line") -> "Recipe":
        """The same recipe with `key.path=value` applied."""
        tree = self.model_dump(mode="json")
        tree["model"] = self.model.short(tree["model"])  # drop values that are derived from others
        if self.model.own_tokenizer is not None and tree["data"].get("tokenizer") == self.model.own_tokenizer:
            del tree["data"]["tokenizer"]
        return from_tree(tree, "recipe", overrides=overrides, said_on=said_on)


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe by packaged name, or by path of a YAML file or run folder, with overrides applied."""
    if (Path(name) / "run.json").is_file():
        name = str(Path(name) / "recipe.yaml")
    tree, places, title = written(name, _default_kind)
    return from_tree(tree, title, places, overrides)


def from_tree(
    tree: dict[str, Any],
    title: str,
    places: Mapping[tuple[str, ...], str] | None = None,
    overrides: Sequence[str] = (),
    said_on: str = "command line",
) -> Recipe:
    """Make a recipe of a tree. For messages, `title` names the source of the tree, `places` that of each key, and
    `said_on` that of the overrides."""
    changed = apply_changes(tree, overrides)

    def place(path: tuple[str, ...]) -> str:
        written = (places or {}).get(path, "")
        if any(path[: len(change)] == change for change in changed):
            return said_on
        if any(change[: len(path)] == path for change in changed):  # something inside it was changed
            return " or ".join(filter(None, (written, said_on)))
        return written

    return validated(Recipe, tree, title, place)


def _default_kind(path: tuple[str, ...]) -> str | None:
    """The default kind of the part at this path."""
    fields = [spec.model_fields.get(path[-1]) for spec in variants(Recipe, path[:-1])]
    return next((kind for field in fields if (kind := getattr(field and field.default, "kind", None))), None)


def apply_changes(tree: dict[str, Any], overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """Apply `key.path=value` changes to an unvalidated tree; returns the changed paths."""
    given = [_parsed(override) for override in overrides]
    last_words = [
        one for n, one in enumerate(given) if not any(_says_again(one[0], *later) for later in given[n + 1 :])
    ]
    # Short paths first: `optimizer=sgd` must not undo an `optimizer.momentum=0` given before it.
    return [_apply(tree, path, value) for path, value in sorted(last_words, key=lambda c: len(c[0]))]


def _says_again(path: list[str], later: list[str], value: Any) -> bool:
    """Whether a later change of a parent of this path overrides it, as `optimizer={momentum: 0.5}`, or removes the
    place to set it, as `averaging=null`."""
    if len(later) >= len(path) or path[: len(later)] != later:
        return False
    for part in path[len(later) :]:
        if isinstance(value, str):  # short for its kind
            value = {"kind": value}
        elif isinstance(value, list):
            value = {str(place): one for place, one in enumerate(value)}
        if not isinstance(value, dict):
            return True
        if part not in value:
            return False
        value = value[part]
    return True


def _parsed(override: str) -> tuple[list[str], Any]:
    """Parse `key.path=value` into a path and a value."""
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(f"'{override}' is not a change; write key=value, for example model.width=256")
    settings = [sorted(spec.model_fields) for spec in variants(Recipe, path[:-1])]
    if len(path) > 1 and path[-1] == "kind" and any(other != settings[0] for other in settings):
        path = path[:-1]  # another kind has other settings, so start from its defaults
    return path, read_value(text)


def _apply(tree: dict[str, Any], path: list[str], value: Any) -> tuple[str, ...]:
    """Set one key in the tree; returns its path."""
    node: Any = tree
    for depth, part in enumerate(path[:-1], 1):
        part = _place(node, part, path[: depth - 1])
        inner = node[part] if isinstance(node, list) else node.get(part)
        # `positions: rotary` means `positions: {kind: rotary}`, to which a setting can be added.
        node[part] = {"kind": inner} if isinstance(inner, str) else inner if isinstance(inner, dict | list) else {}
        node = node[part]
    node[_place(node, path[-1], path[:-1])] = value
    return tuple(path)


def _place(node: Any, part: str, above: list[str]) -> Any:
    """The key of a mapping, or index of a list, that a part of a path refers to."""
    if not isinstance(node, list):
        return part
    if not part.isdecimal() or len(part) > 9 or int(part) >= len(node):
        name = ".".join(above)
        last = f"{name}.0 … {name}.{len(node) - 1}" if len(node) > 1 else f"{name}.0"
        raise UserError(f"{name}.{part}: {name} is a list of {len(node)}; its elements are {last}")
    return int(part)
