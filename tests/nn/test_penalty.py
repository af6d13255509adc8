"""Penalties on activations: what they are computed from, when they apply, and per replica."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from headway.core.errors import UserError
from headway.data.running.batches import Batch
from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.nn.block import NoFeedForward, NoNorm
from headway.nn.dropout import NoiseSpec
from headway.nn.penalty import NO_PENALTY, PenaltySpec
from headway.nn.positions import NoPositions
from headway.nn.recurrence import LstmSpec
from headway.recipe.recipe import load

V = 30
PENALTY = PenaltySpec(size=2.0, change=0.5)


def built(penalty: PenaltySpec, seeds=(0,), dropout: float = 0.4) -> LanguageModel:
    noise = NoiseSpec(kind="locked", output=dropout)
    plain = {"positions": NoPositions(), "norm": NoNorm(), "feedforward": NoFeedForward()}
    spec = LanguageModelSpec(layers=2, width=12, mixer=LstmSpec(), noise=noise, penalty=penalty, **plain)
    return spec.build(V, seeds)


def batch(replicas: int = 1, rows: int = 3, length: int = 7) -> Batch:
    ids = torch.randint(V, (replicas, rows, length + 1), generator=torch.Generator().manual_seed(0))
    return Batch(ids[..., :-1], ids[..., 1:], torch.tensor(False))


def test_a_penalty_is_computed_from_mean_squares_of_vectors_and_of_their_changes():
    x = torch.randn(2, 3, 5, 4)
    for r in range(2):
        squares, changes = [], []
        for row in x[r]:
            squares += [float(number) ** 2 for number in row.flatten()]
            changes += [float(b - a) ** 2 for here, after in pairwise(row) for a, b in zip(here, after, strict=True)]
        by_hand = 2.0 * sum(squares) / len(squares) + 0.5 * sum(changes) / len(changes)
        assert PENALTY.of(x)[r].item() == pytest.approx(by_hand, rel=1e-5)


def test_a_row_of_one_token_adds_no_change_penalty():
    x = torch.ones(1, 2, 1, 4)
    assert PENALTY.of(x).tolist() == [2.0]


def test_only_the_train_loss_has_the_penalty():
    plain, punished, given = built(NO_PENALTY), built(PENALTY), batch()
    seen: list[Tensor] = []
    honest = punished.hidden
    punished.hidden = lambda *a, **k: (seen.append((found := honest(*a, **k))[0]), found)[1]  # pyright: ignore
    more = punished.train().loss(given)[0] - plain.train().loss(given)[0]
    torch.testing.assert_close(more, PENALTY.of(seen[-1]))
    assert more.item() > 0
    assert (seen[-1] == 0).any()  # dropout has been applied
    assert torch.equal(punished.eval().loss(given)[0], plain.eval().loss(given)[0])
    assert torch.equal(punished.losses(given.inputs, given.targets), plain.losses(given.inputs, given.targets))


def test_a_replica_is_penalised_for_its_own_activations_only():
    both, given = built(PENALTY, (3, 4)).train(), batch(2)
    for r, seed in enumerate((3, 4)):
        own = Batch(given.inputs[r : r + 1], given.targets[r : r + 1], given.begins)
        torch.testing.assert_close(both.loss(given)[0][r], built(PENALTY, (seed,)).train().loss(own)[0][0])


def test_training_with_it_makes_vectors_smaller():
    def size(penalty: PenaltySpec) -> float:
        model, given = built(penalty, dropout=0.0).train(), batch(rows=8)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            model.loss(given)[0].sum().backward()
            optimizer.step()
        return model.hidden(given.inputs)[0].square().mean().item()

    assert size(PenaltySpec(size=5.0)) < 0.8 * size(NO_PENALTY)


def test_recipes_can_set_it_and_mistakes_are_reported():
    recipe = load("demo", ["model.penalty.size=2", "model.penalty.change=1"])
    assert recipe.model.penalty == PenaltySpec(size=2, change=1)
    for nothing in ("null", "{}", "{size: 0}"):
        assert load("demo", [f"model.penalty={nothing}"]) == load("demo")
    with pytest.raises(UserError, match="size"):
        load("demo", ["model.penalty.size=-1"])
    with pytest.raises(UserError, match="change"):
        load("demo", ["model.penalty.chang=1"])
    with pytest.raises(UserError, match="penalty"):
        load("python-modules", ["model.penalty.size=1"])
