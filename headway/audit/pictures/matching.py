"""Audits of models that match pictures and captions: are both used, and are pictures processed correctly?

The audits of all models check captions as rows of tokens (padding, order, attention, kernels). The audits here are
about pictures, and about pictures and captions together.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.models import definitions
from headway.audit.models.pieces import learnt
from headway.audit.pictures.definitions import CONTRASTS, also_right
from headway.audit.probe import TINY, Probe, difference
from headway.core import random as noise
from headway.nn.attention import Attention
from headway.nn.taps import named_taps, watch

ROWS = 8
"""Number of pairs of a batch, where a few are enough."""
MATTERS = 32
"""Number of pairs for checks of what the model has learnt."""
WORTH = 0.02
"""Nats that the right picture must save compared with another's; less counts as nothing."""
MOVED = 1e-5
"""In standard deviations of the embeddings: reordering the same sums changes less."""


@audit("model", rests_on=("finite", "determinism"))
def cosines(probe: Probe) -> Outcome:
    """Embeddings have length one, and logits are the learnt scale times their cosines.

    Pictures and captions of a training batch are embedded; their norms must be 1 within 1e-5. The logits of all pairs
    must be scale · cosine (plus the bias, for the sigmoid loss), where the scale is the exponential of a learnt number
    and at most model.contrast.sharpest; a thousandth of their standard deviation is allowed. If it fails, a long vector
    matches everything, or the temperature is not that of the recipe.
    """
    batch, model = probe.excerpt(rows=ROWS, tokens=64), probe.model
    picture_vectors, caption_vectors = model.see(batch.pictures)[0], probe.answer(batch.inputs, batch.padding_mask)[0]
    for what, vectors in (("pictures", picture_vectors), ("captions", caption_vectors)):
        off = (vectors.double().norm(dim=-1) - 1).abs().max().item()
        if not off <= 1e-5:
            return failed(off, f"the embeddings of {what} should have norm 1, and are off by up to {off:.2g}")
    scale = min(float(model.contrast.log_scale[0].double().exp()), model.spec.contrast.sharpest)
    bias = float(model.contrast.bias[0]) if hasattr(model.contrast, "bias") else 0.0
    expected = scale * (picture_vectors.double() @ caption_vectors.double().T) + bias
    off = difference(probe.how.answer_batch(model, batch)[0].double(), expected)
    if not off <= TINY:
        return failed(off, f"logits are not {scale:.3g} times the cosines: off by {off:.2g} standard deviations")
    return passed(off, f"embeddings have norm 1, and logits are {scale:.3g} times their cosines, within {off:.1g}")


@audit("model", rests_on=("finite",))
def patches(probe: Probe) -> Outcome:
    """Every patch consists of its own pixels, in row-major order, and has its own position.

    The input of the first layer for some pictures is computed again, patch by patch in plain loops: pixels from 0 to
    255 are mapped to -1 to 1, the patch's three colours are mapped by the learnt matrix, and the position embedding is
    added. A thousandth of the standard deviation is allowed. If it fails, pixels of several patches are mixed up, rows
    and columns are swapped, or pictures are scaled wrongly.
    """
    encoder, pictures = probe.model.picture, probe.excerpt(rows=2, tokens=64).pictures
    with watch(probe.model, "picture.embedded") as seen:
        probe.model.see(pictures)
    p, weight, bias = encoder.spec.patch, encoder.patches.weight[0].double(), encoder.patches.bias[0].double()
    n, rows = pictures.shape[-1] // p, []
    for picture in pictures[0]:
        made = [
            weight @ (picture[:, y * p : (y + 1) * p, x * p : (x + 1) * p].double() / 127.5 - 1).flatten() + bias
            for y in range(n)
            for x in range(n)
        ]
        rows.append(torch.stack(made))
    plain = torch.stack(rows)
    slots = torch.arange(n * n, device=probe.device)
    expected = encoder.positions.embed(plain[None].float(), slots)[0].double()
    off = difference(seen["picture.embedded"][0].double(), expected)
    if not off <= TINY:
        return failed(off, f"patches do not consist of their own pixels: off by {off:.2g} standard deviations")
    return passed(off, f"all {n * n} patches consist of their own pixels, within {off:.1g}")


@audit("model", rests_on=("determinism",))
def patch_order(probe: Probe) -> Outcome:
    """The order of patches matters if and only if the picture encoder has positions.

    The patches of some pictures are reordered. With positions (or with a mixer that knows order by itself) the
    embedding must change by more than 1e-5 of its standard deviation, which rounding could explain; without them it
    must stay, if all patches are pooled alike. A model that fails sees a bag of patches: above and below are the same.
    """
    encoder, pictures = probe.model.picture, probe.excerpt(rows=ROWS, tokens=64).pictures
    p, n = encoder.spec.patch, pictures.shape[-1] // encoder.spec.patch
    if n < 2:
        raise DoesNotApply("a single patch has no order")
    turned = pictures.unflatten(-1, (n, p)).flip(-2).flatten(-2).unflatten(-2, (n, p)).flip(-3).flatten(-3, -2)
    change = difference(probe.model.see(turned), probe.model.see(pictures))
    ordered = encoder.spec.positions.kind != "none" or any(mixer.knows_order for mixer in encoder.mixers)
    if ordered and not change > MOVED:
        return failed(
            change, f"reordering patches changes nothing ({change:.1g} standard deviations): a bag of patches"
        )
    if not ordered and encoder.spec.pooling.kind in ("mean", "max") and not change <= TINY:
        return failed(change, f"there are no positions, but reordering patches changes the embedding by {change:.2g}")
    return passed(
        change, f"reordering patches changes the embeddings by {change:.2g} standard deviations, as it should"
    )


@audit("model", rests_on=("finite", "determinism"))
def picture_attention(probe: Probe) -> Outcome:
    """Attention among patches agrees with its definition: the weights, and weights times values.

    In every layer of the picture encoder the weights are computed again from queries and keys in float64, over all
    patches, with the position bias, and multiplied by the values; a thousandth of the standard deviation is allowed. If
    it fails, compare the formula with the named layer.
    """
    names = {tap: name.rpartition(".")[0] for name, tap in named_taps(probe.model).items()}
    layers = {names[one.weights]: one for one in probe.model.picture.modules() if isinstance(one, Attention)}
    known = {name: one for name, one in layers.items() if one.spec.similarity.kind in definitions.SIMILARITIES}
    if not known:
        raise DoesNotApply("attention among patches has no definition to compare with")
    taps = [f"{name}.{tap}" for name in known for tap in ("queries", "keys", "values", "weights", "mixed")]
    with watch(probe.model, *taps) as seen:
        probe.model.see(probe.excerpt(rows=ROWS, tokens=64).pictures)
    worst = 0.0
    for name, layer in known.items():
        q, k, v = (seen[f"{name}.{tap}"] for tap in ("queries", "keys", "values"))
        scores = definitions.SIMILARITIES[layer.spec.similarity.kind](learnt(layer), q, k)
        scores = scores + _bias(probe, layer.spec.heads, q.shape[3])
        may_see = torch.ones(q.shape[3], q.shape[3], dtype=torch.bool, device=probe.device)
        if layer.spec.window is not None:
            raise DoesNotApply("windows among patches have no definition to compare with")
        weights = definitions.attention_weights(scores, may_see)
        for what, expected in (("weights", weights), ("mixed", weights @ v.double())):
            off = difference(seen[f"{name}.{what}"].double(), expected)
            if not off <= TINY:
                return failed(off, f"the {what} of {name} are off by {off:.2g} standard deviations from the definition")
            worst = max(worst, off)
    return passed(worst, f"attention among patches agrees with its definition, within {worst:.1g} standard deviations")


def _bias(probe: Probe, heads: int, patches: int) -> Tensor | float:
    positions = probe.model.picture.positions.for_heads(heads)
    if not positions.has_bias:
        return 0.0
    at = torch.arange(patches, device=probe.device)
    replica = torch.zeros(1, 1, 1, 1, 1, dtype=torch.long, device=probe.device)
    head = torch.arange(heads, device=probe.device).view(heads, 1, 1)
    return positions.bias(replica, head, at[:, None], at[None, :]).double()


@audit("model", rests_on=("determinism",))
def pictures_alone(probe: Probe) -> Outcome:
    """A picture gets the same embedding alone, in a batch, and at another index of the batch.

    Pictures of a training batch are embedded together, in reverse order, and the first and the last alone. A thousandth
    of the standard deviation is allowed, since the same sums have other shapes. A model that fails mixes pictures: look
    for a norm or a mean over the batch, and for reshapes that swap axes.
    """
    pictures = probe.excerpt(rows=ROWS, tokens=64).pictures
    together = probe.model.see(pictures)
    worst = difference(probe.model.see(pictures.flip(1)).flip(1), together)
    for row in (0, pictures.shape[1] - 1):
        worst = max(
            worst, difference(probe.model.see(pictures[:, row : row + 1]), together[:, row : row + 1], of=together)
        )
    if not worst <= TINY:
        return failed(worst, f"the other pictures of a batch change an embedding by {worst:.2g} standard deviations")
    return passed(worst, f"a picture's embedding does not depend on the rest of the batch (largest change {worst:.1g})")


@audit("model", rests_on=("determinism", "loss"))
def batch_order(probe: Probe) -> Outcome:
    """The order of a batch does not matter: reordered pairs have the same loss, and their logits are reordered alike.

    The pairs of a batch are reversed, and rotated by one. The loss must be the same, and the logits must be reordered
    in the same way, within a thousandth. If it fails, a caption counts as right for what has its index, not for its
    picture: look at the targets of the loss.
    """
    batch = probe.excerpt(rows=ROWS, tokens=64)
    n = batch.inputs.shape[1]
    if n < 2:
        raise DoesNotApply("a batch of one pair has no order")
    logits, loss = probe.how.answer_batch(probe.model, batch)[0], probe.model.loss(batch)[0].item()
    for order in (torch.arange(n).flip(0), torch.arange(n).roll(1)):
        order = order.to(probe.device)
        moved = _rows(batch, order)
        off = difference(probe.how.answer_batch(probe.model, moved)[0], logits[order][:, order])
        again = probe.model.loss(moved)[0].item()
        if not off <= TINY:
            return failed(off, f"reordered pairs have other logits: off by {off:.2g} standard deviations")
        if not abs(again - loss) <= TINY * max(abs(loss), 0.1):
            return failed(again - loss, f"a reordered batch has a loss of {again:.5g}, and had {loss:.5g} before")
    return passed(0.0, "reordered pairs have the same logits and the same loss")


@audit("model", rests_on=("determinism", "loss"))
def repeats(probe: Probe) -> Outcome:
    """Two pictures with one caption are treated as the recipe says: as wrong answers of each other, or left out.

    A batch is made in which two pairs have the same caption, and two others the same picture. The loss by its
    definition, with other right answers left out of the wrong ones (model.contrast.repeats: left-out) or not (wrong),
    must equal the model's, within a thousandth. If it fails, right answers are trained away, or wrong ones are ignored.
    """
    batch, spec = probe.excerpt(rows=6, tokens=64), probe.model.spec.contrast
    if spec.kind not in CONTRASTS:
        raise DoesNotApply(f"the loss '{spec.kind}' has no definition to compare with")
    if batch.inputs.shape[1] < 4:
        raise DoesNotApply("a batch of less than four pairs has no room for repeats")
    batch = _copied(batch, ("inputs", "padding_mask", "caption"), 1, 0)
    batch = _copied(batch, ("pictures", "picture"), 3, 2)
    said = probe.how.answer_batch(probe.model, batch)
    expected = CONTRASTS[spec.kind](spec, said[0].double(), also_right(batch)).mean().item()
    found = probe.model.loss(batch)[0].item()
    off = abs(found - expected) / max(expected, 1e-3)
    if not off <= TINY:
        how = "should be left out" if spec.repeats == "left-out" else "should count as wrong"
        return failed(off, f"repeats in a batch {how}: the loss is {found:.5g}, by its definition {expected:.5g}")
    return passed(off, f"repeats in a batch are {'left out' if spec.repeats == 'left-out' else 'wrong'}, as asked")


@audit("model", rests_on=("determinism", "loss"), asked="of each alone")
def picture_matters(probe: Probe) -> Outcome:
    """Captions match their own pictures better than others': the picture is not ignored.

    If pictures are replaced by noise, their embeddings must change. In a trained model, the pictures of a batch are
    swapped between its pairs, and the loss must rise by at least 0.02 nats; otherwise captions are matched without
    using the pictures. Fails if the loss does not rise; warns below 0.02.
    """
    batch = probe.excerpt(rows=MATTERS, tokens=64)
    drawn = torch.randint(256, batch.pictures.shape, generator=noise.generator("audit pictures"))
    moved = difference(probe.model.see(drawn.to(batch.pictures)), probe.model.see(batch.pictures))
    if not moved > MOVED:
        return failed(
            moved, f"the picture is ignored: replacing it by noise changes nothing ({moved:.1g} standard deviations)"
        )
    return _matters(probe, batch, ("pictures", "picture"), "picture")


@audit("model", rests_on=("determinism", "loss"), asked="of each alone")
def caption_matters(probe: Probe) -> Outcome:
    """Pictures match their own captions better than others': the caption is not ignored.

    If the tokens of captions are replaced, their embeddings must change. In a trained model, the captions of a batch
    are swapped between its pairs, and the loss must rise by at least 0.02 nats. Fails if the loss does not rise; warns
    below 0.02.
    """
    batch = probe.excerpt(rows=MATTERS, tokens=64)
    plain = probe.answer(batch.inputs, batch.padding_mask)
    other = (batch.inputs + 1) % max(1, probe.model.vocabulary - 1)
    moved = difference(probe.answer(other, batch.padding_mask), plain)
    if not moved > MOVED:
        return failed(moved, f"the caption is ignored: other words change nothing ({moved:.1g} standard deviations)")
    return _matters(probe, batch, ("inputs", "padding_mask", "caption"), "caption")


def _matters(probe: Probe, batch: Any, which: tuple[str, ...], what: str) -> Outcome:
    if not probe.trained:
        return passed(None, f"another {what} has another embedding; what it is worth can be told after training")
    if batch.inputs.shape[1] < 2 or len(batch.caption.unique()) < 2:
        raise DoesNotApply("a batch with only one caption has no other to compare with")
    rolled = replace(batch, **{name: getattr(batch, name).roll(1, 1) for name in which})
    # Both batches keep the original ids, so that the same pairs are left out of the wrong answers.
    own, other = (probe.model.loss(one)[0].item() for one in (batch, _as(rolled, batch, which)))
    worth = other - own
    says = f"with another pair's {what} the loss of a pair is {other:.3f} nats, with its own {own:.3f}"
    if not worth > 0:
        return failed(worth, f"the {what} is ignored: {says}", f"ignores the {what}")
    return (passed if worth >= WORTH else warned)(worth, says)


def _as(rolled: Any, batch: Any, which: tuple[str, ...]) -> Any:
    """The rolled batch with the original picture and caption ids, so that wrong answers are not left out."""
    numbers = {name: getattr(batch, name) for name in which if name in ("picture", "caption")}
    return replace(rolled, **numbers)


def _rows(batch: Any, order: Tensor) -> Any:
    parts = ("inputs", "padding_mask", "pictures", "picture", "caption")
    return replace(batch, **{name: getattr(batch, name)[:, order] for name in parts})


def _copied(batch: Any, names: tuple[str, ...], to: int, of: int) -> Any:
    changed = {name: getattr(batch, name).clone() for name in names}
    for part in changed.values():
        part[:, to] = part[:, of]
    return replace(batch, **changed)


OF_MATCHING: tuple[Audit, ...] = (
    cosines,
    patches,
    patch_order,
    picture_attention,
    pictures_alone,
    batch_order,
    repeats,
    picture_matters,
    caption_matters,
)
