"""Tokenizers of a Marian folder, both ways: SentencePiece files with a list of token numbers, or tokenizer.json.

    source.spm, target.spm      how each language is split into pieces
    vocab.json                  the number of every piece, for both; target_vocab.json if targets have their own

Our own vocabularies have no SentencePiece form. They are written as tokenizer.json, which AutoTokenizer reads; if
targets have their own vocabulary, it is in target_tokenizer.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.core.reading import read_bytes
from headway.data.sentencepiece import SentencePieceTokenizer
from headway.data.tokenizers import Tokenizer
from headway.formats import tokenizer as fast
from headway.formats.marian import Numbering
from headway.formats.weights import read_json

SOURCE, TARGET, NUMBERS, TARGET_NUMBERS = "source.spm", "target.spm", "vocab.json", "target_vocab.json"
FAST, TARGET_FAST = fast.FILE, "target_tokenizer.json"
GENERATION = "generation_config.json"
END = "</s>"


def read(folder: Path, numbers: Numbering) -> tuple[dict[str, Tokenizer], list[str]]:
    """Read the tokenizers, by their names in a run folder, with notes. There are two if source and target have
    different ones."""
    if (folder / SOURCE).exists():
        return _read_pieces(folder, numbers)
    if not (folder / FAST).exists():
        raise UserError(
            f"{folder} has no tokenizer: expected {SOURCE}, {TARGET} and {NUMBERS}, as Marian's tokenizer has them, "
            f"or {FAST}"
        )
    ours, notes = fast.read_tokenizer(folder / FAST, numbers.source, numbers.end)
    found = {"tokenizer.json": ours}
    if (folder / TARGET_FAST).exists():
        theirs, more = fast.read_tokenizer(folder / TARGET_FAST, numbers.target, numbers.end)
        return {**found, "target_tokenizer.json": theirs}, [*notes, *more]
    if numbers.source != numbers.target:
        raise UserError(f"{folder} has no {TARGET_FAST}, but sources and targets have different numbers of tokens")
    return found, notes


def _read_pieces(folder: Path, numbers: Numbering) -> tuple[dict[str, Tokenizer], list[str]]:
    names, notes = _names(folder / NUMBERS, numbers.source, numbers.end)
    target_names, more = names, []
    if (folder / TARGET_NUMBERS).exists():
        target_names, more = _names(folder / TARGET_NUMBERS, numbers.target, numbers.end)
    elif numbers.source != numbers.target:
        raise UserError(f"{folder} has no {TARGET_NUMBERS}, but sources and targets have different numbers of tokens")
    made = {}
    for file, kept, of in ((SOURCE, "tokenizer.json", names), (TARGET, "target_tokenizer.json", target_names)):
        path = folder / file
        try:
            made[kept] = SentencePieceTokenizer(read_bytes(path, through_links=True), of, numbers.end)
        except OSError as problem:
            raise UserError(f"{path} cannot be read: {problem.strerror}") from None
        except UserError as problem:
            raise UserError(f"{path}: {problem}") from None
    return made, [*notes, *more]


def _names(path: Path, rows: int, end: int) -> tuple[list[str], list[str]]:
    """The names of all tokens, by number, with notes."""
    given = read_json(path)
    by_number = {number: name for name, number in given.items() if isinstance(number, int)}
    if len(by_number) != len(given) or not all(0 <= number < rows for number in by_number):
        raise UserError(f"{path}: expected {rows:,} tokens (vocab_size), each with a different number from 0 on")
    if end not in by_number:
        raise UserError(f"{path} has no token {end}, which is the end of text in config.json (eos_token_id)")
    missing = [number for number in range(rows) if number not in by_number]
    notes = [f"the model has {len(missing):,} embeddings without a token in {path.name}"] if missing else []
    return [by_number.get(number, f"<unused-{number}>") for number in range(rows)], notes


def numbering(source: Tokenizer, target: Tokenizer) -> Numbering:
    """How tokens are numbered in the exported folder of a run with these tokenizers."""
    pieces = [one for one in (source, target) if isinstance(one, SentencePieceTokenizer)]
    if len(pieces) == 1:
        raise UserError("only one side has a SentencePiece vocabulary, which Marian's format cannot represent")
    ends = {one.end for one in pieces} or {0}
    if len(ends) > 1:
        raise UserError("END has different numbers in sources and targets, which Marian's format cannot represent")
    return Numbering(source.size + 1, target.size + 1, ends.pop())


def files_of(source: Tokenizer, target: Tokenizer, begin: int | None, context: int) -> dict[str, bytes]:
    """Write the files of these tokenizers. `begin`: our token that targets start with; None = END."""
    if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
        apart = source.vocabulary != target.vocabulary
        names = {"eos_token": source.vocabulary[source.end]}
        settings = {"tokenizer_class": "MarianTokenizer", "model_max_length": context, "separate_vocabs": apart}
        pad = names["eos_token"] if begin is None else target.vocabulary[begin + (begin >= target.end)]
        files = {SOURCE: source.model, TARGET: target.model, NUMBERS: _json(_numbers(source))}
        files |= {TARGET_NUMBERS: _json(_numbers(target))} if apart else {}
        return {**files, "tokenizer_config.json": _json({**settings, **names, "pad_token": pad})}
    made, end = {}, END
    for name, one in ((FAST, source), (TARGET_FAST, target)):
        if name == FAST or target is not source:
            library = fast.library_of(one)
            while library.token_to_id(end) is not None:
                end = f"<{end}>"
            made[name] = fast.with_end(library, end)
    pad = end if begin is None else made.get(TARGET_FAST, made[FAST]).id_to_token(begin + 1)
    settings = {
        **fast.tokenizer_config(made[FAST], context),
        "model_input_names": ["input_ids", "attention_mask"],
        "eos_token": end,
        "pad_token": pad,
    }
    settings.pop("bos_token", None)
    written = {name: library.to_str(pretty=True).encode() for name, library in made.items()}
    return {**written, "tokenizer_config.json": _json(settings)}


def _numbers(tokenizer: SentencePieceTokenizer) -> Mapping[str, int]:
    return {name: number for number, name in enumerate(tokenizer.vocabulary)}


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
