"""Translators as functions: results do not depend on padding, or on the pieces in which the target is read."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headway.models.decoder_only import DecoderOnlySpec
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.nn.attention import AttentionSpec
from headway.nn.block import Layer, Rms
from headway.nn.positions import T5, Alibi, Learned, NoPositions, Rotary, Sinusoidal, SymmetricAlibi, SymmetricT5
from headway.nn.recurrence import LstmSpec

V, S, T, R = 11, 5, 4, 2
SHAPE = {"layers": 1, "width": 16, "context": 16, "mixer": AttentionSpec(heads=2)}
EITHER_WAY = [Learned(), Sinusoidal(), Rotary(), NoPositions(), SymmetricAlibi(), SymmetricT5()]
NO_STREAM = {"norm": "none", "feedforward": "none"}
ADDITIVE = {"kind": "attention", "heads": 1, "similarity": "additive"}
LOOKING = {"kind": "attention", "heads": 2, "backend": "plain"}
OF_RNNS = {"layers": 1, "width": 16, "context": 16, "positions": "none", "first_state": "encoder"}
RECURRENT = {
    "bahdanau": OF_RNNS
    | NO_STREAM
    | {"mixer": "gru", "encoder_mixer": {"kind": "gru", "bidirectional": True}, "cross": ADDITIVE, "tied": "none"},
    "lstm": OF_RNNS | {"mixer": "lstm", "cross": ADDITIVE, "tied": "output"},
    "unlike": OF_RNNS
    | {"layers": 2, "encoder_layers": 1, "mixer": ["mingru", {"kind": "lstm", "hidden": 7}], "tied": "all"}
    | {"encoder_mixer": {"kind": "rnn", "hidden": 5, "bidirectional": True}, "cross": ADDITIVE},
    "attention above": OF_RNNS
    | {"layers": 2, "mixer": ["gru", "attention"], "cross": {"kind": "attention", "heads": 2}},
    "additive everywhere": {**SHAPE, "mixer": AttentionSpec(heads=2, similarity={"kind": "additive"})},
}
SPECS = [
    *(EncoderDecoderSpec(**SHAPE, positions=p, tied="all") for p in (*EITHER_WAY, Alibi(), T5())),
    *(DecoderOnlySpec(**SHAPE, positions=p) for p in EITHER_WAY),
    *(DecoderOnlySpec(**SHAPE, positions=p, mask="causal") for p in (Learned(), Alibi(), T5())),
    EncoderDecoderSpec(**SHAPE, norm=Rms(), tied="output", encoder_layers=2),
    EncoderDecoderSpec(**SHAPE, norm=Layer(placement="post"), tied="none"),
    EncoderDecoderSpec(**{**SHAPE, "mixer": LstmSpec()}, positions=NoPositions()),
    *(EncoderDecoderSpec.model_validate(tree) for tree in RECURRENT.values()),
]


def with_random_weights(spec, *sizes, seeds=(0, 1)):
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
def test_padding_and_pieces_change_nothing_and_the_loss_is_the_cross_entropy_of_the_targets(spec, pair):
    sources, ids = pair
    model = with_random_weights(spec)
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


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[8], *SPECS[-5:-2]], ids=lambda s: s.kind)
def test_a_replica_does_not_depend_on_the_others(spec, pair):
    sources, ids = pair
    both = spec.build(V, V, (3, 5)).eval()
    alone = spec.build(V, V, (5,)).eval()
    torch.testing.assert_close(both(sources, ids)[1:], alone(sources[1:], ids[1:]), atol=1e-5, rtol=1e-5)


def test_an_encoder_decoder_equals_torchs():
    """Pre-norm, ReLU, no dropout: torch's own layers with Headway's weights give the same vectors."""
    spec = EncoderDecoderSpec(**{**SHAPE, "layers": 2}, feedforward={"kind": "relu"}, positions=NoPositions())
    model = with_random_weights(spec, 7, V, seeds=(0,))
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


@pytest.mark.parametrize("similarity", ["additive", "scaled-dot"])
def test_a_recurrent_encoder_decoder_equals_the_textbook_formulas(similarity):
    """A bidirectional GRU, a GRU whose first state is computed from its last states, attention over its states, and one
    layer for context and state together, written out for one pair at a time, without padding."""
    cross = {**ADDITIVE, "similarity": similarity}
    model = with_random_weights(
        EncoderDecoderSpec.model_validate(RECURRENT["bahdanau"] | {"cross": cross}), 7, V, seeds=(0,)
    )
    lengths = [5, 3, 1]
    sources, ids = torch.randint(0, 7, (1, 3, 5)), torch.randint(0, V, (1, 3, T))
    mask = (torch.arange(5) < torch.tensor(lengths)[:, None])[None]
    found = model(sources, ids, mask)
    p = {name: tensor[0] for name, tensor in model.named_parameters()}

    def gru(place, x, h):
        W, U, b, c = (p[f"{place}.{name}"] for name in ("input.weight", "recurrent", "input.bias", "reset_bias"))
        states = []
        for x_t in x:
            (a_r, a_z, a_n), (u_r, u_z, u_n) = (W @ x_t + b).chunk(3), (U @ h).chunk(3)
            r, z = (a_r + u_r).sigmoid(), (a_z + u_z).sigmoid()
            h = (1 - z) * (a_n + r * (u_n + c)).tanh() + z * h
            states.append(h)
        return torch.stack(states)

    cross, encoder = "layers.0.cross", "encoder.layers.0.mixer"
    for row, length in enumerate(lengths):
        x = p["encoder.embedding.weight"][sources[0, row, :length]]
        along = gru(f"{encoder}.along", x, torch.zeros(8))
        against = gru(f"{encoder}.against", x.flip(0), torch.zeros(8))
        memory = torch.cat((along, against.flip(0)), -1)
        last = torch.cat((along[-1], against[-1]))
        first = (p["first_states.map.weight"] @ last + p["first_states.map.bias"]).tanh()
        states = gru("layers.0.mixer.along", p["embedding.weight"][ids[0, row]], first)
        keys, values = (
            memory @ p[f"{cross}.project.keys_values.weight"].T + p[f"{cross}.project.keys_values.bias"]
        ).chunk(2, -1)
        for t, state in enumerate(states):
            query = p[f"{cross}.project.queries.weight"] @ state + p[f"{cross}.project.queries.bias"]
            if similarity == "additive":
                scores = (query + keys).tanh() @ p[f"{cross}.similarity.vector"][0]
            else:
                scores = keys @ query / 4
            context = p[f"{cross}.output.weight"] @ (scores.softmax(0) @ values) + p[f"{cross}.output.bias"]
            joined = (p["layers.0.around_cross.join.weight"] @ torch.cat((state, context))).tanh()
            torch.testing.assert_close(found[0, row, t], p["output.weight"] @ joined, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("padding", ["left", "between"])
def test_a_decoder_starts_after_the_last_token_wherever_padding_is(padding):
    model = with_random_weights(EncoderDecoderSpec.model_validate(RECURRENT["bahdanau"]), seeds=(0,))
    source = torch.randint(0, V, (1, 1, 3))
    filled = torch.full((1, 1, 6), 4)
    at = [3, 4, 5] if padding == "left" else [0, 2, 5]
    filled[..., at] = source
    mask = torch.zeros(1, 1, 6, dtype=torch.bool)
    mask[..., at] = True
    plain, padded = (model.read(*given).layers[0][0]["hidden"] for given in ((source,), (filled, mask)))
    torch.testing.assert_close(padded, plain)
    assert not torch.allclose(model.read(filled).layers[0][0]["hidden"], plain)


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"mixer": "attention"}, {"first_state", "mixer"}),
        ({"encoder_mixer": "attention"}, {"first_state", "encoder_mixer"}),
        ({"mixer": {"kind": "gru", "bidirectional": True}, "encoder_mixer": "gru"}, {"mixer"}),
        ({"cross": "gru"}, {"cross"}),
    ],
)
def test_impossible_settings_are_refused(changes, keys):
    spec = EncoderDecoderSpec.model_validate(RECURRENT["bahdanau"] | changes)
    assert any(set(problem.keys) == keys for problem in spec.all_problems())


def test_operations_of_recurrent_translators_equal_torchs_count():
    """With minGRUs, because the counter does not see the step-by-step computations of other cells."""
    mixers = {"mixer": "mingru", "encoder_mixer": {"kind": "mingru", "bidirectional": True}}
    spec = EncoderDecoderSpec.model_validate(RECURRENT["bahdanau"] | mixers | {"cross": LOOKING})
    model = spec.build(V, V, (0, 1))
    sources, ids = torch.zeros(2, 3, S, dtype=torch.int64), torch.zeros(2, 3, T, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(sources, ids)
    assert counter.get_total_flops() == 2 * 3 * spec.forward_flops(S, T, V)


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


@pytest.mark.parametrize("tree", [SHAPE | {"positions": "none"}, RECURRENT["bahdanau"]], ids=["attention", "gru"])
@pytest.mark.parametrize(("tied", "tables"), [("none", 3), ("output", 2), ("all", 1)])
def test_embedding_tables_are_shared_as_set(tree, tied, tables):
    model = EncoderDecoderSpec.model_validate({**tree, "tied": tied}).build(V, V)
    matrices = {id(p) for name, p in model.named_parameters() if p.shape[1:] == (V, 16)}
    assert len(matrices) == tables


def test_labels_are_smoothed_in_training_only(pair):
    sources, ids = pair
    told = torch.ones_like(ids, dtype=torch.bool)
    batch = SimpleNamespace(sources=sources, source_mask=None, inputs=ids, targets=ids, padding_mask=told)
    plain, smooth = (with_random_weights(EncoderDecoderSpec(**SHAPE, label_smoothing=s)) for s in (0.0, 0.2))
    assert torch.equal(plain.loss(batch)[0], smooth.loss(batch)[0])
    smooth.train()
    assert not torch.allclose(plain.loss(batch)[0], smooth.loss(batch)[0])


def test_the_loss_of_the_source_counts_only_if_set(pair):
    sources, ids = pair
    told = torch.ones_like(ids, dtype=torch.bool)
    mask = torch.ones_like(sources, dtype=torch.bool)
    batch = SimpleNamespace(sources=sources, source_mask=mask, inputs=ids, targets=ids.roll(-1, 2), padding_mask=told)
    target, both = (
        with_random_weights(DecoderOnlySpec(**SHAPE, mask="causal", loss_on=on)).train() for on in ("target", "all")
    )
    row = torch.cat((sources[..., :-1], ids), 2)
    logits = both.scores(both.hidden(row)[0])
    expected = F.cross_entropy(logits[:, :, :-1].flatten(0, 2), row[:, :, 1:].flatten(), reduction="none").view(
        R, 3, -1
    )
    last = F.cross_entropy(logits[:, :, -1].flatten(0, 1), ids[..., 0].flatten(), reduction="none").view(R, 3, 1)
    torch.testing.assert_close(both.loss(batch)[0], torch.cat((expected, last), 2).mean((1, 2)), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(both.loss(batch)[0], target.loss(batch)[0])
