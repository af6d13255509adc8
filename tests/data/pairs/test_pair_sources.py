"""Sources of pairs: generators compared with independent rules, files and tables, and everything that can be wrong with
them."""

import gzip
import re

import pytest

from headway.core.errors import UserError
from headway.data.embedded import numbers_en_fr, pig_latin
from headway.data.pairs import dataset
from headway.data.pairs.alignment import find_divergence, find_mismatch, find_shift
from headway.data.pairs.filters import Filters
from headway.data.pairs.sources import Sides, TextPair, read_pairs, with_valid
from headway.data.vocabularies import Char, Word

EN = [
    f"The {name} met {k} people in {city}." for k in range(40) for name, city in (("cat", "Rome"), ("old dog", "Oslo"))
]
FR = [line.replace("The", "Le").replace("met", "rencontra").replace("people in", "personnes à") for line in EN]


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("apple", "appleway"),
        ("string", "ingstray"),
        ("yellow", "yellowway"[:-3] + "ay"),
        ("rhythm", "ythmrhay"),
        ("quiet", "ietquay"),
        ("squeeze", "eezesquay"),
        ("well-known", "ellway-ownknay"),
        ("nth", "nthay"),
        ("my", "ymay"),
        ("a-", "away-"),
    ],
)
def test_pig_latin_by_its_rule(word, right):
    assert pig_latin.translated(word) == right


@pytest.mark.parametrize(
    ("n", "english", "french"),
    [
        (0, "zero", "zéro"),
        (21, "twenty-one", "vingt et un"),
        (71, "seventy-one", "soixante et onze"),
        (80, "eighty", "quatre-vingts"),
        (81, "eighty-one", "quatre-vingt-un"),
        (97, "ninety-seven", "quatre-vingt-dix-sept"),
        (200, "two hundred", "deux cents"),
        (201, "two hundred and one", "deux cent un"),
        (1000, "one thousand", "mille"),
        (80_080, "eighty thousand and eighty", "quatre-vingt mille quatre-vingts"),
        (200_300, "two hundred thousand three hundred", "deux cent mille trois cents"),
    ],
)
def test_numbers_in_words(n, english, french):
    assert (numbers_en_fr.english(n), numbers_en_fr.french(n)) == (english, french)


@pytest.mark.parametrize("source", ["pig-latin", "numbers-en-fr"])
def test_embedded_data_sets_hold_out_sources_that_are_not_in_train(source):
    splits = read_pairs(source, None, Sides())
    assert list(splits) == ["train", "valid", "test"] and min(map(len, splits.values())) > 500
    sources = [{pair.source for pair in pairs} for pairs in splits.values()]
    assert not sources[0] & sources[1] and not sources[0] & sources[2] and not sources[1] & sources[2]


def write(folder, name, lines):
    text = "".join(f"{line}\n" for line in lines)
    if name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress(text.encode()))
    else:
        (folder / name).write_text(text, "utf-8")


def test_parallel_files_tables_and_gzip_give_the_same_pairs(tmp_path):
    files, tables = tmp_path / "files", tmp_path / "tables"
    files.mkdir(), tables.mkdir()
    write(files, "train.en", EN)
    write(files, "train.fr.gz", FR)
    write(tables, "train.tsv", ["fr\ten", *(f"{f}\t{e}" for e, f in zip(EN, FR, strict=True))])
    right = [TextPair(*pair) for pair in zip(EN, FR, strict=True)]
    assert read_pairs("files", str(files), Sides("en-fr"))["train"] == right
    assert read_pairs("files", str(tables), Sides("en-fr"))["train"] == right
    assert read_pairs("files", str(tables), Sides("2-1", header=True))["train"] == right
    assert read_pairs("files", str(files), Sides("fr-en"))["train"] == [TextPair(b, a) for a, b in right]


@pytest.mark.parametrize("at", [3, 40, 79])
def test_the_line_where_files_diverge_is_named(tmp_path, at):
    write(tmp_path, "train.en", EN)
    write(tmp_path, "train.fr", FR[:at] + FR[at + 1 :])
    with pytest.raises(UserError, match=rf"80 lines and 'train.fr' has 79.*diverge at line {at + 1}$"):
        read_pairs("files", str(tmp_path), Sides("en-fr"))


def test_of_files_that_diverge_twice_the_first_line_is_named():
    """One line is missing at 30, another at 55; most lines are shifted by at most one."""
    line = find_divergence(EN, FR[:29] + FR[30:54] + FR[55:])
    assert line is not None and abs(line - 30) <= 1


def test_the_line_where_long_files_diverge():
    ours = [f"{'very ' * (k * k % 11)}{k % 97}" for k in range(60_000)]
    theirs = [line.replace("very", "bien") for line in ours]
    assert find_divergence(ours, theirs[:41_234] + theirs[41_235:]) == 41_235


@pytest.mark.parametrize("by", [1, -1, 3, -3])
@pytest.mark.parametrize("at", [1, 400])
def test_a_shifted_side_is_found_with_its_row_and_shift(by, at):
    """In 700 rows, from the first row or from the 400th."""
    english, french = (
        [word(k * 7919 % 100_000) for k in range(710)] for word in (numbers_en_fr.english, numbers_en_fr.french)
    )
    slipped = french[: at - 1] + (["un"] * by + french[at - 1 :] if by > 0 else french[at - 1 - by :])
    found = find_shift(list(zip(english, slipped, strict=False))[:700])
    assert found is not None and found.by == by and abs(found.row - at) <= 25


def test_matching_lines_have_no_shift_and_a_sorted_half_is_a_mismatch():
    rows = [TextPair(english, french) for k in range(900) for english, french in [_in_words(k * 7919 % 100_000)]]
    assert find_shift(rows) is None and find_mismatch(rows) is None
    half = sorted(pair.target for pair in rows[450:])
    spoilt = [*rows[:450], *(TextPair(pair.source, target) for pair, target in zip(rows[450:], half, strict=True))]
    found = find_mismatch(spoilt)
    assert find_shift(spoilt) is None and found is not None and 300 < found.row < 600
    shuffled = find_mismatch([TextPair(a.source, b.target) for a, b in zip(rows, rows[450:] + rows[:450], strict=True)])
    assert shuffled is not None and shuffled.row == 1


def _in_words(n):
    return numbers_en_fr.english(n), numbers_en_fr.french(n)


def test_without_evidence_no_divergence_is_reported():
    assert find_divergence(["a", "b", "c"], ["x", "y"]) is None
    assert find_divergence(["same"] * 60, ["same"] * 59) is None


@pytest.mark.parametrize(
    ("files", "direction", "message"),
    [
        ({"train.en": EN}, "en-fr", "has no train.fr"),
        ({"train.en": EN, "train.fr": FR, "valid.en": EN}, "en-fr", "'valid.en' has no counterpart"),
        ({"train.en": EN, "train.fr": FR}, None, "Set data.direction=en-de"),
        ({"train.tsv": ["a"]}, "1-2", "line 1: column 2 is needed, but the line has only 1 column|columns 1 to 1"),
        ({"train.tsv": ["en\tfr", "a\tb"]}, "en-de", "data.direction=de: .*no column of that name"),
        ({"train.tsv": ["one sentence", "another"]}, "en-de", "give numbers: data.direction=1-2$"),
        ({"train.tsv": ["en\tfr", "a\tb"]}, "1-2", "looks like a header"),
    ],
)
def test_bad_files_are_refused_with_a_message(tmp_path, files, direction, message):
    for name, lines in files.items():
        write(tmp_path, name, lines)
    with pytest.raises(UserError, match=message):
        read_pairs("files", str(tmp_path), Sides(direction))


def test_unused_files_of_a_folder_are_reported(tmp_path, caplog):
    for name in ("train", "validation", "newstest"):
        write(tmp_path, f"{name}.en", EN)
        write(tmp_path, f"{name}.fr", FR)
    assert list(read_pairs("files", str(tmp_path), Sides("en-fr"))) == ["train", "valid"]
    assert "newstest.en: not read" in caplog.text and "validation.en" not in caplog.text


def test_one_of_two_parallel_files_is_no_table(tmp_path):
    write(tmp_path, "corpus.en", EN)
    with pytest.raises(UserError, match="give their folder instead"):
        read_pairs("files", str(tmp_path / "corpus.en"), Sides("en-fr"))


def test_line_ends_of_any_system_and_cells_of_several_lines(tmp_path):
    for name, lines, end in (("train.en", EN, "\r"), ("train.fr", FR, "\r\n")):
        (tmp_path / name).write_bytes(end.join(lines).encode())
    assert read_pairs("files", str(tmp_path), Sides("en-fr"))["train"] == [
        TextPair(*two) for two in zip(EN, FR, strict=True)
    ]
    (tmp_path / "cells.csv").write_bytes(b'en,fr\r\n"a\r\nb","c ""d"""\r\n')
    assert read_pairs("files", str(tmp_path / "cells.csv"), Sides("en-fr"))["train"] == [("a b", 'c "d"')]


def test_both_sides_in_one_column_of_json_lines(tmp_path):
    rows = [f'{{"translation": {{"en": "{en}", "fr": "{fr}"}}}}' for en, fr in zip(EN, FR, strict=True)]
    for name in ("pairs.jsonl", "pairs.jsonl.gz"):
        write(tmp_path, name, rows)
        found = read_pairs("files", str(tmp_path / name), Sides("fr-en"))["train"]
        assert found == [TextPair(*two) for two in zip(FR, EN, strict=True)]


def test_a_file_in_another_encoding_is_refused(tmp_path):
    write(tmp_path, "train.en", EN)
    (tmp_path / "train.fr").write_bytes("\n".join(FR).encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        read_pairs("files", str(tmp_path), Sides("en-fr"))


def test_filters_drop_and_count_only_what_they_name():
    good = [TextPair("six", "six"), TextPair("New York", "New York"), TextPair("a < b", "a < b, donc")]
    bad = {
        "metadata": TextPair("<title>a", "<title>b"),
        "empty": TextPair("a", ""),
        "untranslated": TextPair("I am here", "I am  here"),
        "too long": TextPair("a " * 251, "b"),
    }
    kept, dropped = Filters().applied([*good, *bad.values()])
    assert kept == good and dropped == dict.fromkeys(bad, 1)
    off = Filters(metadata=False, empty=False, untranslated=False, longest=None)
    assert off.applied([*good, *bad.values()]) == ([*good, *bad.values()], {})
    assert Filters(ratio=3).applied([TextPair("a " * 40, "b " * 10)])[1] == {"unlike lengths": 1}


def test_all_pairs_of_one_source_are_held_out_together():
    pairs = [TextPair(f"s{k % 10}", f"t{k}") for k in range(50)]
    found = with_valid({"train": pairs}, 0.2, "x")
    assert len(found["valid"]) == 10 and not {p.source for p in found["valid"]} & {p.source for p in found["train"]}


def loaded(path, tokenizer, target_tokenizer=None):
    return dataset.load("files", str(path), Sides("en-fr"), Filters(), 0.1, tokenizer, target_tokenizer)


@pytest.mark.parametrize("target", [None, Word()], ids=["joint", "separate"])
def test_tokens_are_those_of_the_texts_and_are_cached(tmp_path, monkeypatch, target):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    write(tmp_path, "train.en", EN)
    write(tmp_path, "train.fr", FR)
    first, again = (loaded(tmp_path, Char() if target is None else Word(), target) for _ in range(2))
    assert first.identity == again.identity and first.is_joint == (target is None)
    for found in (first, again):
        train = found.split("train")
        table, lengths = train.target.padded(100)
        for row, n, text in zip(table, lengths, train.target.texts, strict=True):
            assert found.target_tokenizer.decode(row[: n - 1]) == text and row[n - 1] == found.target_tokenizer.size
        cut, lengths = train.target.padded(5)
        assert cut.shape[1] == 5 and (cut[:, 4] == train.target.end).all() and (lengths == 5).all()
        some = train.only(train.longer.argsort()[:3])
        assert len(some) == 3 and some.source.texts[0] in train.source.texts
    assert first.tokenizer.to_json() == again.tokenizer.to_json()


def test_if_nothing_is_left_to_train_on_the_reason_is_given(tmp_path):
    write(tmp_path, "train.tsv", ["<a>\t<b>"] * 3)
    with pytest.raises(UserError, match=re.escape("data.filters dropped 3 metadata")):
        dataset.load("files", str(tmp_path), Sides(), Filters(), 0.1, Char(), None)


def test_smaller_subsets_of_train_are_nested_and_held_out_rows_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    write(tmp_path, "train.tsv", [f"s{k}\tt{k}" for k in range(40)])

    def sources(most):
        found = dataset.load("files", str(tmp_path / "train.tsv"), Sides(), Filters(), 0.2, Word(), None, most)
        assert [pair.source for pair in found.files["train"]] == [f"s{k}" for k in range(40)]  # as audits read them
        return [found.split(split).source.texts for split in ("train", "valid")], found.identity

    ((whole, held_out), one), ((few, still), two), ((fewer, _), _) = (sources(most) for most in (None, 20, 5))
    assert len(whole) == 32 and len(few) == 20 and len(fewer) == 5 and one != two
    assert set(fewer) < set(few) < set(whole) and still == held_out
    assert few == [text for text in whole if text in few]  # in the order of the file
    with pytest.raises(UserError, match=r"data.rows=33: 'train.tsv' has 32 pairs to train on"):
        sources(33)
