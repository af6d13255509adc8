"""Attention with a memory of earlier segments: segments with a carried memory equal one long pass with a limited
view."""

import numpy as np
import pytest
import torch

from headway.core.errors import UserError
from headway.core.random import generator
from headway.data.running.batches import Batch
from headway.data.tokens import Tokens
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.positions import T5, Alibi, NoPositions, Rotary
from headway.recipe.recipe import Recipe, from_tree
from headway.scoring.likelihood import losses_going_on, surprise, token_losses

V, T, D = 11, 4, 8
POSITIONS = {"rotary": Rotary(), "alibi": Alibi(), "t5": T5(buckets=8, furthest=32), "none": NoPositions()}


def built(*memory: int, positions="rotary", seeds=(0, 1), tied=True, **attention) -> LanguageModel:
    mixers = [AttentionSpec(heads=2, memory=slots, **attention) for slots in memory]
    shape = {"layers": len(mixers), "width": D, "context": T, "tied": tied}
    spec = LanguageModelSpec(mixer=mixers, positions=POSITIONS[positions], **shape)
    model = spec.build(V, list(seeds))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += 0.3 * torch.randn(p.shape[1:], generator=generator(0, name))
    return model.eval()


def tokens(rows: int = 3, length: int = 3 * T, replicas: int = 2) -> torch.Tensor:
    return torch.randint(V, (replicas, rows, length), generator=torch.Generator().manual_seed(1))


def in_segments(model: LanguageModel, ids: torch.Tensor, segment: int = T) -> torch.Tensor:
    carried, found = None, []
    for piece in ids.split(segment, dim=2):
        logits, state = model(piece, model.going_on_from(carried))
        carried = model.carried(state)
        found.append(logits)
    return torch.cat(found, 2)


@pytest.mark.parametrize("backend", ["plain", "sdpa"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_with_an_unlimited_memory_segments_equal_one_long_pass(positions: str, backend: str):
    model, ids = built(12, 9, positions=positions, backend=backend), tokens()
    torch.testing.assert_close(in_segments(model, ids), model(ids)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("memory", [1, 3, 4, 6])
def test_a_memory_equals_a_long_pass_with_a_limited_view(memory: int):
    """By definition: with a mask under which a position sees its own segment and this many slots before it."""

    class Segments(type(built(1).mask)):
        def allows(self, row, i, j):
            return (j <= i) & (j >= i // T * T - memory)

    model, ids = built(memory, memory), tokens()
    found = in_segments(model, ids)
    model.mask = Segments()
    torch.testing.assert_close(found, model(ids)[0], rtol=1e-5, atol=1e-5)
    model.mask = type(built(1).mask)()
    assert not torch.allclose(found, model(ids)[0], atol=1e-3)


def test_layers_may_have_different_memories_or_none():
    model, ids = built(0, 3, 8), tokens()
    found, other = in_segments(model, ids), in_segments(model, torch.cat(((ids[..., :1] + 1) % V, ids[..., 1:]), 2))
    assert {name: tuple(t.shape) for name, t in model.carried(model(ids[..., :2])[1]).items()} == {
        "layers.1.memory": (2, 3, 3, D),
        "layers.1.told": (2, 3, 3),
        "layers.2.memory": (2, 3, 8, D),
        "layers.2.told": (2, 3, 8),
    }
    assert not torch.equal(found[:, :, T], other[:, :, T])  # the next segment sees the first token


def test_an_empty_memory_is_ignored_and_rows_are_independent():
    model, ids = built(6), tokens()
    nothing = {name: torch.zeros_like(t) for name, t in model.carried(model(ids)[1]).items()}
    torch.testing.assert_close(model(ids[..., :T], model.going_on_from(nothing))[0], model(ids[..., :T])[0])
    other = ids.clone()
    other[:, 0, :T] = (other[:, 0, :T] + 1) % V
    same = (in_segments(model, ids) == in_segments(model, other)).all(-1)
    assert same[:, 1:].all() and not same[:, 0, T:].any()


def test_no_gradient_reaches_the_previous_segment_but_its_keys_are_trained():
    model, ids = built(T, seeds=(0,), tied=False), tokens(rows=1, replicas=1)
    first, second = (Batch(ids[..., k : k + T], ids[..., k + 1 : k + T + 1], torch.tensor(False)) for k in (0, T))
    _, carried = model.loss(first)
    assert not any(t.requires_grad for t in carried.values())
    model.loss(second, carried)[0].sum().backward()
    moved = model.embedding.weight.grad[0].abs().sum(1) > 0
    assert moved.nonzero()[:, 0].tolist() == second.inputs.unique().tolist()
    keys = model.mixers[0].project.together.weight.grad
    model.zero_grad()
    forgotten = {name: torch.zeros_like(t) for name, t in carried.items()}
    model.loss(second, forgotten)[0].sum().backward()
    assert not torch.allclose(keys, model.mixers[0].project.together.weight.grad)


@pytest.mark.parametrize("memory", [3, 20])
def test_pieces_from_a_cache_equal_a_single_pass(memory: int):
    model, ids = built(memory, memory), tokens(length=T)
    pieces, state = [], None
    for piece in ids.split([1, 2, 1], dim=2):
        logits, state = model(piece, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 2), model(ids)[0], rtol=1e-5, atol=1e-5)
    whole = model.carried(model(ids)[1])
    torch.testing.assert_close(model.carried(state), whole)  # and the next segment continues from the same state


def test_carried_scores_are_those_of_one_pass():
    model, ids = built(40, 40), tokens(1, 30)[0, 0]
    whole = token_losses(model, ids, 29, 29)
    torch.testing.assert_close(losses_going_on(model, ids, T), whole, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(token_losses(model, ids, T, T), whole, atol=1e-2)
    text = Tokens(ids.numpy().astype(np.int32), np.ones(30, np.int32), np.ones(30, bool))
    found = surprise(model, text, T, T, "char", carried=True)
    assert [one.nats for one in found] == pytest.approx(whole.sum(1).tolist(), rel=1e-6)
    assert f"segment {T}, state carried" in found[0].scores("valid")[0].label


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "mingru"])
def test_a_recurrence_scored_as_one_stream_equals_one_pass(kind: str):
    tree = {"layers": 2, "width": D, "context": T, "mixer": kind, "positions": "none"}
    model, ids = LanguageModelSpec.model_validate(tree).build(V, [0, 1]).eval(), tokens(1, 50)[0, 0]
    assert model.spec.horizon is None
    torch.testing.assert_close(losses_going_on(model, ids, T), token_losses(model, ids, 49, 49), rtol=0, atol=1e-6)


def test_a_recurrence_and_attention_with_memory_work_together():
    tree = {"layers": 2, "width": D, "context": T, "mixer": ["lstm", {"heads": 2, "memory": 12}], "positions": "none"}
    model, ids = LanguageModelSpec.model_validate(tree).build(V, [0, 1]).eval(), tokens()
    assert model.spec.horizon == T
    torch.testing.assert_close(in_segments(model, ids), model(ids)[0], rtol=1e-5, atol=1e-6)


def test_a_memory_of_zero_keeps_the_hash_and_absolute_positions_are_refused():
    plain = Recipe().with_changes(["model.positions=rotary"])
    assert plain.with_changes(["model.mixer.memory=0"]).hash == plain.hash
    assert plain.with_changes(["model.mixer.memory=8"]).hash != plain.hash
    for positions in ("learned", "sinusoidal"):
        with pytest.raises(UserError, match=f"{positions} positions start again in every segment"):
            from_tree({"model": {"positions": positions, "mixer": {"memory": 8}}}, "r")
