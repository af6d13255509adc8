"""On a data set with one or two rows all seeds read the same batches, which is no fault."""

from types import SimpleNamespace

import pytest
import torch

from headway.audit.populations import seeds


@pytest.mark.parametrize(("rows", "batch", "is_told"), [(1, 4, False), (2, 4, False), (100, 4, True), (100, 1, True)])
def test_equal_batches_are_reported_where_seeds_should_read_different_ones(rows: int, batch: int, is_told: bool):
    text, weights = torch.arange(7 * rows).view(rows, 7), torch.randn(2, 50)
    read = {step: text[(torch.arange(batch) + batch * step) % rows].expand(2, -1, -1) for step in (0, 1, 25)}
    recipe = SimpleNamespace(data=SimpleNamespace(batches=SimpleNamespace(by_seed=True)))
    members = SimpleNamespace(recipes=[recipe] * 2, seeds=[0, 1], all=[0, 1])
    same = seeds._alike(members, seeds._Population(None, weights, read, [[], []]))  # pyright: ignore
    assert same == ("seeds 0 and 1 have the same data" if is_told else None)
    read[25] = torch.stack((read[25][0], read[25][1] + 1))  # different orders in the next epoch
    assert seeds._alike(members, seeds._Population(None, weights, read, [[], []])) is None  # pyright: ignore
