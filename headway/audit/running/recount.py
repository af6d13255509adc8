"""The scores of language models computed a second time, by plain definitions: see `scores/recount.py`."""

import gzip
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.audit.scores.recount import Answer, Asked, Counted, Recount, exp, file_of
from headway.data.running.sources import FILES, KNOWN_SETS, known_files
from headway.data.tokens import Tokens
from headway.scoring.score import Score

AT_ONCE = 2**22
"""Number of logits in memory at a time, over all replicas: 32 MB in float64."""


@dataclass(frozen=True)
class TextRecount(Recount):
    text: str
    """The text, read again."""
    tokens: Tokens
    """The text, tokenized again."""
    used: Tokens
    """The tokens that the scorer uses."""
    segment: int
    stride: int
    carried: bool = False
    """Whether the text is one stream, in which each segment continues from the state of the one before."""

    @property
    def whole(self) -> slice:
        return slice(0, len(self.tokens))

    @property
    def parts(self) -> list[slice]:
        """At the beginning, in the middle and at the end, three and a half windows each, so the last is shifted."""
        n, length = len(self.tokens), self.segment + 2 * self.stride + self.stride // 2 + 1
        begins = sorted({max(0, (n - length) * k // 2) for k in range(3)})
        return [slice(begin, min(begin + length, n)) for begin in begins]

    def counts(self, part: slice, asked: Asked) -> list[Counted]:
        ids = torch.as_tensor(self.tokens.ids[part]).long()
        if self.carried:
            nats = stream_nats(asked.together, ids, self.segment)
        else:
            nats = token_nats(asked.together, ids, self.segment, self.stride)
        return [self._made_of(own, part) for own in nats]

    def _made_of(self, nats: np.ndarray, part: slice) -> Counted:
        is_whole = part == self.whole
        size = len(self.text.encode()) if is_whole else int(self.tokens.bytes[part].sum())
        words = len(self.text.split()) if is_whole else int(self.tokens.starts[part].sum())
        # The first token has no context and is not predicted; its bytes and words do not count either.
        size -= int(self.tokens.bytes[part][0])
        words -= int(self.tokens.starts[part][0])
        values = {"loss": nats.mean(), "perplexity": exp(nats.mean())}
        if words:
            values["perplexity_per_word"] = exp(nats.sum() / words)
        if size:
            values["bits_per_byte"] = nats.sum() * math.log2(math.e) / size
        pieces = [nats[k : k + self.segment].mean() for k in range(0, len(nats), self.segment)]
        return Counted({name: float(value) for name, value in values.items()}, np.array(pieces))

    def given(self, part: slice) -> Tokens:
        return Tokens(self.tokens.ids[part], self.tokens.bytes[part], self.tokens.starts[part])

    def not_of_the_whole(self, scores: Mapping[str, Score]) -> str | None:
        """Loss and, for example, perplexity per word share the total nats, so their ratio gives the number of words."""
        loss, tokens = scores["loss"].value if "loss" in scores else 0.0, len(self.tokens) - 1
        names = ("perplexity_per_word", "bits_per_byte")
        per_word, bits = (scores[name].value if name in scores else 0.0 for name in names)
        shared = {
            "words": (math.log(per_word) if 0 < per_word < math.inf else 0.0, int(self.tokens.starts[1:].sum())),
            "bytes": (bits * math.log(2), int(self.tokens.bytes[1:].sum())),
        }
        for what, (nats, there) in shared.items():
            if not (loss > 0 and nats > 0 and there):
                continue
            share = loss / nats * tokens
            if not abs(share - there) <= max(1e-5 * there, 0.5):
                return (
                    f"its {tokens:,} tokens have {there:,} {what}; its scores are of text with {share:,.1f} to as many"
                )
        return None

    @torch.no_grad()
    def unaided(self, asked: Asked) -> list[float]:
        """Eight windows of each of 16 lengths, spread over the text, and the token after each, so that neither this
        token nor anything later is in the input."""
        ids, nats = torch.as_tensor(self.tokens.ids).long(), []
        longest = min(self.segment, len(ids) - 1)
        lengths = np.linspace(min(longest, self.segment - self.stride + 1), longest, 16).astype(int)
        for length in map(int, np.unique(lengths)):
            begins = np.linspace(0, len(ids) - 1 - length, 8).astype(int)
            rows = torch.stack([ids[begin : begin + length + 1] for begin in begins])
            nats.append(_nats(asked.together(rows[None, :, :-1])[:, :, -1], rows[:, -1]))
        return torch.cat(nats, 1).mean(1).tolist()

    def size(self, part: slice) -> int:
        return (part.stop - part.start) * self.segment // self.stride

    def compare(self) -> str | None:
        ours, theirs = self.tokens.ids, self.used.ids
        if len(ours) != len(theirs):
            return f"{len(theirs):,} tokens are scored, but the text has {len(ours):,}"
        if off := int((ours != theirs).sum()):
            return f"{off:,} of the {len(ours):,} scored tokens are not those of the text"
        if (size := int(self.used.bytes.sum())) != len(self.text.encode()):
            return f"the tokens make up {size:,} bytes, but the text has {len(self.text.encode()):,}"
        if (words := int(self.used.starts.sum())) != len(self.text.split()):
            return f"the tokens begin {words:,} words, but the text has {len(self.text.split()):,}"
        return None


def text_of(task: Any, split: str) -> str:
    """A split's text, read from its source again; tasks with their own loader are taken as they are."""
    spec, texts = task.recipe.data, dict(task.data.texts)
    return text_again(spec.source, spec.path, split, texts, spec.encoding) if task.is_stock("load") else texts[split]


def another_train(task: Any) -> str | None:
    """A phrase if the text that was trained on is not what its source has."""
    used, again = task.data.texts["train"], text_of(task, "train")
    return None if used == again else f"{len(used):,} characters; the source has {len(again):,}"


@torch.no_grad()
def token_nats(answer: Answer, ids: Tensor, segment: int, stride: int) -> np.ndarray:
    """The loss of every token but the first, for every replica. Windows begin every `stride` tokens, and the last one
    ends with the text; a token is scored in the first window that reaches it."""
    targets = len(ids) - 1
    length, last = min(segment, targets), max(0, targets - segment)
    begins, found = [*range(0, last, stride), last], []
    at_once, done = 1, 0
    while begins:
        some, begins = begins[:at_once], begins[at_once:]
        rows = torch.stack([ids[begin : begin + length + 1] for begin in some])
        logits = answer(rows[None, :, :-1])
        for begin, of_targets in zip(some, _nats(logits, rows[:, 1:]).unbind(1), strict=True):
            found.append(of_targets[:, done - begin :])
            done = begin + length
        at_once = max(1, AT_ONCE // (logits.shape[0] * length * logits.shape[-1]))
    return torch.cat(found, 1).numpy()


@torch.no_grad()
def stream_nats(answer: Answer, ids: Tensor, segment: int) -> np.ndarray:
    """The loss of every token but the first, for every replica, each segment read once, from left to right."""
    found, state = [], None
    for read, due in zip(ids[:-1].split(segment), ids[1:].split(segment), strict=True):
        logits, state = answer.going_on(read[None, None], state)
        found.append(_nats(logits[:, 0], due))
    return torch.cat(found, 1).numpy()


def _nats(logits: Tensor, due: Tensor) -> Tensor:
    """The loss of the target tokens for each replica, by a float64 log-softmax on the logits' device."""
    logits = logits.double()
    logits = logits - logits.amax(-1, keepdim=True)
    log_probabilities = logits - logits.exp().sum(-1, keepdim=True).log()
    return -log_probabilities.gather(-1, due.to(logits.device).expand(logits.shape[:-1])[..., None])[..., 0].cpu()


def text_again(source: str, path: str | None, split: str, texts: dict[str, str], encoding: str | None = None) -> str:
    """The text of a split as its file has it. A part that was cut off a text must be all that is left of that text.
    Text that is generated by a program, or comes from the hub, is taken as it was."""
    file, cut = None, False
    if source == FILES and path is not None:
        folder = Path(path).expanduser()
        file = file_of(folder, split, (".txt", ".txt.gz")) if folder.is_dir() else folder
        cut = not folder.is_dir()
    elif source in KNOWN_SETS:
        known = KNOWN_SETS[source]
        cut = known.train_share is not None
        file = known_files(source, known.files)["train" if cut else split]
    if file is None:
        return texts[split]
    content = file.read_bytes()
    content = gzip.decompress(content) if file.suffix == ".gz" else content
    is_wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = content.decode(encoding or ("utf-16" if is_wide else "utf-8-sig"))
    except UnicodeDecodeError:
        text = content.decode("utf-32" if is_wide else "utf-16-le")
    if encoding is None and "\0" in text:  # UTF-16 without a byte order mark also decodes as UTF-8, with zeros
        text = content.decode("utf-16-be" if content[:1] == b"\0" else "utf-16-le")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not cut:
        return text
    length = len(texts["train"])
    return text[:length] if split == "train" else text[length:]
