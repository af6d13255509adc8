import copy

import pytest
import torch
import torch.nn.functional as F
from captioned import TREE

from headway.core.errors import UserError
from headway.data.images.batches import PictureBatch
from headway.models.clip import Clip, ClipSpec, InfoNCE, Sigmoid
from headway.nn.taps import watch
from headway.recipe.recipe import from_tree

VOCABULARY, SIZE = 11, 12


def spec(**changes) -> ClipSpec:
    tree = copy.deepcopy(TREE)
    tree["model"] |= changes
    tree["data"] |= {"path": "nowhere"}
    return from_tree(tree, "captioned").model


def batch(rows: int = 6, replicas: int = 1, captions: list[int] | None = None) -> PictureBatch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (replicas, rows, 5), generator=generator)
    pictures = torch.randint(256, (replicas, rows, 3, SIZE, SIZE), generator=generator).to(torch.uint8)
    lengths = torch.randint(2, 6, (replicas, rows), generator=generator)
    own = torch.arange(rows) if captions is None else torch.tensor(captions)
    return PictureBatch(
        ids,
        torch.arange(5) < lengths[..., None],
        pictures,
        torch.arange(rows).expand(replicas, -1),
        own.expand(replicas, -1),
    )


def built(*seeds: int, **changes) -> Clip:
    return spec(**changes).build(VOCABULARY, SIZE, list(seeds or (0,)))


def test_embedded_vectors_have_length_one():
    model, given = built(), batch()
    for made in (model.see(given.pictures), model(given.inputs, given.padding_mask)):
        assert made.shape == (1, 6, 8) and torch.allclose(made.norm(dim=-1), torch.ones(1, 6))


def test_the_loss_is_the_mean_of_two_cross_entropies():
    model, given = built(), batch()
    shown, told = model.see(given.pictures)[0], model(given.inputs, given.padding_mask)[0]
    logits, right = shown @ told.T / 0.07, torch.arange(6)
    expected = (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    assert model.loss(given)[0].item() == pytest.approx(expected.item(), rel=1e-5)


def test_siglip_classifies_every_pair_separately():
    model, given = built(contrast={"kind": "sigmoid"}), batch()
    cosines = model.see(given.pictures)[0] @ model(given.inputs, given.padding_mask)[0].T
    signs = 2 * torch.eye(6) - 1
    expected = -F.logsigmoid(signs * (10 * cosines - 10)).sum() / 6
    assert model.loss(given)[0].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("contrast", [InfoNCE, Sigmoid])
def test_equal_captions_are_left_out_or_count_as_wrong(contrast):
    logits = torch.randn(1, 3, 3, generator=torch.Generator().manual_seed(1))
    also_right = torch.zeros(1, 3, 3, dtype=torch.bool)
    also_right[0, 0, 1] = also_right[0, 1, 0] = True
    without = contrast().build(1).losses(logits, also_right)[0]
    # For pair 0, pair 1 might as well not exist; pair 2 still has both as negatives.
    only = contrast().build(1).losses(logits[:, [0, 2]][:, :, [0, 2]], also_right[:, [0, 2]][:, :, [0, 2]])[0]
    assert without[0].item() == pytest.approx(only[0].item(), rel=1e-5)
    nothing = torch.zeros_like(also_right)
    wrong = contrast(repeats="wrong").build(1).losses(logits, also_right)
    assert torch.equal(wrong, contrast().build(1).losses(logits, nothing)) and wrong[0, 0] > without[0]


def test_the_scale_is_limited():
    contrast = InfoNCE().build(2)
    with torch.no_grad():
        contrast.log_scale.copy_(torch.tensor([1.0, 50.0]))
    assert contrast.scale.tolist() == pytest.approx([torch.e, 100.0], rel=1e-5)


def test_replicas_together_equal_replicas_alone():
    given, both = batch(replicas=2), built(3, 8)
    losses = both.loss(given)[0]
    for r, one in enumerate((3, 8)):
        own = PictureBatch(
            *(
                part[r : r + 1]
                for part in (given.inputs, given.padding_mask, given.pictures, given.picture, given.caption)
            )
        )
        assert built(one).loss(own)[0].item() == pytest.approx(losses[r].item(), rel=1e-5)


def test_patches_are_ordered_line_by_line():
    """Pictures that differ in one patch have embeddings that differ only in that patch."""
    model, given = built(), batch(rows=1)
    other = given.pictures.clone()
    other[..., :6, 6:] = 255 - other[..., :6, 6:]
    found = []
    for pictures in (given.pictures, other):
        with watch(model, "picture.embedded") as seen:
            model.see(pictures)
        found.append(seen["picture.embedded"][0, 0])
    moved = (found[0] - found[1]).abs().amax(-1) > 1e-6
    assert moved.tolist() == [False, True, False, False]


def test_padding_and_parts():
    model, given = built(), batch()
    filled = torch.cat((given.inputs, torch.full((1, 6, 3), 4)), 2)
    mask = torch.cat((given.padding_mask, torch.zeros(1, 6, 3, dtype=torch.bool)), 2)
    assert torch.allclose(model(filled, mask), model(given.inputs, given.padding_mask), atol=1e-6)
    assert given.part(0, 1) is given
    with pytest.raises(UserError, match="accumulate"):
        given.part(0, 2)


def test_impossible_settings_are_named():
    for changes, said in (
        ({"picture": {"patch": 5}}, "patches of 5"),
        ({"picture": {"width": 15, "mixer": {"heads": 2}, "patch": 6}}, "heads"),
        ({"contrast": {"kind": "infonce", "scale": 200.0}}, "above its limit"),
        ({"context": 1}, "END"),
    ):
        with pytest.raises(UserError, match=said):
            spec(**changes)
