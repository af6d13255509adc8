"""An audit of what tokens make of references: who cannot write one cannot match it, however well it translates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.data.near_copies import evenly
from headway.audit.data.row_set import shortened

LOOKED_AT = 500
FEW, MOST = 0.02, 0.5


@dataclass(frozen=True, eq=False)
class References:
    """What translations are compared with, by split, and the tokenizer by which they are written."""

    texts: Mapping[str, Sequence[str]]
    tokenizer: Any


@audit("data")
def writable_references(data: References) -> Outcome:
    """References can be written: their tokens become their texts again.

    Up to 500 references of each held-out split are cut into the tokens of targets, and joined again as translations
    are. Where more than 2 % are not what they were, the length of white space apart, no translation can match them, and
    it is a warning: exact match and BLEU have a ceiling below 100. So it is with unknown words, with signs that are not
    joined to their words again, and with a tokenizer that lowercases (look at bleu_lowercased). Where most of them come
    back in other letters, though no word of theirs is unknown, it is a failure: what is scored is not what the model
    says. Look at how tokens are joined (Tokenizer.decode), or use a tokenizer that can write any text, bpe or byte.
    """
    worst: tuple[float, bool, str] = (-1.0, False, "")
    for split, texts in data.texts.items():
        some = [text for k in evenly(len(texts), LOOKED_AT) if (text := " ".join(texts[k].split()))]
        if not some:
            continue
        tokens = data.tokenizer.encode_rows(some)
        again = [" ".join(data.tokenizer.decode(ids).split()) for ids in tokens]
        differ = [k for k, text in enumerate(some) if text != again[k]]
        unknown = {k for k in differ if data.tokenizer.unknown is not None and data.tokenizer.unknown in tokens[k]}
        other = [k for k in differ if k not in unknown and _letters(some[k]) != _letters(again[k])]
        if len(differ) / len(some) > worst[0]:
            says = f"{len(differ)} of {len(some)} references of {split} do not come back from their tokens"
            if differ:
                k = (other or differ)[0]
                says += f", such as {shortened(some[k])}, which becomes {shortened(again[k])}"
            says += f"; {len(unknown)} have unknown words" if unknown else ""
            worst = (len(differ) / len(some), len(other) > MOST * len(some), says)
    share, is_other, says = worst
    if share < 0:
        raise DoesNotApply("there are no references")
    return (failed if is_other else warned if share > FEW else passed)(share, says)


def _letters(text: str) -> str:
    return "".join(text.lower().split())


REFERENCE_AUDITS: list[Audit] = [writable_references]
