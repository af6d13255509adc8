"""Locked dropout, word dropout and weight dropout: what is dropped, and that each replica has its own noise."""

import pytest
import torch
from hosting import Host
from torch import nn

from headway.data.running.batches import Batch
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.dropout import LockedDropout, NoiseSpec, WeightDropout, WordDropout
from headway.nn.mingru import MinGruSpec
from headway.nn.recurrence import GruSpec, LstmSpec
from headway.nn.replicated import Dropout, set_dropout
from headway.nn.seeding import seed

R, B, T, D, V = 2, 6, 5, 40, 50


def begun(module: nn.Module, seeds=(0, 1)) -> nn.Module:
    seed(Host(module, len(seeds)), list(seeds))
    return module.train()


def test_locked_dropout_drops_the_same_units_at_all_tokens_of_a_row():
    drop = begun(LockedDropout(R, 0.5))
    y = drop(torch.ones(R, B, T, D))
    assert torch.equal(y, y[:, :, :1].expand_as(y)) and set(y.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(y[:, 0], y[:, 1]) and not torch.equal(y[0], y[1])
    assert (y == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(drop.eval()(y), y)


def test_parts_of_a_batch_get_the_locked_noise_of_their_rows():
    drop = begun(LockedDropout(R, 0.5))
    whole = drop(torch.ones(R, B, T, D))
    drop.clock.set(0, first_row=4)
    assert torch.equal(drop(torch.ones(R, 2, T, D)), whole[:, 4:])


def test_word_dropout_drops_all_occurrences_of_a_word():
    drop, ids = begun(WordDropout(R, V, 0.3)), torch.arange(V).repeat(R, 2, 1)
    y = drop(torch.ones(R, 2, V, D), ids)
    assert torch.equal(y[:, 0], y[:, 1]) and torch.equal(y, y[..., :1].expand_as(y))
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.12)
    drop.clock.set(0, first_row=7)  # another part of the same batch drops the same words
    assert torch.equal(drop(torch.ones(R, 2, V, D), ids), y)
    drop.clock.set(1)
    assert not torch.equal(drop(torch.ones(R, 2, V, D), ids), y)


def test_a_replicas_noise_does_not_depend_on_the_population():
    for made, given in (
        (lambda n: LockedDropout(n, 0.5), lambda n: (torch.ones(n, B, T, D),)),
        (lambda n: WeightDropout(n, 0.5), lambda n: (torch.ones(n, B, D),)),
        (
            lambda n: WordDropout(n, V, 0.5),
            lambda n: (torch.ones(n, B, T, D), torch.arange(B * T).view(1, B, T).repeat(n, 1, 1)),
        ),
    ):
        together, alone = begun(made(2), (3, 4)), begun(made(1), (4,))
        assert torch.equal(together(*given(2))[1:], alone(*given(1)))


def places(model: nn.Module) -> dict[str, Dropout]:
    return {name: one for name, one in model.named_modules() if isinstance(one, Dropout) and one.active}


def rates(model: nn.Module) -> dict[str, float]:
    return {name: round(one.rates[0].item(), 3) for name, one in places(model).items()}


def test_dropout_is_in_the_places_of_awd_lstm():
    noise = NoiseSpec(kind="locked", words=0.1, input=0.65, output=0.4)
    mixer, chain = LstmSpec(weight_dropout=0.5), {"norm": "none", "feedforward": "none", "positions": "none"}
    model = LanguageModelSpec(layers=3, width=8, mixer=mixer, dropout=0.3, noise=noise, **chain).build(V)
    found = {"drop_words": 0.1, "drop": 0.65, "layers.0.around_mixer.drop": 0.3, "layers.1.around_mixer.drop": 0.3}
    found |= {"layers.2.around_mixer.drop": 0.4, **{f"layers.{n}.mixer.along.drop": 0.5 for n in range(3)}}
    assert rates(model) == found
    set_dropout(model, [0.2])  # the population's rate: the others are part of the architecture
    assert rates(model) == found | {f"layers.{n}.around_mixer.drop": 0.2 for n in range(2)}


def test_a_transformer_can_have_it_too():
    noise = NoiseSpec(kind="locked", words=0.1, output=0.4)
    model = LanguageModelSpec(layers=1, width=8, mixer=AttentionSpec(heads=2), dropout=0.3, noise=noise).build(V)
    assert rates(model)["drop_words"] == 0.1 and rates(model)["drop_output"] == 0.4
    assert {type(one) for name, one in places(model).items() if "around" in name} == {LockedDropout}
    mixer = AttentionSpec(heads=2, weight_dropout=0.5)
    model, ids = LanguageModelSpec(layers=1, width=8, mixer=mixer).build(V), torch.arange(12).view(1, 2, 6)
    assert rates(model) == {"layers.0.mixer.project.together.drop": 0.5}
    assert not torch.equal(model.train()(ids)[0], model.eval()(ids)[0])
    plain = LanguageModelSpec(layers=1, width=8, mixer=AttentionSpec(heads=2), dropout=0.3).build(V)
    assert {type(one) for one in places(plain).values()} == {Dropout} and "drop_output" not in places(plain)


def test_a_population_with_all_kinds_equals_its_members_alone():
    noise = NoiseSpec(kind="locked", words=0.2, input=0.3, output=0.2)
    chain = {"norm": "none", "feedforward": "none", "positions": "none", "output_bias": True}
    mixers = [LstmSpec(hidden=6, weight_dropout=0.4), MinGruSpec(), GruSpec(weight_dropout=0.2)]
    spec = LanguageModelSpec(layers=3, width=8, mixer=mixers, dropout=0.3, noise=noise, **chain)
    ids = torch.randint(V, (2, 4, 9), generator=torch.Generator().manual_seed(0))

    def trained(seeds: list[int], rows: torch.Tensor) -> list[torch.Tensor]:
        """Losses of three steps, each continuing from the state of the previous one."""
        model, state, found = spec.build(V, seeds).train(), None, []
        for step in range(3):
            model.clock.set(step)
            losses, state = model.loss(Batch(rows[..., :-1], rows[..., 1:], torch.tensor(False)), state)
            losses.sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= p.grad
                    p.grad = None
            found.append(losses.detach())
        return found

    together = trained([3, 4], ids)
    for r in range(2):
        for ours, alone in zip(together, trained([3 + r], ids[r : r + 1]), strict=True):
            torch.testing.assert_close(ours[r], alone[0], rtol=1e-4, atol=1e-5)
