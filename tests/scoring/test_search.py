"""Decoding of translators: it finds the best output, independently of other rows, with and without a cache."""

import itertools
import math

import numpy as np
import pytest
import torch

from headway.models import encoder_decoder
from headway.models.decoder_only import DecoderOnlySpec
from headway.models.encoder_decoder import EncoderDecoderSpec
from headway.nn.attention import AttentionSpec
from headway.nn.kernels import onednn
from headway.nn.positions import Learned, Rotary
from headway.nn.recurrence import LstmSpec
from headway.scoring.beam import largest, likeliest, repeated
from headway.scoring.continued import likeliest_token, log_total
from headway.scoring.decoding import Beam, Greedy, Sampled
from headway.scoring.translation import decoded

V, END = 9, 8
SHAPE = {"layers": 2, "width": 16, "context": 12, "mixer": AttentionSpec(heads=2), "positions": Rotary()}
KINDS = {
    "encoder-decoder": EncoderDecoderSpec(**SHAPE),
    "decoder-only": DecoderOnlySpec(**SHAPE),
    "learned": EncoderDecoderSpec(**{**SHAPE, "positions": Learned()}),
    "lstm": EncoderDecoderSpec(**{**SHAPE, "mixer": LstmSpec(), "positions": {"kind": "none"}}),
}
SOON = {"per_source": 0.5, "extra": 4}  # a small limit, to keep the tests fast
WAYS = [
    Greedy(**SOON),
    Beam(size=3, **SOON),
    Beam(size=4, length_penalty=0.6, nbest=3, no_repeat=2, **SOON),
    Sampled(seed=5, top_k=4, **SOON),
]


def model_of(kind: str, vocabulary: int = V, seeds=(0,)):
    model = KINDS[kind].build(vocabulary, vocabulary, seeds).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5 * torch.randn(p.shape[1:], generator=generator))
    return model


def sources_of(n: int, vocabulary: int = V) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocabulary - 1, rng.integers(1, 9)) for _ in range(n)]


def tokens_of(found) -> list:
    return [[[h.tokens for h in best] for best in rows] for rows in found]


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, how) for k, kind in enumerate(KINDS) for n, how in enumerate(WAYS) if kind == "encoder-decoder" or n == k],
    ids=lambda x: getattr(x, "label", x),
)
def test_a_row_is_decoded_as_if_it_were_alone_with_a_cache_and_without(kind, how):
    model, sources = model_of(kind), sources_of(4)
    together = tokens_of(decoded(model, sources, END, how, at_once=64))
    assert together == tokens_of(decoded(model, sources, END, how, at_once=1))
    assert together == tokens_of(decoded(model, sources, END, how, at_once=4, cached=False))
    assert len({best[0] for best in together[0]}) > 1


@pytest.mark.parametrize("how", WAYS[:3], ids=lambda h: h.label)
def test_sources_are_decoded_the_same_with_packed_weights_and_in_batches(how, monkeypatch):
    packed, pack = [], onednn._pack
    monkeypatch.setattr(onednn, "_pack", lambda weight: packed.append(weight.shape) or pack(weight))
    model, sources = model_of("encoder-decoder", seeds=(4, 9)), sources_of(16)
    together = decoded(model, sources, END, how)
    assert packed or not torch.backends.mkldnn.is_available()
    for k, source in enumerate(sources):
        assert tokens_of(decoded(model, [source], END, how)) == [[rows[k]] for rows in tokens_of(together)]
    monkeypatch.setattr(onednn.PackedWeight, "multiply", lambda self, *given: None)
    plain = decoded(model, sources, END, how)
    assert tokens_of(plain) == tokens_of(together)
    for ours, theirs in zip(itertools.chain(*plain), itertools.chain(*together), strict=True):
        assert [h.nats for h in ours] == pytest.approx([h.nats for h in theirs], rel=1e-4)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="sums of another shape round differently")
@pytest.mark.parametrize("how", WAYS[:2], ids=lambda h: h.kind)
def test_ties_between_tokens_are_broken_the_same_way_alone_and_in_a_batch(how):
    vocabulary = 211
    model = model_of("encoder-decoder", vocabulary)
    sources = [source for source in sources_of(200, vocabulary) if len(source) == 4]
    for p in model.parameters():
        if p.shape[1] == vocabulary:  # exact ties: apart from END, the second half of the vocabulary equals the first
            p.data[:, 105:210] = p.data[:, :105]
    together = tokens_of(decoded(model, sources, vocabulary - 1, how))[0]
    assert together == [tokens_of(decoded(model, [source], vocabulary - 1, how))[0][0] for source in sources]
    assert len(sources) > 16


@pytest.mark.parametrize("how", WAYS[::2], ids=lambda h: h.kind)
def test_replicas_decode_the_same_together_as_alone(how):
    both = model_of("encoder-decoder", seeds=(4, 9))
    found = tokens_of(decoded(both, sources_of(4), END, how))
    for r, seed in enumerate((4, 9)):
        assert found[r] == tokens_of(decoded(model_of("encoder-decoder", seeds=(seed,)), sources_of(4), END, how))[0]


@torch.no_grad()
def all_by_hand(model, source, targets) -> list[float]:
    """Nats of targets of one length, each including its END."""
    end, rows = model.vocabulary - 1, len(targets)
    sources = torch.tensor([*source, end]).expand(1, rows, -1)
    ids, asked = (torch.tensor([[end, *t] if begins else [*t, end] for t in targets]) for begins in (True, False))
    chances = model(sources, ids[None])[0].double().log_softmax(-1)
    return (-chances.gather(-1, asked[..., None])[..., 0].sum(-1)).tolist()


def by_hand(model, source, target) -> float:
    return all_by_hand(model, source, [target])[0]


@pytest.mark.parametrize(
    ("kind", "length_penalty"), [("encoder-decoder", 0.0), ("encoder-decoder", 1.0), ("decoder-only", 0.7)]
)
def test_a_beam_as_wide_as_the_search_space_finds_the_best(kind, length_penalty):
    """Three tokens and END, at most three places: all 40 targets are scored by hand."""
    model = model_of(kind, vocabulary=4)
    how = Beam(size=27, nbest=5, length_penalty=length_penalty, per_source=0.5, extra=2)
    for source in ([0, 1], [1]):
        limit = how.limit(len(source))
        scored = {}
        for n in range(limit + 1):
            of_length = list(itertools.product(range(3), repeat=n))
            scored |= dict(zip(of_length, all_by_hand(model, source, of_length), strict=True))
        ranked = sorted(scored, key=lambda t: scored[t] / (len(t) + 1) ** length_penalty)
        best = decoded(model, [np.array(source)], 3, how)[0][0]
        assert [h.tokens for h in best] == ranked[:5]
        for h in best:
            assert h.nats == pytest.approx(scored[h.tokens], rel=1e-4)
            assert h.score == pytest.approx(-scored[h.tokens] / (len(h.tokens) + 1) ** length_penalty, rel=1e-4)


def test_a_beam_of_one_is_greedy_and_so_is_sampling_at_low_temperature():
    model, sources = model_of("encoder-decoder"), sources_of(5)
    greedy = decoded(model, sources, END, Greedy())
    assert tokens_of(greedy) == tokens_of(decoded(model, sources, END, Sampled(temperature=0)))
    for penalty in (0.0, 1.0):
        assert tokens_of(greedy) == tokens_of(decoded(model, sources, END, Beam(size=1, length_penalty=penalty)))
    for source, (best,) in zip(sources, greedy[0], strict=True):
        assert best.nats == pytest.approx(by_hand(model, source, best.tokens), rel=1e-4)


def test_every_row_ends_at_its_own_limit():
    model = model_of("encoder-decoder")
    with torch.no_grad():  # END is never likely
        model.embedding.weight[:, END] = -50 * model.embedding.weight[:, :END].mean(1)
    how = Greedy(per_source=1.5, extra=2)
    for source, (best,) in zip(sources_of(4), decoded(model, sources_of(4), END, how)[0], strict=True):
        assert len(best.tokens) <= math.ceil(1.5 * len(source)) + 2


def test_learned_positions_limit_the_length_of_targets():
    found = decoded(model_of("learned"), sources_of(6), END, Greedy(per_source=100))
    assert all(len(h.tokens) < 12 for best in found[0] for h in best)


def test_n_grams_that_may_not_repeat_do_not():
    found = decoded(model_of("encoder-decoder"), sources_of(5), END, Beam(size=4, no_repeat=2))
    for (best,) in found[0]:
        pairs = list(itertools.pairwise(best.tokens))
        assert len(pairs) == len(set(pairs))
    ids = torch.tensor([[[1, 2, 1, 2, 3, 1]]])
    assert torch.nonzero(repeated(ids, 2, 5)[0, 0])[:, 0].tolist() == [2]
    assert torch.nonzero(repeated(ids, 1, 5)[0, 0])[:, 0].tolist() == [1, 2, 3]
    assert not repeated(ids, 7, 5).any()


def test_empty_sources_give_empty_targets():
    sources, nothing = sources_of(3), np.zeros(0, dtype=np.int64)
    for kind, how in (("encoder-decoder", WAYS[0]), ("decoder-only", WAYS[2])):
        model = model_of(kind)
        found = tokens_of(decoded(model, [nothing, *sources, nothing], END, how))[0]
        assert found == [[()], *tokens_of(decoded(model, sources, END, how))[0], [()]]
        assert tokens_of(decoded(model, [nothing], END, how)) == [[[()]]] and decoded(model, [], END, how) == [[]]


def test_a_source_that_is_too_long_is_truncated():
    model = model_of("learned")
    long = np.arange(40) % (V - 1)
    assert tokens_of(decoded(model, [long], END, Greedy())) == tokens_of(decoded(model, [long[:11]], END, Greedy()))


def test_branches_of_a_tree_have_the_same_scores_as_separate_rows():
    """Three continuations of each source, two of which share a prefix; padded sources, and two replicas."""
    for kind in ("encoder-decoder", "decoder-only", "learned"):
        model = model_of(kind, seeds=(0, 1))
        sources = torch.tensor([[1, 2, 3, END], [4, END, 0, 0]]).expand(2, -1, -1)
        mask = torch.tensor([[True] * 4, [True, True, False, False]]).expand(2, -1, -1)
        tokens = torch.tensor([[[1, 2, 3], [4, 5, 6]], [[7, 0, 1], [2, 3, 4]]])
        parents = torch.tensor([[[0, 0, 2], [1, 0, 0]], [[2, 1, 2], [0, 0, 1]]])
        again = (tokens + 1) % END
        with torch.no_grad():
            _, state = model.go_on(torch.full((2, 2, 1), END), model.read(sources, mask))
            first, tree = model.go_on(tokens, state.branched(torch.zeros(2, 2, 3, dtype=torch.int64)))
            second, _ = model.go_on(again, tree.branched(parents))
            for k in range(3):
                ends = torch.full((2, 2, 1), END)
                row = torch.cat((ends, tokens.gather(2, parents[..., k : k + 1]), again[..., k : k + 1]), 2)
                alone = model(sources, row, mask)
                torch.testing.assert_close(second[:, :, k], alone[:, :, 2], atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(
                    first.gather(2, parents[..., k, None, None].expand(-1, -1, 1, V))[:, :, 0],
                    alone[:, :, 1],
                    atol=1e-5,
                    rtol=1e-4,
                )


@pytest.mark.parametrize("vocabulary", [3, 7, 1000, 1024])
def test_the_likeliest_continuations_are_chosen_among_all(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    chances = torch.randn(2, 3, 4, vocabulary, generator=generator).log_softmax(-1)
    chances[..., -1] = -torch.inf
    nats = torch.rand(2, 3, 4, generator=generator)
    found, parents, tokens = likeliest(nats, *largest(chances, 5), 5)
    expected, places = (nats[..., None] - chances).flatten(2).topk(5, largest=False)
    torch.testing.assert_close(found, expected)
    assert torch.equal(parents * vocabulary + tokens, places)


def test_a_cache_that_is_continued_twice_is_not_overwritten():
    model = model_of("encoder-decoder")
    with torch.no_grad():
        _, state = model.go_on(torch.tensor([[[END, 1]]]), model.read(torch.tensor([[[3, END]]])))
        _, state = model.go_on(torch.tensor([[[2]]]), state)
        one, other = (model.go_on(torch.tensor([[[token]]]), state)[1] for token in (4, 5))
        told = [model.go_on(torch.tensor([[[6]]]), after)[0] for after in (one, other, one)]
        assert torch.equal(told[0], told[2]) and not torch.equal(told[0], told[1])
        alone = model(torch.tensor([[[3, END]]]), torch.tensor([[[END, 1, 2, 4, 6]]]))[:, :, -1:]
    torch.testing.assert_close(told[0], alone, atol=1e-5, rtol=1e-4)


def test_forbidden_tokens_are_never_written():
    model = model_of("encoder-decoder")
    written = [h.tokens for (h,) in decoded(model, sources_of(4), END, WAYS[0])[0]]
    common = max(range(V - 1), key=lambda k: sum(tokens.count(k) for tokens in written))
    model.never_written = (common,)
    for how in WAYS:
        found = decoded(model, sources_of(4), END, how)[0]
        assert all(common not in h.tokens for best in found for h in best)
    greedy = decoded(model, sources_of(4), END, WAYS[0])[0]
    for source, (best,) in zip(sources_of(4), greedy, strict=True):  # it keeps its share of the probability
        if not best.cut:
            assert best.nats == pytest.approx(by_hand(model, source, best.tokens), rel=1e-4)


@pytest.mark.parametrize("vocabulary", [3, 1023, 1024, 1500, 10_000])
def test_the_likeliest_token_equals_torchs_argmax_the_first_of_ties(vocabulary: int):
    drawn = torch.Generator().manual_seed(0)
    scores = torch.randint(9, (2, 50, vocabulary), generator=drawn).float()  # with many ties
    scores[0, 1] = -torch.inf
    scores[1, 2, -1] = 100.0
    assert torch.equal(likeliest_token(scores), scores.argmax(-1))


def test_the_normaliser_equals_torchs_logsumexp():
    scores = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0)) * 50
    scores[0, 0, 3:] = -torch.inf
    expected = scores.logsumexp(-1)
    torch.testing.assert_close(log_total(scores), expected)
    assert log_total(torch.full((1, 4), -torch.inf)).item() == -torch.inf


def test_sources_encoded_in_groups_give_the_same_vectors(monkeypatch):
    """Each group without the padding of the others: outputs are decoded from the same vectors."""
    model = EncoderDecoderSpec(layers=1, encoder_layers=2, width=16, context=12, mixer=AttentionSpec(heads=2)).build(
        9, 9
    )
    model.eval()
    lengths = torch.tensor([11, 9, 9, 6, 5, 2, 1])
    mask = (torch.arange(11) < lengths[:, None])[None]
    sources = torch.randint(8, (1, 7, 11), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(encoder_decoder, "SOURCES_PER_PASS", 3)
    with torch.no_grad():
        together, apart = model.read(sources, mask).memory, model.read_many(sources, mask).memory
    assert torch.equal(together.padding_mask, apart.padding_mask)
    torch.testing.assert_close(together.vectors[mask], apart.vectors[mask])
