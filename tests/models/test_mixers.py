"""Layers with different mixers: attention of different shapes, and a toy recurrence that consists of a spec and a
module."""

from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.core.errors import UserError
from headway.core.random import generator
from headway.core.yaml import read_tree
from headway.data.running.batches import Batch
from headway.models.classifier import ClassifierSpec
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.mixer import Mixer, MixerSpec
from headway.nn.positions import Alibi, Learned, NoPositions, Rotary
from headway.nn.recurrence import LstmSpec
from headway.nn.replicated import Linear
from headway.nn.taps import watch
from headway.recipe.recipe import Recipe, from_tree, load
from headway.recipe.text import annotated

V, T, D = 11, 6, 8


class LeakyMeanSpec(MixerSpec):
    """Every position gets a mean of those before it, in which older ones weigh less. Padding is skipped."""

    kind: Literal["leaky-mean"] = "leaky-mean"
    keep: float = 0.5

    def build(self, replicas, width, out_gain, needs):
        return LeakyMean(replicas, width, self.keep, out_gain)

    def flops_per_token(self, width, segment):
        return 2 * width * width


class LeakyMean(Mixer):
    called = "leaky_mean"

    def __init__(self, replicas: int, width: int, keep: float, out_gain: float):
        super().__init__()
        self.keep, self.output = keep, Linear(replicas, width, width, gain=out_gain)

    def forward(self, x, context, state=None):
        mean = torch.zeros_like(x[:, :, 0]) if state is None else state
        means = []
        for t in range(x.shape[2]):
            moved = self.keep * mean + (1 - self.keep) * x[:, :, t]
            told = None if context.padding_mask is None else context.padding_mask[:, :, t, None]
            mean = moved if told is None else torch.where(told, moved, mean)
            means.append(mean)
        return self.output(torch.stack(means, 2)), mean

    def carried(self, state):
        return {"mean": state}

    def going_on_from(self, carried):
        return carried.get("mean")


MixerSpec.variants.forget(__name__)  # a toy, which recipes of other tests must not know
LEAKY, FOUR, TWO = LeakyMeanSpec(), AttentionSpec(heads=4), AttentionSpec(heads=2, window=3)


@pytest.fixture
def known():
    """In this context, recipes may name the toy."""
    MixerSpec.variants.add("leaky-mean", LeakyMeanSpec, __name__)
    yield
    MixerSpec.variants.forget(__name__)


def built(mixers: Sequence[MixerSpec], positions=None, seeds: Sequence[int] = (0, 1)) -> LanguageModel:
    positions = positions or Learned()
    spec = LanguageModelSpec(layers=len(mixers), width=D, context=T, mixer=list(mixers), positions=positions)
    model = spec.build(V, list(seeds))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += 0.3 * torch.randn(p.shape[1:], generator=generator(0, name))
    return model.eval()


def tokens(rows: int = 3, length: int = T, replicas: int = 2) -> torch.Tensor:
    return torch.randint(V, (replicas, rows, length), generator=torch.Generator().manual_seed(1))


STACKS = {
    "heads": ([FOUR, TWO], Rotary()),
    "alibi": ([TWO, FOUR], Alibi()),
    "leaky": ([LEAKY, LEAKY], NoPositions()),
    "hybrid": ([LEAKY, FOUR, LEAKY], Learned()),
}


@pytest.mark.parametrize("stack", STACKS)
def test_pieces_from_a_state_equal_a_single_pass_and_no_position_sees_the_future(stack: str):
    model, ids = built(*STACKS[stack]), tokens()
    whole, _ = model(ids)
    pieces, state = [], None
    for piece in ids.split([1, 3, 2], dim=2):
        logits, state = model(piece, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 2), whole, rtol=1e-5, atol=1e-5)
    assert state.length == T
    other = torch.cat((ids[..., :3], (ids[..., 3:] + 1) % V), 2)
    torch.testing.assert_close(model(other)[0][:, :, :3], whole[:, :, :3])


@pytest.mark.parametrize("stack", STACKS)
def test_padding_changes_nothing(stack: str):
    model, ids = built(*STACKS[stack]), tokens(length=4)
    filled = torch.cat((ids[..., :1], ids, ids[..., :1]), 2)
    padding_mask = torch.ones_like(filled, dtype=torch.bool)
    padding_mask[..., 0] = padding_mask[..., -1] = False
    padded, _ = model(filled, padding_mask=padding_mask)
    torch.testing.assert_close(padded[:, :, 1:-1], model(ids)[0], rtol=1e-5, atol=1e-5)


def test_a_list_of_equal_mixers_equals_one_for_all():
    one = LanguageModelSpec(layers=2, width=D, context=T, mixer=TWO, positions=Rotary()).build(V, [3])
    same = LanguageModelSpec(layers=2, width=D, context=T, mixer=[TWO, TWO], positions=Rotary()).build(V, [3])
    assert [name for name, _ in one.named_parameters()] == [name for name, _ in same.named_parameters()]
    assert torch.equal(one(tokens(replicas=1))[0], same(tokens(replicas=1))[0])


def test_each_layer_has_its_own_heads_and_window():
    model = built([FOUR, TWO], Alibi())
    with watch(model, "layers.0.attention.weights", "layers.1.attention.weights") as seen:
        model(tokens())
    wide, narrow = seen["layers.0.attention.weights"], seen["layers.1.attention.weights"]
    assert wide.shape[2] == 4 and torch.equal(wide[0, 0, 0] > 0, torch.ones(T, T).tril().bool())
    assert narrow.shape[2] == 2 and torch.equal(narrow[0, 0, 0] > 0, torch.ones(T, T).tril().triu(-2).bool())


def test_equal_layers_share_their_masks_and_biases(monkeypatch):
    asked, honest = [], Alibi().build(1, D, 2, T).__class__.bias
    monkeypatch.setattr(
        "headway.nn.positions.AlibiPositions.bias", lambda self, *at: asked.append(self) or honest(self, *at)
    )
    model = built([FOUR, TWO, FOUR, TWO], Alibi())
    model(tokens())
    assert len(asked) == 2


def test_replicas_together_equal_replicas_alone():
    together, ids = built(*STACKS["hybrid"], seeds=[5, 6]), tokens()
    for r in range(2):
        alone = built(*STACKS["hybrid"], seeds=[5 + r])
        torch.testing.assert_close(alone(ids[r : r + 1])[0][0], together(ids)[0][r], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stack", STACKS)
def test_operations_are_counted_by_the_mixers(stack: str):
    mixers, positions = STACKS[stack]
    plain = [m.model_copy(update={"backend": "plain"}) if isinstance(m, AttentionSpec) else m for m in mixers]
    model, ids = built(plain, positions), tokens()
    with FlopCounterMode(display=False) as counter:
        model.hidden(ids)
    # The plain kernel computes all pairs and masks those outside the window, which are not counted for a window.
    far = sum(abs(i - j) >= m.window for m in plain if getattr(m, "window", None) for i in range(T) for j in range(T))
    unneeded = (ids.numel() // T) * 4 * D * far
    assert counter.get_total_flops() - unneeded == ids.numel() * model.spec.flops_per_token(T)


# State carried from batch to batch


def batch(ids: torch.Tensor, begins: bool = False) -> Batch:
    return Batch(ids[..., :-1], ids[..., 1:], torch.tensor(begins))


def test_two_segments_with_a_carried_state_equal_one():
    model, ids = built([LEAKY, LEAKY], NoPositions()), tokens(length=7)
    whole, _ = model.loss(batch(ids))
    first, state = model.loss(batch(ids[..., :4]))
    assert sorted(state) == ["layers.0.mean", "layers.1.mean"]
    second, _ = model.loss(batch(ids[..., 3:]), state)
    torch.testing.assert_close((first + second) / 2, whole)
    fresh, _ = model.loss(batch(ids[..., 3:]))
    assert not torch.allclose(fresh, second)
    zeros, _ = model.loss(batch(ids[..., 3:]), {name: torch.zeros_like(rows) for name, rows in state.items()})
    torch.testing.assert_close(zeros, fresh)


def test_attention_beside_a_recurrence_carries_nothing():
    hybrid = built([LEAKY, FOUR])
    _, state = hybrid.loss(batch(tokens()))
    assert list(state) == ["layers.0.mean"]
    again, _ = hybrid.loss(batch(tokens()), state)
    assert again.isfinite().all()
    assert built([FOUR, TWO], Rotary()).loss(batch(tokens()))[1] is None


# Recipes


def complaint(*changes: str) -> str:
    with pytest.raises(UserError) as error:
        load("demo", ["model.width=8", "model.layers=2", *changes])
    return str(error.value)


def listed(*changes: str) -> Recipe:
    return load("demo", ["model.width=8", "model.layers=2", "model.mixer=[{heads: 2}, {heads: 4}]", *changes])


def test_a_list_whose_length_is_not_the_number_of_layers_names_both():
    assert "model.mixer, model.layers: the list has 3 mixers for 2 layers" in complaint(
        "model.mixer=[attention, attention, attention]"
    )


def test_one_of_a_list_is_changed_by_its_number():
    assert [m.heads for m in listed("model.mixer.1.heads=1").model.mixers] == [2, 1]
    assert [m.window for m in listed("model.mixer.0.window=4").model.mixers] == [4, None]
    for key in ("model.mixer.heads", "model.mixer.2.heads"):
        with pytest.raises(UserError, match=r"model.mixer is a list of 2; its elements are model.mixer.0 … "):
            listed(f"{key}=1")
    assert "model.mixer.1.headz: unknown key; did you mean 'heads'?" in complaint("model.mixer=[{}, {headz: 2}]")


def test_a_list_is_written_out_and_read_back():
    recipe = listed("model.mixer.1.fusion={kind: shift, by: 2}")
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    tree, _ = read_tree(annotated(recipe), "again")
    assert Recipe.model_validate(tree).hash == recipe.hash


def test_positions_that_do_not_fit_all_layers_are_refused_with_the_layers(known):
    heads = complaint("model.mixer=[{heads: 2}, {heads: 4}]", "model.positions=t5")
    assert "same number of heads, not 2 (layer 0), 4 (layer 1)" in heads
    hybrid = complaint("model.mixer=[leaky-mean, attention]", "model.positions=rotary")
    assert "rotary positions act inside attention heads, and layer 0 (leaky-mean) has none" in hybrid
    assert load("demo", ["model.layers=2", "model.mixer=[leaky-mean, attention]", "model.positions=learned"])


def test_a_problem_of_one_layer_names_it():
    assert "model.mixer.1.heads: width 8 is not divisible by 3 heads" in complaint("model.mixer=[{}, {heads: 3}]")


def test_an_encoder_may_have_a_list_too():
    spec = ClassifierSpec(layers=2, width=D, context=T, mixer=[TWO, FOUR], positions=Learned())
    assert spec.build(V, 3)(tokens(replicas=1)).shape == (1, 3, 3)


def test_a_users_mixer_can_be_named_in_recipes(known):
    recipe = load("demo", ["model.mixer={kind: leaky-mean, keep: 0.9}", "model.positions=none"])
    assert recipe.model.mixer == LeakyMeanSpec(keep=0.9)


def test_an_unknown_mixer_is_named_with_its_place():
    with pytest.raises(UserError) as caught:
        from_tree({"model": {"mixer": {"kind": "rnnn"}}}, "mine.yaml")
    assert "model.mixer: unknown kind 'rnnn'" in str(caught.value)


STATES = {
    "lstm": LanguageModelSpec(layers=2, width=8, context=6, mixer=LstmSpec(), positions=NoPositions()),
    "memory": LanguageModelSpec(layers=1, width=8, context=6, mixer=AttentionSpec(memory=3), positions=NoPositions()),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_of_other_rows_or_another_model_is_refused_with_a_message(kind: str):
    model, ids = STATES[kind].build(7, [0]), torch.zeros(1, 3, 6, dtype=torch.long)
    _, left = model.losses_going_on(ids, ids, None)
    assert left is not None
    model.losses_going_on(ids, ids, left)  # a matching state is accepted

    def refused(state: dict[str, torch.Tensor], words: str) -> None:
        with pytest.raises(UserError, match=words):
            model.losses_going_on(ids, ids, state)

    refused({name: part[:, :2] for name, part in left.items()}, "is for 1 replica and 2 rows; .* a batch of .* 3 rows")
    refused({name: part.repeat(2, *[1] * (part.ndim - 1)) for name, part in left.items()}, "2 replicas and 3 rows")
    refused(dict(list(left.items())[1:]), "comes from another mixer")
    refused({"layers.7.hidden": torch.zeros(1, 3, 8)}, "comes from another model")
    with pytest.raises(UserError, match="does not fit a batch of"):
        model.go_on(ids[:, :1], model.go_on(ids, None)[1])
