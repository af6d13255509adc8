"""Similarities other than the scaled dot product: the textbook formula, in bounded memory."""

import pytest
import torch
from pydantic import ValidationError

from headway.core.errors import UserError
from headway.models.language_model import LanguageModelSpec
from headway.nn import similarity
from headway.nn.attention import AttentionSpec
from headway.nn.backends import Needs
from headway.nn.masks import Causal, Padding
from headway.nn.positions import Alibi, NoPositions
from headway.nn.similarity import AdditiveSimilarity
from headway.nn.taps import watch

R, B, H, Q, K, d = 2, 3, 2, 4, 5, 3


@pytest.fixture
def additive(randomised):
    return randomised(AdditiveSimilarity(R, H, d)).double()


def heads(length, number):
    return torch.randn(R, B, H, length, d, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def test_additive_equals_the_formula(additive):
    q, k = heads(Q, 0), heads(K, 1)
    found = additive(q, k)
    for r, b, h, i, j in [(0, 0, 0, 0, 0), (1, 2, 1, 3, 4), (1, 0, 0, 2, 1)]:
        expected = additive.vector[r, h] @ torch.tanh(q[r, b, h, i] + k[r, b, h, j])
        torch.testing.assert_close(found[r, b, h, i, j], expected)


@pytest.mark.parametrize("at_once", [1, 2 * R * B * H * K * d, similarity.MAX_ELEMENTS])
def test_gradients_equal_finite_differences_for_any_number_of_queries_at_once(at_once, additive, monkeypatch):
    monkeypatch.setattr(similarity, "MAX_ELEMENTS", at_once)
    q, k = heads(Q, 0).requires_grad_(), heads(K, 1).requires_grad_()

    def call(q, k, vector):
        additive.vector.data.copy_(vector)
        return similarity._Additive.apply(q, k, vector)

    assert torch.autograd.gradcheck(call, (q, k, additive.vector.detach().clone().requires_grad_()))


def test_memory_does_not_grow_with_the_number_of_queries(additive, monkeypatch):
    monkeypatch.setattr(similarity, "MAX_ELEMENTS", 3 * R * B * H * K * d)
    q, k = heads(11, 0), heads(K, 1)
    pieces = similarity._pieces(q, k)
    assert [piece.shape[3] for piece in pieces] == [3, 3, 3, 2]
    largest, honest = [], torch.Tensor.tanh
    monkeypatch.setattr(torch.Tensor, "tanh", lambda x: largest.append(x.numel()) or honest(x))
    additive(q.requires_grad_(), k).sum().backward()
    assert max(largest) <= similarity.MAX_ELEMENTS and len(largest) == 2 * len(pieces)


def test_scores_are_float32_in_every_precision():
    made = AdditiveSimilarity(1, 1, 4)
    q = torch.randn(1, 1, 1, 2, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(q, q).dtype == torch.float32


def test_self_attention_with_it_supports_masks_weights_and_caches(layer):
    """Also with ALiBi, whose bias is added to the scores in both cases."""
    spec = AttentionSpec(heads=2, similarity={"kind": "additive"})
    x = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(2))
    told = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1], [1] * 6]).bool()
    made = layer(Alibi(), mask=Padding(told.repeat(2, 1)) & Causal(), replicas=2, spec=spec)
    with watch(made, "attention.weights", "attention.scores", "attention.queries", "attention.keys") as seen:
        made(x, told.expand(2, -1, -1))
    q, k, v = seen["attention.queries"], seen["attention.keys"], made.attention.similarity.vector
    distance = torch.arange(6)[None] - torch.arange(6)[:, None]
    slopes = torch.tensor([2.0**-4, 2.0**-8]).view(2, 1, 1)
    scores = (torch.tanh(q[:, :, :, :, None] + k[:, :, :, None]) * v[:, None, :, None, None]).sum(
        -1
    ) + slopes * distance
    torch.testing.assert_close(seen["attention.scores"], scores)
    may = (told[:, None, :] & (distance <= 0))[None, :, None]
    expected = torch.nan_to_num(scores.masked_fill(~may, -torch.inf).softmax(-1), 0.0)
    torch.testing.assert_close(seen["attention.weights"], expected)

    whole = layer(NoPositions(), replicas=2, spec=spec)
    y = whole(x)
    first = whole(x[:, :, :4])
    rest = whole(x[:, :, 4:], state=whole.state)
    torch.testing.assert_close(torch.cat((first, rest), 2), y, atol=1e-5, rtol=1e-5)


def test_each_replica_has_its_own_vector(layer, copied):
    spec = AttentionSpec(heads=2, similarity={"kind": "additive"})
    x = torch.randn(3, 2, 5, 8, generator=torch.Generator().manual_seed(3))
    together = layer(replicas=3, spec=spec)
    alone = copied(layer(spec=spec), together, replica=1)
    torch.testing.assert_close(together(x)[1:2], alone(x[1:2]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["sdpa"])
def test_fused_kernels_refuse_it(backend):
    spec = AttentionSpec(heads=2, similarity={"kind": "additive"}, backend=backend)
    with pytest.raises(UserError, match="plain"):
        spec.build(1, 8, 1.0, Needs())


def test_rotary_positions_and_unknown_similarities_are_refused():
    spec = LanguageModelSpec.model_validate({"mixer": {"similarity": "additive"}, "positions": "rotary"})
    (problem,) = spec.all_problems()
    assert set(problem.keys) == {"positions", "mixer"} and "rotary" in problem.reason
    with pytest.raises(ValidationError, match="additiv"):
        AttentionSpec(similarity={"kind": "additiv"})
