"""Audits that apply only to translators: positions in the source, and embedding tables shared by both sides."""

import torch
from torch import Tensor

from headway.audit.audit import DoesNotApply, Outcome, audit, failed, passed
from headway.audit.models.order import USED, elsewhere, placed, shuffled_inside, written_out, wrong_places
from headway.audit.probe import LENGTH, TINY, Probe, difference
from headway.core import random as noise
from headway.models.encoder_decoder import EncoderDecoder
from headway.nn.positions import NoPositions

ROWS = 4


@audit("model", rests_on=("determinism",))
def source_order(probe: Probe) -> Outcome:
    """The order of a source matters if and only if its encoder has positions, and each token gets its own.

    This checks for the encoder, which has positions of its own, what `order` checks for targets. It is watched while it
    reads random sources: it must ask its position scheme for 0, 1, 2 … Then it is given position 0 for all tokens, and
    shuffled positions: both must change its output by more than 1e-5 of the standard deviation, which rounding could
    explain. An encoder without positions, and without a recurrence, which knows order by itself, must give a token the
    same output wherever it is. A translator that fails reads a bag of words: look at the positions that the encoder is
    built with.
    """
    model = probe.model
    if not isinstance(model, EncoderDecoder):
        raise DoesNotApply("one stack reads sources and targets, so `order` covers both")
    length = min(LENGTH, probe.recipe.model.context)
    if length < 4:
        raise DoesNotApply("with fewer than four tokens there is no order between the first and the last")
    drawn = noise.integers(noise.stream_keys([0], "audit order"), 0, model.source_vocabulary, ROWS * length)
    sources = drawn.view(1, ROWS, length).to(probe.device)

    def read(ids: Tensor = sources) -> Tensor:
        return model.encoder.hidden(ids)[0]

    with written_out(probe):
        plain = read()
        if difference(plain, plain[:, :1]) <= USED:
            raise DoesNotApply("the encoder's output is the same whatever it reads, so nothing can be said about order")
        if isinstance(probe.recipe.model.encoder.positions, NoPositions):
            moved = difference(shuffled_inside(read(shuffled_inside(sources))), plain)
            if any(mixer.knows_order for mixer in model.encoder.mixers):
                return (passed if moved > USED else failed)(
                    moved, f"reordering a source changes its encoding by {moved:.1g}"
                )
            says = f"there are no positions, and reordering a source changes the encoding of its tokens by {moved:.1g}"
            return (passed if moved <= TINY else failed)(moved, says)
        if (wrong := wrong_places(model.encoder, read, length)) is not None:
            return failed(None, f"in sources, {wrong}")
        changes, shuffled = {}, elsewhere(sources)
        ways = {"giving all tokens position 0": torch.zeros_like, "shuffling the positions": lambda at: shuffled[at]}
        for what, place in ways.items():
            with placed(model.encoder, place):
                changes[what] = difference(read(), plain)
    what = min(changes, key=lambda what: changes[what])
    says = f"{what} of sources changes the encoder's output by {changes[what]:.1g} standard deviations"
    if not changes[what] > USED:
        return failed(changes[what], f"the positions of sources are not used: {says}", "positions not used")
    return passed(changes[what], f"{says}, as it should")


@audit("model", rests_on=("determinism",))
def tied_tables(probe: Probe) -> Outcome:
    """Embedding tables are shared as `model.tied` says: by the output matrix, and by sources and targets.

    The decoder's last hidden vectors, times the embedding table of targets, are compared with the logits (minus the
    output bias); equal, within a thousandth of the standard deviation, means tied. The table of sources must be the
    very same tensor if it is shared, since two that are equal now would diverge in training. A translator that fails
    has more or fewer weights than its recipe says, and a comparison of tied with untied compares a model with itself.
    """
    model, says = probe.model, probe.recipe.model.tied
    ids = probe.sentences
    x, _ = model.written(ids, probe.how.before(model, ids))  # pyright: ignore[reportAttributeAccessIssue]
    answers, bias = model.scores(x), model.output_bias
    answers = answers if bias is None else answers - bias[:, None, None]
    off = difference(x @ model.embedding.weight[:, None].mT, answers)
    if (off <= TINY) != (says not in (False, "none")):
        does = "is the embedding table" if off <= TINY else "is not the embedding table"
        return failed(off, f"the recipe says tied: {str(says).lower()}, but the output matrix {does} of targets")
    if isinstance(model, EncoderDecoder):
        is_one = model.encoder.embedding.weight is model.embedding.weight
        if is_one != (says == "all"):
            does = "are one" if is_one else "are two"
            return failed(None, f"the recipe says tied: {says}, but the tables of sources and of targets {does}")
    return passed(off, f"embedding tables are shared as asked: {str(says).lower()}")


OF_ENCODING = (source_order, tied_tables)
