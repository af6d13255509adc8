"""Models that use the kernels for a GPU learn the same as without them: here run as programs on a CPU."""

import pytest
import torch

from headway.data.running.batches import Batch
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.models.language_model import LanguageModelSpec
from headway.nn import cross_entropy
from headway.nn.block import Layer
from headway.nn.kernels import fused_adamw, launching, trusted
from headway.nn.replicated import Dropout, LayerNorm, Linear, PendingBias, copies_for_products, with_bias
from headway.nn.residual import PendingSum, with_norm
from headway.nn.taps import intervene, watch
from headway.training.adam import AdamW

CPU = torch.device("cpu")
FLOAT, BF16 = torch.float32, torch.bfloat16


MODELS = [
    {"positions": "rotary", "dropout": 0.1},
    {"positions": "learned", "feedforward": {"kind": "relu", "bias": False}, "norm": {"kind": "rms"}},
    {"positions": "alibi", "feedforward": "swiglu", "norm": {"kind": "layer", "placement": "post"}, "dropout": 0.1},
    {"positions": "none", "mixer": {"heads": 2, "memory": 4}, "noise": {"kind": "locked"}, "dropout": 0.2},
]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["alone", "two"])
def test_a_model_learns_the_same_with_kernels_as_without(kernels, monkeypatch, model, seeds):
    """Everything around the kernels: layouts, precisions, replicas. Three steps of AdamW with weight decay and
    clipping."""
    spec = LanguageModelSpec.model_validate({"layers": 2, "width": 16, "context": 8, "mixer": {"heads": 2}, **model})
    ids = torch.arange(len(seeds) * 2 * 9).view(len(seeds), 2, 9) * 7 % 41
    monkeypatch.setattr(cross_entropy, "_can_be_in_place", lambda x: False)
    found = []
    for by_kernels in (True, False):
        monkeypatch.setattr(launching, "wanted", lambda x, use=by_kernels: use and torch.is_grad_enabled())
        monkeypatch.setattr(fused_adamw, "can_step", lambda x, use=by_kernels: use)
        made = spec.build(41, seeds).train()
        optimizer = AdamW().build(dict(made.named_parameters()), [1e-2] * len(seeds), [0.1] * len(seeds))
        losses, norms, gradients = [], [], []
        for step in range(3):
            made.clock.set(step)
            with copies_for_products(made).in_use():
                loss, _ = made.loss(Batch(ids[..., :-1], ids[..., 1:], begins=torch.tensor(True)))
            loss.sum().backward()
            losses.append(loss.detach())
            gradients.append(torch.cat([p.grad.flatten() for p in made.parameters() if p.grad is not None]))
            norms.append(optimizer.step(torch.ones(()), torch.ones(len(seeds), dtype=torch.bool), 1.0))
            for p in made.parameters():
                p.grad = None
        found.append([torch.stack(losses), torch.stack(norms), gradients[0]])
    assert trusted.difference(*found) < 1e-5


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["alone", "two"])
def test_under_autocast_a_model_learns_the_same_with_copied_weights_as_without(kernels, monkeypatch, seeds, tied):
    """All weights are copied in one operation; gradients are float32, and close to those under plain autocast."""
    settings = {"layers": 2, "width": 16, "context": 8, "mixer": {"heads": 2}, "tied": tied}
    ids = torch.arange(len(seeds) * 2 * 9).view(len(seeds), 2, 9) * 7 % 41
    batch, found, made_at_once = Batch(ids[..., :-1], ids[..., 1:], begins=torch.tensor(True)), [], []
    at_once = torch._foreach_copy_  # pyright: ignore
    monkeypatch.setattr(torch, "_foreach_copy_", lambda into, of: (made_at_once.append(len(of)), at_once(into, of)))
    monkeypatch.setattr(cross_entropy, "_can_be_in_place", lambda x: False)
    for by_kernels in (True, False):
        monkeypatch.setattr(launching, "wanted", lambda x, use=by_kernels: use and torch.is_grad_enabled())
        made = LanguageModelSpec.model_validate(settings).build(41, seeds).train()
        copies = copies_for_products(made)
        with copies.in_use(), torch.autocast("cpu", BF16):
            losses, _ = made.loss(batch)
            losses.sum().backward()
        assert not copies.made  # they would be outdated in the next step
        found.append([losses.detach(), *(p.grad for p in made.parameters())])
    assert made_at_once == [2 * 4 * 2 + (not tied)]  # four products per layer, with their biases
    assert all(one.dtype == FLOAT for one in found[0])
    assert trusted.difference(*found) < 2e-2


def test_only_a_permanent_bias_is_left_to_another_layer(kernels, monkeypatch):
    """One gathered from several processes no longer exists by then."""
    monkeypatch.setattr(launching, "wanted", lambda x: True)
    one, x = Linear(2, 3, 4), torch.ones(2, 1, 5, 3)
    assert isinstance(one.with_pending_bias(x), torch.Tensor)
    with copies_for_products(Linear(2, 3, 4)).in_use():
        assert isinstance(one.with_pending_bias(x), torch.Tensor)
    with copies_for_products(one).in_use():
        left = one.with_pending_bias(x)
    assert isinstance(left, PendingBias) and torch.equal(with_bias(left), one(x))


def test_a_translator_learns_the_same_with_kernels_as_without(kernels, monkeypatch):
    """Three sublayers, cross-attention, and an encoder."""
    spec = EncoderDecoderSpec.model_validate({"layers": 2, "width": 16, "mixer": {"heads": 2}, "dropout": 0.1})
    ids, found = torch.arange(36).view(2, 2, 9) * 7 % 40, []
    for by_kernels in (True, False):
        monkeypatch.setattr(launching, "wanted", lambda x, use=by_kernels: use and torch.is_grad_enabled())
        made = spec.build(41, 41, [1, 2]).train()
        with copies_for_products(made).in_use():
            written, _ = made.written(ids, made.read(ids.flip(2)))
        (written * torch.linspace(-1, 1, 16)).sum().backward()
        found.append([written.detach(), *(p.grad for p in made.parameters() if p.grad is not None)])
    assert trusted.difference(*found) < 1e-5


def test_streams_that_are_watched_or_changed_are_added_up(kernels, monkeypatch):
    spec = LanguageModelSpec.model_validate({"layers": 2, "width": 16, "context": 8, "mixer": {"heads": 2}})
    ids, found = torch.arange(16).view(1, 2, 8), []
    for by_kernels in (True, False):
        monkeypatch.setattr(launching, "wanted", lambda x, use=by_kernels: use and torch.is_grad_enabled())
        made = spec.build(41, [1]).train()
        looked_at = "layers.0.stream", "layers.1.attention.output"
        twice = intervene(made, {"layers.0.stream": lambda x: 2 * x})
        with twice, watch(made, *looked_at) as seen, copies_for_products(made).in_use():
            logits, _ = made(ids)
        found.append([logits.detach(), *(seen[name].detach() for name in looked_at)])
    assert trusted.difference(*found) < 1e-5


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_additions_and_norms_are_one_kernel(kernels, monkeypatch, placement):
    """In all sublayers, forward and backward, so that no kernel is silently left out."""
    spec = LanguageModelSpec.model_validate({"layers": 2, "width": 16, "context": 8, "mixer": {"heads": 2}})
    spec = spec.model_copy(update={"norm": Layer(placement=placement)})
    adds, biases, joins = [], [], []
    for kernel, seen, what in (
        (kernels.norm_forward, adds, lambda given: given[-5]),
        (kernels.norm_forward, biases, lambda given: given[-4]),
        (kernels.norm_backward, joins, lambda given: bool(given[11].memory.any())),  # the gradient past the norm
    ):

        def noted(*given, run=kernel.function, seen=seen, what=what):
            seen.append(what(given))
            run(*given)

        monkeypatch.setattr(kernel, "function", noted)
    monkeypatch.setattr(launching, "wanted", lambda x: torch.is_grad_enabled())
    monkeypatch.setattr(launching, "tile", lambda D: (16, 16, 1))  # so that each launch is one program
    for _ in ("kernels are checked", "and used"):
        for seen in (adds, biases, joins):
            seen.clear()
        made = spec.build(41, [1]).train()
        with copies_for_products(made).in_use():
            made(torch.arange(16).view(1, 2, 8))[0].sum().backward()
    # The first norm has nothing to add; the last one, which comes first in the backward pass, gets no gradient past it.
    expected = ([False] + [True] * 4, [False] + [True] * 4) if placement == "pre" else ([True] * 4, [False] * 4)
    assert (adds, joins) == expected and biases == adds


def test_a_users_norm_is_called_and_not_replaced_by_a_kernel(kernels, monkeypatch):
    class Doubled(LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    monkeypatch.setattr(launching, "wanted", lambda x: True)
    x = torch.arange(24.0).view(1, 2, 3, 4)
    for norm, times in ((LayerNorm(1, 4), 1), (Doubled(1, 4), 2)):
        stream, normed = with_norm(PendingSum(x, x, Dropout(1, 0.0)), norm.train())
        torch.testing.assert_close(stream, 2 * x)
        torch.testing.assert_close(normed, times * torch.nn.functional.layer_norm(2 * x, (4,)))
