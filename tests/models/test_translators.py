"""Translators as functions: whatever stands around a pair, and however it is cut into pieces, answers are the same."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headway.models.decoder_only import DecoderOnlySpec
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.nn.attention import AttentionSpec
from headway.nn.block import Layer, Rms
from headway.nn.positions import T5, Alibi, Learned, NoPositions, Rotary, Sinusoidal, SymmetricAlibi, SymmetricT5
from headway.nn.recurrence import LstmSpec

V, S, T, R = 11, 5, 4, 2
SHAPE = {"layers": 1, "width": 16, "context": 16, "mixer": AttentionSpec(heads=2)}
EITHER_WAY = [Learned(), Sinusoidal(), Rotary(), NoPositions(), SymmetricAlibi(), SymmetricT5()]
SPECS = [
    *(EncoderDecoderSpec(**SHAPE, positions=p, tied="all") for p in (*EITHER_WAY, Alibi(), T5())),
    *(DecoderOnlySpec(**SHAPE, positions=p) for p in EITHER_WAY),
    *(DecoderOnlySpec(**SHAPE, positions=p, mask="causal") for p in (Learned(), Alibi(), T5())),
    EncoderDecoderSpec(**SHAPE, norm=Rms(), tied="output", encoder_layers=2),
    EncoderDecoderSpec(**SHAPE, norm=Layer(placement="post"), tied="none"),
    EncoderDecoderSpec(**{**SHAPE, "mixer": LstmSpec()}, positions=NoPositions()),
]


def opinionated(spec, *sizes, seeds=(0, 1)):
    model = spec.build(*(sizes or (V, V)), seeds).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(1)
    sources, ids = (torch.randint(0, V - 1, (R, 3, n), generator=generator) for n in (S, T))
    sources[..., -1], ids[..., 0] = V - 1, V - 1
    return sources, ids


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.kind}-{s.positions.kind}-{s.norm.placement}")
def test_padding_and_pieces_change_nothing_and_the_loss_is_that_of_the_answers(spec, pair):
    sources, ids = pair
    model = opinionated(spec)
    plain = model(sources, ids)
    wide = torch.cat((sources, torch.full((R, 3, 3), 4)), 2)
    mask = (torch.arange(S + 3) < S).expand(R, 3, -1)
    torch.testing.assert_close(model(wide, ids, mask), plain, atol=1e-4, rtol=1e-4)
    state, pieces = model.read(wide, mask), []
    for t in range(T):
        logits, state = model.go_on(ids[..., t : t + 1], state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 2), plain, atol=1e-4, rtol=1e-4)
    told = (torch.arange(T) < torch.tensor([4, 2, 3])[:, None]).expand(R, 3, -1)
    targets = ids.roll(-1, 2)
    batch = SimpleNamespace(sources=wide, source_mask=mask, inputs=ids, targets=targets, padding_mask=told)
    nats = F.cross_entropy(plain.flatten(0, 2), targets.flatten(), reduction="none").view(R, 3, T)
    expected = (nats * told).sum((1, 2)) / told.sum((1, 2))
    torch.testing.assert_close(model.loss(batch)[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("spec", SPECS[:1] + SPECS[8:9], ids=lambda s: s.kind)
def test_a_replica_is_its_own(spec, pair):
    sources, ids = pair
    both = spec.build(V, V, (3, 5)).eval()
    alone = spec.build(V, V, (5,)).eval()
    torch.testing.assert_close(both(sources, ids)[1:], alone(sources[1:], ids[1:]), atol=1e-5, rtol=1e-5)


def test_an_encoder_decoder_is_torchs():
    """Pre-norm, ReLU, no dropout: torch's own layers, with our weights in them, give the same vectors."""
    spec = EncoderDecoderSpec(**{**SHAPE, "layers": 2}, feedforward={"kind": "relu"}, positions=NoPositions())
    model = opinionated(spec, 7, V, seeds=(0,))
    sources, ids = torch.randint(0, 7, (1, 2, S)), torch.randint(0, V, (1, 2, T))
    memory, x = model.encoder.embedding(sources)[0], model.embedding(ids)[0]
    settings = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    for ours in model.encoder.layers:
        theirs = nn.TransformerEncoderLayer(16, 2, 64, **settings).eval()
        _take_self(theirs.self_attn, ours.mixer)
        _take_rest(theirs, ours, [(theirs.norm1, ours.around_mixer), (theirs.norm2, ours.around_feedforward)])
        memory = theirs(memory)
    memory = F.layer_norm(memory, (16,), model.encoder.norm.weight[0], model.encoder.norm.bias[0])
    causal = nn.Transformer.generate_square_subsequent_mask(T)
    for ours in model.layers:
        theirs = nn.TransformerDecoderLayer(16, 2, 64, **settings).eval()
        _take_self(theirs.self_attn, ours.mixer)
        project = ours.cross.project
        _take_attention(
            theirs.multihead_attn,
            torch.cat((project.queries.weight[0], project.keys_values.weight[0])),
            torch.cat((project.queries.bias[0], project.keys_values.bias[0])),
            ours.cross,
        )
        norms = [theirs.norm1, theirs.norm2, theirs.norm3]
        around = [ours.around_mixer, ours.around_cross, ours.around_feedforward]
        _take_rest(theirs, ours, list(zip(norms, around, strict=True)))
        x = theirs(x, memory, tgt_mask=causal)
    x = F.layer_norm(x, (16,), model.norm.weight[0], model.norm.bias[0])
    torch.testing.assert_close(model(sources, ids)[0], x @ model.embedding.weight[0].T, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def _take_attention(theirs, weight, bias, ours):
    theirs.in_proj_weight.copy_(weight)
    theirs.in_proj_bias.copy_(bias)
    theirs.out_proj.weight.copy_(ours.output.weight[0])
    theirs.out_proj.bias.copy_(ours.output.bias[0])


def _take_self(theirs, ours):
    _take_attention(theirs, ours.project.together.weight[0], ours.project.together.bias[0], ours)


@torch.no_grad()
def _take_rest(theirs, ours, norms):
    for norm, around in norms:
        norm.weight.copy_(around.norm.weight[0])
        norm.bias.copy_(around.norm.bias[0])
    for linear, own in ((theirs.linear1, ours.feedforward.into), (theirs.linear2, ours.feedforward.output)):
        linear.weight.copy_(own.weight[0])
        linear.bias.copy_(own.bias[0])


@pytest.mark.parametrize(("tied", "tables"), [("none", 3), ("output", 2), ("all", 1)])
def test_tables_are_shared_as_asked(tied, tables):
    model = EncoderDecoderSpec(**SHAPE, positions=NoPositions(), tied=tied).build(V, V)
    matrices = {id(p) for name, p in model.named_parameters() if p.shape[1:] == (V, 16)}
    assert len(matrices) == tables


def test_labels_are_smoothed_in_training_alone(pair):
    sources, ids = pair
    told = torch.ones_like(ids, dtype=torch.bool)
    batch = SimpleNamespace(sources=sources, source_mask=None, inputs=ids, targets=ids, padding_mask=told)
    plain, smooth = (opinionated(EncoderDecoderSpec(**SHAPE, label_smoothing=s)) for s in (0.0, 0.2))
    assert torch.equal(plain.loss(batch)[0], smooth.loss(batch)[0])
    smooth.train()
    assert not torch.allclose(plain.loss(batch)[0], smooth.loss(batch)[0])


def test_the_loss_of_the_source_counts_only_where_asked(pair):
    sources, ids = pair
    told = torch.ones_like(ids, dtype=torch.bool)
    mask = torch.ones_like(sources, dtype=torch.bool)
    batch = SimpleNamespace(sources=sources, source_mask=mask, inputs=ids, targets=ids.roll(-1, 2), padding_mask=told)
    target, both = (
        opinionated(DecoderOnlySpec(**SHAPE, mask="causal", loss_on=on)).train() for on in ("target", "all")
    )
    row = torch.cat((sources[..., :-1], ids), 2)
    logits = both.scores(both.hidden(row)[0])
    expected = F.cross_entropy(logits[:, :, :-1].flatten(0, 2), row[:, :, 1:].flatten(), reduction="none").view(
        R, 3, -1
    )
    last = F.cross_entropy(logits[:, :, -1].flatten(0, 1), ids[..., 0].flatten(), reduction="none").view(R, 3, 1)
    torch.testing.assert_close(both.loss(batch)[0], torch.cat((expected, last), 2).mean((1, 2)), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(both.loss(batch)[0], target.loss(batch)[0])
