"""Ensembles of translators: the mean of their probabilities at every step, for all kinds of translators."""

import numpy as np
import pytest
import torch

from headway.models.decoder_only import DecoderOnlySpec
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.nn.attention import AttentionSpec
from headway.nn.positions import Learned, Rotary
from headway.nn.recurrence import LstmSpec
from headway.scoring.decoding import Beam, Greedy
from headway.scoring.joint_translator import JointTranslator
from headway.scoring.translation import decoded

V, END = 9, 8
SHAPE = {"layers": 1, "width": 16, "context": 12, "mixer": AttentionSpec(heads=2), "positions": Rotary()}
BOTH = EncoderDecoderSpec(**SHAPE)
OTHERS = [
    DecoderOnlySpec(**SHAPE),
    EncoderDecoderSpec(**{**SHAPE, "mixer": LstmSpec(), "positions": {"kind": "none"}}),
    EncoderDecoderSpec(**{**SHAPE, "context": 10, "positions": Learned()}),
]
SOON = {"per_source": 0.5, "extra": 4}
WAYS = [Greedy(**SOON), Beam(size=3, nbest=2, no_repeat=3, **SOON)]


def built(spec, *seeds: int):
    """Models with large random weights that depend only on the seed."""
    model = spec.build(V, V, seeds).eval()
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            for r, seed in enumerate(seeds):
                noise = torch.Generator().manual_seed(100 * (seed + 9) + n)
                p[r].add_(0.8 * torch.randn(p.shape[1:], generator=noise))
    return model


def sources_of(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, V - 1, rng.integers(1, 8)) for _ in range(n)]


def tokens_of(found) -> list:
    return [[h.tokens for h in best] for best in found[0]]


def members() -> list:
    return [built(BOTH, 0, 1), *(built(spec, k + 2) for k, spec in enumerate(OTHERS))]


@torch.no_grad()
def nats_by_hand(models, source, target) -> float:
    """Nats of a target and its END: probabilities are averaged over all replicas."""
    known, begun = torch.tensor([*source, END]), torch.tensor([END, *target])
    chances = torch.cat(
        [model(known.expand(model.replicas, 1, -1), begun.expand(model.replicas, 1, -1)) for model in models]
    )
    mean = chances.double().softmax(-1).mean(0)[0]
    return -mean.gather(1, torch.tensor([*target, END])[:, None]).log().sum().item()


@pytest.mark.parametrize("how", WAYS, ids=lambda how: how.kind)
def test_the_likelihood_of_an_output_is_by_the_mean_probabilities(how):
    models, sources = members(), sources_of(5)
    found = decoded(JointTranslator(models), sources, END, how)
    assert len(found) == 1 and len(set(map(str, tokens_of(found)))) > 2
    for source, best in zip(sources, found[0], strict=True):
        for one in best:
            assert one.nats == pytest.approx(nats_by_hand(models, source, one.tokens), rel=1e-4)


@pytest.mark.parametrize("how", WAYS, ids=lambda how: how.kind)
def test_rows_are_decoded_as_if_alone_and_a_population_can_be_a_member(how):
    sources = sources_of(5)
    found = tokens_of(decoded(JointTranslator(members()), sources, END, how))
    assert found == tokens_of(decoded(JointTranslator(members()), sources, END, how, at_once=1))
    assert found == tokens_of(decoded(JointTranslator(members()), sources, END, how, at_once=3, cached=False))
    apart = [built(BOTH, 0), built(BOTH, 1), *members()[1:]]
    assert found == tokens_of(decoded(JointTranslator(apart), sources, END, how))
    alone = decoded(built(BOTH, 0), sources, END, how)
    assert tokens_of(decoded(JointTranslator([built(BOTH, 0)]), sources, END, how)) == tokens_of(alone) != found


def test_the_smallest_limits_apply_to_all_members():
    joined = JointTranslator(members())
    assert (joined.longest, joined.most_written, joined.together) == (10, 9, 5)
    (best,) = decoded(joined, [np.arange(30) % 8], END, Greedy(per_source=3))[0]
    assert len(best[0].tokens) <= 9
    with pytest.raises(AssertionError, match="same tokens"):
        JointTranslator([built(BOTH, 0), BOTH.build(V, V + 1, [0])])


def test_tokens_forbidden_for_one_member_are_forbidden_for_all():
    plain = decoded(JointTranslator([built(BOTH, 0), built(BOTH, 1)]), sources_of(6), END, WAYS[0])
    token = next(best[0][0] for best in tokens_of(plain) if best[0])
    models = [built(BOTH, 0), built(BOTH.model_copy(update={"begin": token}), 1)]
    for how in WAYS:
        written = tokens_of(decoded(JointTranslator(models), sources_of(6), END, how))
        assert not any(token in tokens for best in written for tokens in best)
