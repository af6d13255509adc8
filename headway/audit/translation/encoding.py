"""Audits of what only translators have: positions in the source, and embedding tables shared by both sides."""

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
    """The order of a source matters if and only if its encoder has positions, and each token stands at its own.

    What `order` asks of a target is asked here of the encoder, which has positions of its own. It is watched while it
    reads sources drawn from the vocabulary: it must ask about 0, 1, 2 … Then it is told that all tokens stand at
    position 0, and that they stand in a shuffled order: what it makes of the source must change, by more than the
    hundred-thousandth of the spread that rounding explains. An encoder without positions, and without a recurrence,
    which knows order by itself, must make the same of a token wherever it stands. A translator that fails reads a bag
    of words: look at the positions that the encoder is built with.
    """
    model = probe.model
    if not isinstance(model, EncoderDecoder):
        raise DoesNotApply("one stack reads and writes, and what holds of the target holds of the source")
    length = min(LENGTH, probe.recipe.model.context)
    if length < 4:
        raise DoesNotApply("sources of fewer than four tokens have no order between the first and the last")
    drawn = noise.integers(noise.stream_keys([0], "audit order"), 0, model.source_vocabulary, ROWS * length)
    sources = drawn.view(1, ROWS, length).to(probe.device)

    def read(ids: Tensor = sources) -> Tensor:
        return model.encoder.hidden(ids)[0]

    with written_out(probe):
        plain = read()
        if difference(plain, plain[:, :1]) <= USED:
            raise DoesNotApply("its encoder says the same whatever it reads, so nothing can be told of order")
        if isinstance(probe.recipe.model.encoder.positions, NoPositions):
            moved = difference(shuffled_inside(read(shuffled_inside(sources))), plain)
            if any(mixer.knows_order for mixer in model.encoder.mixers):
                return (passed if moved > USED else failed)(moved, f"the order of a source moves it by {moved:.1g}")
            says = f"there are no positions, and another order of a source moves what its tokens are by {moved:.1g}"
            return (passed if moved <= TINY else failed)(moved, says)
        if (wrong := wrong_places(model.encoder, read, length)) is not None:
            return failed(None, f"in sources, {wrong}")
        changes, shuffled = {}, elsewhere(sources)
        ways = {"all tokens at position 0": torch.zeros_like, "shuffled positions": lambda at: shuffled[at]}
        for what, place in ways.items():
            with placed(model.encoder, place):
                changes[what] = difference(read(), plain)
    what = min(changes, key=lambda what: changes[what])
    says = f"{what} of sources move what the encoder makes of them by {changes[what]:.1g} of its spread"
    if not changes[what] > USED:
        return failed(changes[what], f"the positions of sources are not used: {says}", "positions not used")
    return passed(changes[what], f"{says}, as they should")


@audit("model", rests_on=("determinism",))
def tied_tables(probe: Probe) -> Outcome:
    """Which tables are one is as `model.tied` says: the output matrix, and the source's embedding.

    What the decoder ends with, times the embedding table of targets, is compared with the scores of tokens (less a bias
    of the output): equal, within a thousandth of the spread, means tied. Of the table of sources it is asked whether it
    is the very same: two that are equal today part in training. A translator that fails has more weights than its
    recipe says, or fewer, and a comparison of both ways compares one of them with itself.
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
    return passed(off, f"tables are tied as asked: {str(says).lower()}")


OF_ENCODING = (source_order, tied_tables)
