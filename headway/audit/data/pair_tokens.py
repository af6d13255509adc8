"""An audit of the target tokenizer: a reference that it cannot represent can never be matched by a translation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.audit.audit import Audit, DoesNotApply, Outcome, audit, failed, passed, warned
from headway.audit.data.near_copies import evenly
from headway.audit.data.row_set import shortened

MAX_ROWS = 500
FEW, MOST = 0.02, 0.5


@dataclass(frozen=True, eq=False)
class References:
    """The references by split, and the tokenizer that decodes translations."""

    texts: Mapping[str, Sequence[str]]
    tokenizer: Any


@audit("data")
def writable_references(data: References) -> Outcome:
    """The tokenizer can represent the references: encoding and decoding gives the same text.

    Up to 500 references of each held-out split are encoded and decoded like translations. If more than 2 % change,
    ignoring white space, it is a warning: no translation can match them, so exact match and BLEU have a ceiling below
    100. Causes are unknown words, punctuation that is not joined to its word again, and a tokenizer that lowercases
    (look at bleu_lowercased). If most of them come back with other letters although they have no unknown words, it is a
    failure: what is scored is not what the model produced. Check Tokenizer.decode, or use a tokenizer that can
    represent any text, bpe or byte.
    """
    worst: tuple[float, bool, str] = (-1.0, False, "")
    for split, texts in data.texts.items():
        some = [text for k in evenly(len(texts), MAX_ROWS) if (text := " ".join(texts[k].split()))]
        if not some:
            continue
        tokens = data.tokenizer.encode_rows(some)
        again = [" ".join(data.tokenizer.decode(ids).split()) for ids in tokens]
        differ = [k for k, text in enumerate(some) if text != again[k]]
        unknown = {k for k in differ if data.tokenizer.unknown is not None and data.tokenizer.unknown in tokens[k]}
        other = [k for k in differ if k not in unknown and _letters(some[k]) != _letters(again[k])]
        if len(differ) / len(some) > worst[0]:
            says = f"{len(differ)} of {len(some)} references of {split} change when encoded and decoded"
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
