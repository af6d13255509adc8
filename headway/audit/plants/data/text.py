"""Typical faults of running text: held-out text that is in train, verbatim or reworded."""

from collections.abc import Callable

from headway.audit.data.text_set import TextSet
from headway.audit.plants.data.changes import (
    Change,
    a_word_a_line,
    copied,
    filled,
    lower_case,
    shuffled,
    typos,
    without_punctuation,
    words_replaced,
)
from headway.audit.plants.planting import Bed, Random

_bed = Bed("text")


def _add(caught_by: str, name: str, change: Callable[[TextSet, Random], TextSet]) -> None:
    _bed.data(TextSet, caught_by, name, change)


def held_out_from_train(change: Change, share: float = 1.0) -> Callable[[TextSet, Random], TextSet]:
    """Make valid, or this share of it, a changed slice of train."""

    def plant(clean: TextSet, rng: Random) -> TextSet:
        train, valid = clean.texts["train"], clean.texts["valid"]
        size = int(min(len(valid), len(train) // 4) * share)
        first = int(rng.integers(len(train) - size))
        slice_ = change(train[first : first + size], rng)
        return TextSet({**clean.texts, "valid": slice_ + "\n" + valid[int(len(valid) * share) :]})

    return plant


def _into_train(change: Change, share: float) -> Callable[[TextSet, Random], TextSet]:
    def plant(clean: TextSet, rng: Random) -> TextSet:
        part = clean.texts["test"][: int(len(clean.texts["test"]) * share)]
        return TextSet({**clean.texts, "train": clean.texts["train"] + "\n" + change(part, rng)})

    return plant


def _into_valid(change: Change, share: float) -> Callable[[TextSet, Random], TextSet]:
    def plant(clean: TextSet, rng: Random) -> TextSet:
        part = clean.texts["test"][: int(len(clean.texts["test"]) * share)]
        return TextSet({**clean.texts, "valid": clean.texts["valid"] + "\n" + change(part, rng)})

    return plant


def _page_again(split: str, share: float, times: int) -> Callable[[TextSet, Random], TextSet]:
    def plant(clean: TextSet, rng: Random) -> TextSet:
        text = clean.texts[split]
        return TextSet({**clean.texts, split: "\n".join([text[: int(len(text) * share)]] * times)})

    return plant


def _every_line(every: int) -> Callable[[TextSet, Random], TextSet]:
    def plant(clean: TextSet, rng: Random) -> TextSet:
        lines = clean.texts["train"].splitlines()
        rest = "\n".join(line for k, line in enumerate(lines) if k % every)
        return TextSet({"train": rest, "valid": "\n".join(lines[::every])})

    return plant


def _lines_shuffled(text: str, rng: Random) -> str:
    return "\n".join(rng.permutation(text.splitlines()).tolist())


for _name, _change in {
    "as it is": copied,
    "in small letters": lower_case,
    "without punctuation": without_punctuation,
    "with a word a line": a_word_a_line,
}.items():
    _add("repeated-text", f"valid is a slice of train, {_name}", held_out_from_train(_change))
for _share in (0.5, 0.2):
    _add("repeated-text", f"{_share:.0%} of valid is train", held_out_from_train(lower_case, _share))
    _add("repeated-text", f"{_share:.0%} of test is in train", _into_train(copied, _share))
for _name, _change in {
    "every sixth word replaced": words_replaced(6),
    "every fourth word replaced": words_replaced(4),
    "every third word replaced": words_replaced(3),
    "with a typing error in 20 letters": typos(20),
    "with words put in between": filled,
    "with the words of each line shuffled": lambda text, rng: "\n".join(shuffled(x, rng) for x in text.splitlines()),
}.items():
    _add("nearly-repeated-text", f"valid is a slice of train, {_name}", held_out_from_train(_change))
_add("repeated-text", "valid is lines of a slice of train, shuffled", held_out_from_train(_lines_shuffled))
_add("nearly-repeated-text", "a half of test in train, rewritten", _into_train(words_replaced(5), 0.5))
_add("shared-text", "a third of test in valid", _into_valid(copied, 0.33))
_add("shared-text", "a half of test in valid, in small letters", _into_valid(lower_case, 0.5))
_add("shared-text", "all of test in valid, every sixth word replaced", _into_valid(words_replaced(6), 1.0))
_add("repeated-within", "a tenth of valid ten times", _page_again("valid", 0.1, 10))
_add("repeated-within", "a half of test twice", _page_again("test", 0.5, 2))
_add("repeated-within", "the text of train three times", _page_again("train", 1.0, 3))
_add("split-by-line", "every tenth line held out", _every_line(10))
_add("split-by-line", "every fiftieth line held out", _every_line(50))
