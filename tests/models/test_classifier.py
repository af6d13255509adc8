"""The encoder, compared with torch's own; pooling; and refused classifiers."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from headway.models.classifier import Classifier, ClassifierSpec
from headway.models.pooling import First, Max, Mean
from headway.nn.replicated import set_dropout
from headway.nn.taps import tap_names, watch

V, C, D, CONTEXT = 23, 4, 8, 9
LENGTHS = [9, 1, 5, 7]


def spec(**changes) -> ClassifierSpec:
    given = {"layers": 2, "width": D, "context": CONTEXT, "mixer": {"heads": 2}, **changes}
    return ClassifierSpec.model_validate(given)


def rows(replicas: int = 1, number: int = 0) -> tuple[Tensor, Tensor]:
    ids = torch.randint(V, (replicas, len(LENGTHS), CONTEXT), generator=torch.Generator().manual_seed(number))
    padding_mask = (torch.arange(CONTEXT) < torch.tensor(LENGTHS)[:, None]).expand_as(ids)
    return ids, padding_mask


def batch(replicas: int) -> SimpleNamespace:
    ids, padding_mask = rows(replicas)
    return SimpleNamespace(
        inputs=ids, padding_mask=padding_mask, targets=torch.tensor([0, 1, 2, 3]).expand(replicas, -1)
    )


@torch.no_grad()
def copy_torch(theirs: nn.TransformerEncoder, ours: Classifier) -> None:
    own = dict(ours.named_parameters())
    for k, layer in enumerate(theirs.layers):
        for name, module in [
            ("mixer.output", layer.self_attn.out_proj),
            ("feedforward.into", layer.linear1),
            ("feedforward.output", layer.linear2),
            ("around_mixer.norm", layer.norm1),
            ("around_feedforward.norm", layer.norm2),
        ]:
            own[f"layers.{k}.{name}.weight"][0] = module.weight
            own[f"layers.{k}.{name}.bias"][0] = module.bias
        own[f"layers.{k}.mixer.project.together.weight"][0] = layer.self_attn.in_proj_weight
        own[f"layers.{k}.mixer.project.together.bias"][0] = layer.self_attn.in_proj_bias
    if theirs.norm is not None:
        own["norm.weight"][0], own["norm.bias"][0] = theirs.norm.weight, theirs.norm.bias


@pytest.mark.parametrize("backend", ["plain", "sdpa"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_encoder_equals_torchs_including_padding(backend, placement, activation):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        D, 2, 4 * D, dropout=0.0, activation=activation, batch_first=True, norm_first=placement == "pre"
    )
    norm = nn.LayerNorm(D) if placement == "pre" else None
    theirs = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
    with torch.no_grad():
        for p in theirs.parameters():
            p += 0.2 * torch.randn(p.shape)
    changes = {"mixer": {"heads": 2, "backend": backend}, "feedforward": activation, "norm": {"placement": placement}}
    ours = spec(**changes).build(V, C).eval()
    copy_torch(theirs, ours)
    ids, padding_mask = rows()
    embedded = ours.embedding(ids)[0] + ours.positions.table.weight[0, :CONTEXT]
    reference = theirs(embedded, src_key_padding_mask=~padding_mask[0])
    hidden, _ = ours.hidden(ids, padding_mask=padding_mask)
    torch.testing.assert_close(hidden[0][padding_mask[0]], reference[padding_mask[0]], rtol=1e-5, atol=1e-5)
    mean = torch.stack([reference[b, :n].mean(0) for b, n in enumerate(LENGTHS)])
    head = ours.head
    expected = torch.relu(mean @ head.into.weight[0].T + head.into.bias[0]) @ head.output.weight[0].T
    torch.testing.assert_close(ours(ids, padding_mask)[0], expected + head.output.bias[0], rtol=1e-5, atol=1e-5)


def test_pooling_ignores_padding():
    x = torch.tensor([[1.0, -5.0], [3.0, -1.0], [100.0, 100.0], [-7.0, 2.0]]).view(1, 1, 4, 2)
    padding_mask = torch.tensor([False, True, False, True]).view(1, 1, 4)
    assert Mean().pool(x, padding_mask).flatten().tolist() == [-2.0, 0.5]
    assert First().pool(x, padding_mask).flatten().tolist() == [3.0, -1.0]
    assert Max().pool(x, padding_mask).flatten().tolist() == [3.0, 2.0]


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "alibi-symmetric", "rotary", "t5-symmetric"])
def test_an_untrained_classifier_is_at_chance_and_all_parameters_get_gradients(positions, pooling):
    model = spec(positions=positions, pooling=pooling, width=32).build(V, C, [0, 1])
    loss, _ = model.loss(batch(2))
    assert loss.tolist() == pytest.approx([math.log(C)] * 2, abs=0.1)
    loss.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert all(p.grad.abs().sum() > 0 for name, p in model.named_parameters() if "bias" not in name)


@pytest.mark.parametrize("positions", ["none", "learned", "alibi-symmetric", "rotary", "t5-symmetric"])
def test_replicas_together_equal_replicas_alone(positions):
    """Losses and gradients with dropout, where each replica has its own learning rate."""
    seeds, rates = [3, 0, 8], [0.0, 0.2, 0.5]
    together = spec(positions=positions).build(V, C, seeds)
    set_dropout(together, rates)
    made = batch(3)
    losses, _ = together.loss(made)
    losses.sum().backward()
    for r, (seed, rate) in enumerate(zip(seeds, rates, strict=True)):
        alone = spec(positions=positions, dropout=rate).build(V, C, [seed])
        mine = SimpleNamespace(**{name: value[r : r + 1] for name, value in vars(made).items()})
        loss, _ = alone.loss(mine)
        loss.sum().backward()
        torch.testing.assert_close(loss[0], losses[r], rtol=1e-5, atol=1e-5)
        ours = dict(together.named_parameters())
        for name, p in alone.named_parameters():
            torch.testing.assert_close(p.grad[0], ours[name].grad[r], rtol=1e-4, atol=1e-5)


def test_the_order_of_words_matters_only_with_positions():
    ids, padding_mask = rows()
    turned = torch.stack([torch.cat((row[:n].flip(0), row[n:])) for row, n in zip(ids[0], LENGTHS, strict=True)])[None]
    for positions, same in [("none", True), ("rotary", False), ("learned", False)]:
        model = spec(positions=positions).build(V, C).eval()
        with torch.no_grad():
            for p in model.parameters():
                p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
        assert torch.allclose(model(ids, padding_mask), model(turned, padding_mask), atol=1e-5) == same


def test_internals_of_a_classifier_can_be_watched():
    model = spec().build(V, C).eval()
    assert {"embedded", "pooled", "logits", "layers.1.attention.weights"} <= set(tap_names(model))
    ids, padding_mask = rows()
    with watch(model, "layers.0.attention.weights", "pooled") as seen:
        model(ids, padding_mask)
    weights = seen["layers.0.attention.weights"]
    assert weights.shape == (1, 4, 2, CONTEXT, CONTEXT) and seen["pooled"].shape == (1, 4, D)
    assert (weights.masked_select(~padding_mask[:, :, None, None, :].expand_as(weights)) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize(
    ("positions", "words"),
    [("alibi", "favour the furthest later tokens; use alibi-symmetric"), ("t5", "apart; use t5-symmetric")],
)
def test_causal_position_schemes_are_refused_with_a_message(positions, words):
    (problem,) = spec(positions=positions).problems()
    assert problem.keys == ("positions",) and words in problem.reason


COMPILED = """
import torch
from headway.data.labelled.batches import RowBatch
from headway.models.classifier import ClassifierSpec
for positions, pooling in (("learned", "mean"), ("alibi-symmetric", "first"), ("t5-symmetric", "max")):
    torch._dynamo.reset()
    settings = {"layers": 1, "width": 16, "positions": positions, "dropout": 0.1, "pooling": pooling}
    model = ClassifierSpec.model_validate(settings).build(11, 3, [0, 1])
    ids = torch.zeros(2, 3, 8, dtype=torch.int64)
    found = torch._dynamo.explain(model.loss)(RowBatch(ids, ids == 0, ids[..., 0]))
    assert (found.graph_count, found.graph_break_count) == (1, 0), (positions, found.break_reasons)
"""


def test_torch_compile_sees_one_graph_without_breaks(forge):
    """In its own process, because the shape checks of the tests would break the graph."""
    answer = forge.run(code=COMPILED)
    assert answer.code == 0, answer.err
