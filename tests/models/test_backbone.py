"""What the models share: padding, on the left or right and in any amount, does not change results at tokens."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.core.errors import UserError
from headway.models.classifier import Classifier, ClassifierSpec
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.block import Layer
from headway.nn.heads import Concat, Reweight, ReweightCausal, Shift, Shuffle
from headway.nn.positions import (
    T5,
    Alibi,
    Learned,
    NoPositions,
    Rotary,
    Sinusoidal,
    SymmetricAlibi,
    SymmetricT5,
)

V, C, CONTEXT = 17, 3, 6
LOOKING_BACK = [NoPositions(), Learned(), Sinusoidal(), Alibi(), SymmetricAlibi(), Rotary(), T5()]
BOTH_WAYS = [NoPositions(), Learned(), Sinusoidal(), SymmetricAlibi(), Rotary(), SymmetricT5()]
FUSIONS = [Concat(), Shuffle(), Shift(), Reweight(), Reweight(scale="raw"), ReweightCausal()]
BACKENDS = ["plain", "sdpa"]


def randomised(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator)
    return model.eval()


def language_model(positions, fusion=FUSIONS[0], backend="sdpa", placement="pre", window=None) -> LanguageModel:
    mixer = AttentionSpec(heads=2, fusion=fusion, backend=backend, window=window)
    spec = LanguageModelSpec(
        layers=2, width=8, context=CONTEXT, mixer=mixer, positions=positions, norm=Layer(placement=placement)
    )
    return randomised(spec.build(V, [0, 1]))


def classifier(
    positions, fusion=FUSIONS[0], backend="sdpa", placement="pre", window=None, pooling="mean"
) -> Classifier:
    mixer = {"heads": 2, "fusion": fusion, "backend": backend, "window": window}
    spec = ClassifierSpec.model_validate(
        {
            "layers": 2,
            "width": 8,
            "context": CONTEXT,
            "mixer": mixer,
            "positions": positions,
            "norm": {"placement": placement},
            "pooling": pooling,
        }
    )
    return randomised(spec.build(V, C, [0, 1]))


def padded(rows: list[Tensor], left: list[int], right: int, filler: int) -> tuple[Tensor, Tensor]:
    """Rows [R, n] of different lengths as one batch: ids [R, B, T] and the padding mask."""
    T = max(before + row.shape[1] for row, before in zip(rows, left, strict=True)) + right
    ids = torch.full((2, len(rows), T), filler)
    padding_mask = torch.zeros(2, len(rows), T, dtype=torch.bool)
    for b, (row, before) in enumerate(zip(rows, left, strict=True)):
        ids[:, b, before : before + row.shape[1]] = row
        padding_mask[:, b, before : before + row.shape[1]] = True
    return ids, padding_mask


def rows_of(lengths: list[int], number: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(number)
    return [torch.randint(V, (2, length), generator=generator) for length in lengths]


def check_language_model(model: LanguageModel, lengths: list[int], left: list[int], right: int, filler: int) -> None:
    rows = rows_of(lengths)
    ids, padding_mask = padded(rows, left, right, filler)
    logits, _ = model(ids, padding_mask=padding_mask)
    assert logits.isfinite().all()
    for b, (row, before) in enumerate(zip(rows, left, strict=True)):
        alone, _ = model(row[:, None])
        here = logits[:, b, before : before + row.shape[1]]
        torch.testing.assert_close(here, alone[:, 0], rtol=1e-5, atol=1e-5)


def check_classifier(model: Classifier, lengths: list[int], left: list[int], right: int, filler: int) -> None:
    rows = rows_of(lengths)
    ids, padding_mask = padded(rows, left, right, filler)
    logits = model(ids, padding_mask)
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[:, b], model(row[:, None])[:, 0], rtol=1e-5, atol=1e-5)


SHAPE = {"lengths": [CONTEXT, 1, 4], "left": [2, 7, 0], "right": 3, "filler": 5}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("positions", LOOKING_BACK, ids=lambda p: p.kind)
def test_a_language_model_ignores_padding_with_any_positions(positions, backend):
    check_language_model(language_model(positions, backend=backend), **SHAPE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("positions", BOTH_WAYS, ids=lambda p: p.kind)
def test_a_classifier_ignores_padding_with_any_positions(positions, backend):
    check_classifier(classifier(positions, backend=backend), **SHAPE)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("fusion", FUSIONS, ids=lambda f: "-".join(map(str, f.model_dump().values())))
def test_padding_is_ignored_with_any_fusion_and_norm_placement(fusion, placement):
    check_language_model(language_model(Learned(), fusion, placement=placement), **SHAPE)
    check_classifier(classifier(Learned(), fusion, placement=placement), **SHAPE)


@pytest.mark.parametrize("pooling", ["mean", "first", "max"])
@pytest.mark.parametrize("window", [None, 2])
def test_padding_is_ignored_with_any_pooling_and_window(pooling, window):
    check_classifier(classifier(Rotary(), window=window, pooling=pooling), **SHAPE)
    check_language_model(language_model(Rotary(), window=window), **SHAPE)


MODELS = {
    (kind, positions.kind): make(positions, Reweight())
    for kind, make, schemes in (("lm", language_model, LOOKING_BACK), ("classifier", classifier, BOTH_WAYS))
    for positions in schemes
}


@settings(max_examples=40, deadline=None)
@given(
    which=st.sampled_from(list(MODELS)),
    rows=st.lists(st.tuples(st.integers(1, CONTEXT), st.integers(0, 9)), min_size=1, max_size=4),
    right=st.integers(0, 9),
    filler=st.integers(0, V - 1),
)
def test_any_amount_of_padding_on_any_side_in_any_batch_is_ignored(which, rows, right, filler):
    check = check_language_model if which[0] == "lm" else check_classifier
    check(MODELS[which], [n for n, _ in rows], [before for _, before in rows], right, filler)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("positions", [Learned(), Alibi(), T5()], ids=lambda p: p.kind)
def test_gradients_equal_those_without_padding(positions, backend):
    """In particular, a query without visible keys has a gradient of zero, not NaN."""
    model = language_model(positions, backend=backend)
    rows = rows_of([4, 4])
    ids, padding_mask = padded(rows, [3, 0], 2, 1)
    seen = padding_mask.nonzero(as_tuple=True)
    model(ids, padding_mask=padding_mask)[0][seen].square().sum().backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model(torch.stack(rows, 1))[0].square().sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", LOOKING_BACK, ids=lambda p: p.kind)
def test_rows_padded_on_the_left_continue_from_a_cache(positions):
    model = language_model(positions)
    rows = rows_of([5, 3])
    ids, padding_mask = padded(rows, [0, 2], 0, 1)
    whole, _ = model(ids, padding_mask=padding_mask)
    _, state = model(ids[..., :3], padding_mask=padding_mask[..., :3])
    later, state = model(ids[..., 3:4], state, padding_mask[..., 3:4])
    last, state = model(ids[..., 4:], state)  # without a padding mask, all are tokens
    torch.testing.assert_close(torch.cat((later, last), 2), whole[..., 3:, :], rtol=1e-5, atol=1e-5)
    assert state.length == 5 and torch.equal(state.padding_mask, padding_mask)


def test_without_padding_the_causal_kernel_is_used(monkeypatch):
    from headway.nn.context import AttentionContext

    seen = []
    kept = AttentionContext.is_plainly_causal
    monkeypatch.setattr(
        AttentionContext, "is_plainly_causal", property(lambda s: seen.append(kept.fget(s)) or seen[-1])
    )
    model, (row,) = language_model(Learned()), rows_of([4])
    model(row[:, None])
    assert seen and all(seen)
    seen.clear()
    model(row[:, None], padding_mask=torch.ones_like(row[:, None], dtype=torch.bool))
    assert seen and not any(seen)


def test_a_row_of_only_padding_gives_finite_numbers():
    ids = torch.zeros(2, 1, 3, dtype=torch.int64)
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    for pooling, backend in itertools.product(["mean", "first", "max"], BACKENDS):
        logits = classifier(SymmetricT5(), backend=backend, pooling=pooling)(ids, nothing)
        assert logits.isfinite().all()


def test_learned_positions_limit_tokens_and_not_slots():
    model = classifier(Learned())
    (row,) = rows_of([CONTEXT])
    ids, padding_mask = padded([row], [20], 20, 0)
    torch.testing.assert_close(model(ids, padding_mask), model(row[:, None]), rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match=r"7 tokens, but the learned positions end at 6 \(model.context\)"):
        model(*padded(rows_of([CONTEXT + 1]), [3], 0, 0))
