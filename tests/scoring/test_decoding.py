import math
from collections import Counter

import pytest
import torch

from headway.core.errors import UserError
from headway.nn.heads import Concat, Reweight, ReweightCausal, Shift, Shuffle
from headway.nn.positions import T5, Alibi, Learned, NoPositions, Rotary, Sinusoidal, SymmetricAlibi
from headway.scoring.decoding import sample, samples

V, CONTEXT = 11, 8

POSITIONS = [NoPositions(), Learned(), Sinusoidal(), Alibi(), SymmetricAlibi(), Rotary(), T5()]
FUSIONS = [Concat(), Shuffle(), Shift(), ReweightCausal(), Reweight()]


def drawn(model, prompt=(1, 2, 3), tokens: int = 3 * CONTEXT, seed: int = 0, **settings) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return list(sample(model, torch.tensor(prompt, dtype=torch.int64), tokens, generator=generator, **settings))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("positions", POSITIONS, ids=lambda p: p.kind)
def test_the_cache_changes_nothing_also_beyond_the_context(model, positions, temperature):
    net = model(positions)
    with_cache = drawn(net, temperature=temperature)
    assert with_cache == drawn(net, temperature=temperature, cached=False)
    assert len(set(with_cache)) > 1


@pytest.mark.parametrize("fusion", FUSIONS, ids=lambda f: f.kind)
def test_the_cache_changes_nothing_under_any_fusion(model, fusion):
    net = model(fusion=fusion)
    assert drawn(net) == drawn(net, cached=False)


def test_a_fusion_without_a_cache_gives_the_reason(model):
    assert "every new token changes the norm" in model(fusion=Reweight()).why_no_cache
    assert all(model(fusion=f).why_no_cache is None for f in FUSIONS[:-1])


@pytest.mark.parametrize("length", [1, CONTEXT - 1, CONTEXT])
def test_any_prompt_that_fits_can_be_continued(model, length):
    prompt = tuple(k % V for k in range(length))
    assert drawn(model(), prompt) == drawn(model(), prompt, cached=False)


@pytest.mark.parametrize("prompt", [(1, 2, 3), (4,), (0, 9, 7, 7, 2), (5, 6), (8, 1, 0)])
def test_greedy_tokens_are_the_likeliest_given_the_remembered_context(model, prompt):
    """The model remembers all tokens until the context is full; then the older half is dropped."""
    net, remembered = model(Rotary()), list(prompt)
    for token in drawn(net, prompt, temperature=0.0):
        if len(remembered) > CONTEXT:
            remembered = remembered[-CONTEXT // 2 :]
        logits, _ = net(torch.tensor(remembered)[None, None])
        assert token == logits[0, 0, -1].argmax()
        remembered.append(token)


def test_samples_depend_on_the_seed_only(model):
    one, again, other = (drawn(model(), seed=seed, temperature=5.0) for seed in (1, 1, 2))
    assert one == again != other


def test_texts_sampled_in_a_batch_equal_those_sampled_alone(model):
    net, prompt = model(), torch.tensor([1, 2, 3])
    noise = [torch.Generator().manual_seed(s) for s in range(4)]
    together = list(zip(*samples(net, prompt, 20, noise=noise), strict=True))
    assert [list(tokens) for tokens in together] == [drawn(net, tokens=20, seed=s) for s in range(4)]


def likeliest(model, prompt=(1, 2, 3)) -> list[int]:
    logits, _ = model(torch.tensor(prompt)[None, None])
    return logits[0, 0, -1].argsort(descending=True).tolist()


def first_draws(model, **settings) -> Counter:
    return Counter(drawn(model, tokens=1, seed=s, **settings)[0] for s in range(50))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_draws_only_among_the_k_likeliest(model, k):
    found = first_draws(model(), top_k=k, temperature=5.0)
    assert set(found) == set(likeliest(model())[:k])


def test_top_k_beyond_the_vocabulary_is_no_limit(model):
    assert drawn(model(), top_k=V + 5) == drawn(model())


@pytest.mark.parametrize("p", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_top_p_draws_only_the_fewest_that_reach_p(model, p):
    net = model()
    chances = net(torch.tensor([1, 2, 3])[None, None])[0][0, 0, -1].softmax(-1).sort(descending=True).values
    fewest = min(V, int((chances.cumsum(0) < p).sum()) + 1)
    found = first_draws(net, top_p=p)
    assert set(found) <= set(likeliest(net)[:fewest])
    assert likeliest(net)[0] in found


def test_samples_follow_the_models_probabilities(uniform):
    counts = Counter(drawn(uniform(), tokens=400))
    assert set(counts) == set(range(V))
    assert max(counts.values()) < 2 * 400 / V


def test_a_low_temperature_is_nearly_greedy(model):
    """At any temperature: scores divided by a tiny one may become infinite."""
    for low in (1e-6, 1e-20, 1e-45, 5e-324):
        assert drawn(model(), temperature=low) == drawn(model(), temperature=0.0)


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ((), {}, "the prompt is empty"),
        (tuple(range(CONTEXT + 1)), {}, f"the prompt has {CONTEXT + 1} tokens, but the model's context is {CONTEXT}"),
        ((1,), {"temperature": -0.5}, "a temperature must be 0"),
        ((1,), {"temperature": math.nan}, "a temperature must be 0"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(model, prompt, settings, message):
    with pytest.raises(UserError, match=message):
        drawn(model(), prompt, **settings)


def test_a_long_text_is_not_copied_for_every_token(model):
    from headway.scoring.continued import Continued, in_order

    text = Continued(model(NoPositions()), torch.ones(1, 2, 3, dtype=torch.int64))
    rooms = set()
    for k in range(200):
        tokens = torch.full((1, 2), k % V)
        text.take(in_order(tokens), tokens)
        rooms.add(text._room.data_ptr())
    assert text.ids.shape == (1, 2, 203) and len(rooms) < 12
    assert text.ids[0, 1, 3:].tolist() == [k % V for k in range(200)]
