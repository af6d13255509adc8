"""Properties of recipes that faults need to show."""

from collections.abc import Callable
from typing import Any

from headway.audit.plants.planting import Need
from headway.data.running.batches import Crops, TextLines
from headway.models.classifier import ClassifierSpec
from headway.models.clip import ClipSpec
from headway.models.decoder_only import DecoderOnlySpec
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.models.language_model import LanguageModelSpec
from headway.models.masked_language_model import MaskedLanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.recipe.recipe import Recipe
from headway.training.adam import Moments


def part(recipe: Recipe, path: str) -> Any:
    """The value at a path such as `model.positions.kind`; None where there is no such path."""
    found: Any = recipe
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def chosen(what: str, path: str, kind: str) -> Need:
    return Need(what, lambda recipe: part(recipe, f"{path}.kind") == kind, (f"{path}={kind}",))


def positions(kind: str) -> Need:
    return chosen(f"{kind} positions", "model.positions", kind)


def norm(kind: str) -> Need:
    return chosen(f"a {kind} norm", "model.norm", kind)


def pooling(kind: str) -> Need:
    return chosen(f"model.pooling={kind}", "model.pooling", kind)


def averaging(kind: str) -> Need:
    return chosen(f"training.averaging={kind}", "training.averaging", kind)


def with_attention(what: str, is_met: Callable[[AttentionSpec], bool], *changes: str) -> Need:
    """The need that at least one attention layer satisfies a condition."""

    def has(recipe: Recipe) -> bool:
        mixers = part(recipe, "model.mixers") or ()
        return any(isinstance(one, AttentionSpec) and is_met(one) for one in mixers)

    return Need(what, has, changes)


def rows_of(tokens: int) -> Need:
    what = f"rows of {tokens} tokens"
    return Need(what, lambda recipe: recipe.segment >= tokens, (f"model.context={tokens}",))


LANGUAGE_MODEL = Need("a language model", lambda recipe: isinstance(recipe.model, LanguageModelSpec))
CLASSIFIER = Need("a classifier", lambda recipe: isinstance(recipe.model, ClassifierSpec), ("model.kind=classifier",))
MASKED = Need(
    "a masked language model",
    lambda recipe: isinstance(recipe.model, MaskedLanguageModelSpec),
    ("model.kind=masked-language-model",),
)
LINES = Need(
    "lines as rows",
    lambda recipe: isinstance(part(recipe, "data.batches"), TextLines),
    ("data.batches=lines",),
)
TRANSLATOR = Need(
    "a translator with an encoder",
    lambda recipe: isinstance(recipe.model, EncoderDecoderSpec),
    ("model.kind=encoder-decoder",),
)
ONE_STACK = Need(
    "a translator without an encoder, and a prefix mask",
    lambda recipe: isinstance(recipe.model, DecoderOnlySpec) and recipe.model.mask == "prefix",
    ("model.kind=decoder-only",),
)
MATCHER = Need(
    "a model that matches pictures and captions",
    lambda recipe: isinstance(recipe.model, ClipSpec),
    ("model.kind=clip",),
)
REPEATS_LEFT_OUT = Need(
    "repeats that are left out", lambda recipe: part(recipe, "model.contrast.repeats") == "left-out"
)
FIRST_STATE = Need(
    "a recurrent decoder that starts from the encoder's state",
    lambda recipe: part(recipe, "model.first_state.kind") == "encoder",
    (
        "model.mixer=gru",
        "model.encoder_mixer={kind: gru, bidirectional: true}",
        "model.positions=none",
        "model.first_state=encoder",
    ),
)
ADDITIVE_CROSSING = Need(
    "additive cross-attention",
    lambda recipe: part(recipe, "model.cross.similarity.kind") == "additive",
    ("model.cross={kind: attention, heads: 2, similarity: additive}",),
)
LONG_SOURCES = Need("sources of up to 24 tokens", lambda r: r.model.context >= 24, ("model.context=24",))
ONE_TABLE = Need(
    "one embedding table for sources and targets",
    lambda recipe: part(recipe, "model.tied") == "all",
    ("model.tied=all",),
)
JUDGED_BY_BLEU = Need(
    "sources with several right translations", lambda r: part(r, "data.is_exact") is False, ("data.exact=false",)
)
BEAM = Need("beam search", lambda r: r.scoring.decoding.kind == "beam", ("scoring.decoding={kind: beam, size: 4}",))
NO_RUN_TWICE = Need(
    "a beam with no_repeat",
    lambda r: getattr(r.scoring.decoding, "no_repeat", None) is not None,
    ("scoring.decoding={kind: beam, size: 4, no_repeat: 2}",),
)
DRAWN = Need(
    "sampled translations, with a temperature, top-k and top-p",
    lambda r: part(r, "scoring.decoding.temperature") not in (None, 0, 1),
    ("scoring.decoding={kind: sampled, temperature: 0.7, top_k: 6, top_p: 0.9}",),
)
CROPS = Need("rows that are random crops of a text", lambda recipe: isinstance(part(recipe, "data.batches"), Crops))
ADAM = Need("Adam or AdamW", lambda recipe: isinstance(recipe.training.optimizer, Moments))
ATTENTION = with_attention("attention", lambda one: True)
PLAIN = with_attention("the plain kernel", lambda one: one.backend == "plain", "model.mixer.backend=plain")
FUSED = with_attention("a fused kernel", lambda one: one.backend in ("auto", "sdpa") and not one.dropout)
WINDOW = with_attention("a window", lambda one: one.window is not None, "model.mixer.window=6")
HEADS = with_attention("several heads", lambda one: one.heads > 1)
WEIGHT_DROPOUT = with_attention(
    "dropout of attention weights", lambda one: one.dropout > 0, "model.mixer.backend=plain", "model.mixer.dropout=0.2"
)
DROPOUT = Need("dropout", lambda recipe: bool(part(recipe, "model.dropout")), ("model.dropout=0.2",))
PUNISHED = Need(
    "model.penalty",
    lambda recipe: bool(part(recipe, "model.penalty.counts")),
    ("model.penalty={size: 0.1, change: 0.1}",),
)
TIED = Need("tied embeddings", lambda recipe: bool(part(recipe, "model.tied")))
UNTIED = Need("an untied output matrix", lambda recipe: part(recipe, "model.tied") is False, ("model.tied=false",))
PRE_NORM = Need(
    "a norm after the last layer",
    lambda recipe: part(recipe, "model.norm.placement") == "pre" and part(recipe, "model.norm.kind") != "none",
    ("model.norm=layer",),
)
LONGER_SCORES = Need(
    "scoring.segment above the segment of training",
    lambda recipe: recipe.scoring_segment > recipe.segment,
    ("data.segment=24", "scoring.segment=48"),
)
STRIDE = Need(
    "scoring.stride below scoring.segment",
    lambda recipe: recipe.stride < recipe.scoring_segment,
    ("scoring.segment=12", "scoring.stride=5"),
)
LONG_TOKENS = Need(
    "tokens of several bytes", lambda recipe: part(recipe, "data.tokenizer.kind") != "char", ("data.tokenizer=word",)
)
KEEPS_BEST = Need("training.keep_best", lambda recipe: recipe.training.keep_best, ("training.keep_best=true",))
