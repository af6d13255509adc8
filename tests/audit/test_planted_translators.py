"""Every fault of translators and pairs is caught by the audit meant for it, and clean ones raise no alarm."""

import shutil

import numpy as np
import pytest
import torch
from tiny import cache_in

from headway import tasks
from headway.audit.audit import AUDITS, run_audits
from headway.audit.data.pair_set import PairSet
from headway.audit.data.pair_splits import AS_ROWS, written_alike
from headway.audit.data.pair_tokens import References, writable_references
from headway.audit.data.pairs import PAIR_AUDITS, copied_targets, many_sources, misaligned_pairs, swapped_sides
from headway.audit.data.two_languages import TOGETHER, TwoLanguages, mixture
from headway.audit.plants.library import faults
from headway.audit.plants.needs import (
    ADDITIVE_CROSSING,
    FIRST_STATE,
    JUDGED_BY_BLEU,
    LONG_SOURCES,
    ONE_STACK,
    ONE_TABLE,
    TRANSLATOR,
)
from headway.audit.plants.planting import Fault, planted
from headway.data.embedded import numbers_en_fr, pig_latin
from headway.data.vocabularies import Bpe, Word
from headway.experiment.audit import audit_by_name, audit_run
from headway.experiment.evaluate import score_splits_again
from headway.experiment.train import train
from headway.models.decoder_only import DecoderOnly
from headway.recipe.recipe import from_tree
from headway.run.folder import open_run

OURS = [  # test_planted_bleu.py has those of scores of texts
    fault for fault in faults() if {TRANSLATOR, ONE_STACK} & {*fault.needs} and JUDGED_BY_BLEU not in fault.needs
]
OF_DATA = [fault for fault in OURS if fault.of is PairSet]
OF_REFERENCES = [fault for fault in OURS if fault.of is References]
OF_RUNS = [fault for fault in OURS if fault.data is None]

QUICK = ("padding_of_sources_is_read", "decoder_that_sees_its_target", "rows_mixed_up_in_the_cache")
QUICK += ("state_taken_after_the_padding", "encoder_that_looks_back_alone")

LETTERS = "abcdefgh"
WORDS = [(a + b + c * (k % 3) + a) for a in LETTERS for b in LETTERS for k, c in enumerate(LETTERS[:5])]
ROWS = [f"{word}\t{word[1:]}{word[0]}" for word in dict.fromkeys(WORDS)]


def recipe(path, changes=()):
    tree = {
        "data": {"kind": "pairs", "source": "files", "path": str(path), "exact": True, "batches": {"buckets": 1}},
        "model": {"kind": "encoder-decoder", "layers": 1, "width": 32, "context": 12, "mixer": {"heads": 2}},
        "training": {
            "duration": "60 steps",
            "batch": 16,
            "accumulate": 2,  # parts have unequal numbers of tokens; the loss must still be the mean over all tokens
            "optimizer": {"learning_rate": 1e-2},
            "evaluate_tokens": 200,
        },
    }
    return from_tree(tree, "letters", overrides=list(changes))


RECURRENT = (*FIRST_STATE.changes, *ADDITIVE_CROSSING.changes)
"""A recipe with the parts that some faults need."""
CLEAN = {"clean": (), "recurrent": RECURRENT, "alone": ONE_STACK.changes}
CLEAN |= {"long": LONG_SOURCES.changes, "one table": ONE_TABLE.changes}


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    home = tmp_path_factory.mktemp("letters")
    (home / "letters.tsv").write_text("\n".join(ROWS) + "\n", "utf-8")
    with cache_in(home / "cache"):
        yield home


@pytest.fixture(scope="module")
def grown(ground):
    """A clean run of one of these recipes, trained when it is first needed."""

    def grown(name):
        if not (ground / "runs" / name).exists():
            train([recipe(ground / "letters.tsv", CLEAN[name])], [name], ground / "runs")
        return ground / "runs" / name

    return grown


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, id=one.name, marks=[] if one.name in QUICK else [pytest.mark.slow]) for one in OF_RUNS],
)
def test_planted(fault: Fault, ground, grown):
    grown_in = "recurrent" if {FIRST_STATE, ADDITIVE_CROSSING} & set(fault.needs) else "clean"
    grown_in = "alone" if ONE_STACK in fault.needs else "long" if LONG_SOURCES in fault.needs else grown_in
    grown_in = "one table" if ONE_TABLE in fault.needs else grown_in
    clean = grown(grown_in)
    with planted(fault):
        if fault.trains:
            train([recipe(ground / "letters.tsv", CLEAN[grown_in])], [fault.name], ground / "runs")
        else:
            shutil.copytree(clean, ground / "runs" / fault.name)
        run = open_run(fault.name, ground / "runs")
        score_splits_again(run)
        report = audit_run(run)
    failures = {f.audit: f.sentence for f in report.failures}
    assert fault.caught_by in failures, f"not caught; {report}"
    of_training = {name for name in failures if AUDITS[name].subject in ("training", "baselines")}
    assert not set(failures) - {fault.caught_by, *fault.also} - of_training, failures


@pytest.mark.parametrize("name", ["clean", "recurrent", "alone", "one table"])
def test_a_clean_translator_raises_no_alarm(name, grown):
    report = audit_run(open_run(name, grown(name).parent))
    assert ("first-state" in {one.audit for one in report.findings}) == (name == "recurrent")
    assert [f for f in report.failures if AUDITS[f.audit].subject not in ("training", "baselines")] == []


@pytest.fixture(scope="module")
def numbers():
    numbers = np.random.default_rng(0).permutation(np.arange(100, 100_000, 179)).tolist()
    pairs = [(numbers_en_fr.english(n), numbers_en_fr.french(n)) for n in numbers]
    return PairSet({"train": pairs[:450], "valid": pairs[450:]}, one_answer=True)


@pytest.mark.parametrize("fault", OF_DATA, ids=lambda fault: fault.name)
def test_planted_in_pairs(fault: Fault, numbers):
    failures = {f.audit for f in run_audits(PAIR_AUDITS, fault.into(numbers)).failures}
    assert fault.caught_by in failures and not failures - {fault.caught_by, *fault.also}


def test_clean_pairs_raise_no_alarm(numbers):
    report = run_audits([*PAIR_AUDITS, *AS_ROWS], numbers)
    assert not report.failures and not report.warnings


def made_up(n: int, seed: int) -> list[tuple[str, str]]:
    """Sentences in one made-up language, paired with sentences in another."""
    rng = np.random.default_rng(9)
    ours, theirs = (
        [f"{a}{b}{c}" for a in x for b in y for c in x] for x, y in (("bdgklmn", "aei"), ("fprstvw", "oué"))
    )
    rng = np.random.default_rng(seed)
    chosen = [(rng.random(rng.integers(6, 14)) ** 2 * len(ours)).astype(int) for _ in range(n)]

    def sentence(words: list[str], one: np.ndarray) -> str:
        return " ".join(words[k] for k in one).capitalize() + "."

    return [(sentence(ours, one), sentence(theirs, one)) for one in chosen]


@pytest.mark.parametrize(
    ("spec", "verdict"),
    [
        (Bpe(size=300), "pass"),
        (Bpe(size=300, lower=True), "warn"),
        (Word(size=30), "warn"),
        (Word(punctuation="apart"), "warn"),
    ],
    ids=str,
)
def test_references_that_no_translation_can_match_are_counted(spec, verdict: str):
    texts = [target for _, target in made_up(60, 1)]
    data = References({"valid": texts[40:]}, spec.learn("\n".join(texts[:40])))
    assert [f.verdict for f in run_audits([writable_references], data).findings] == [verdict]
    if verdict == "pass":
        (fault,) = OF_REFERENCES
        assert [f.verdict for f in run_audits([writable_references], fault.into(data)).findings] == ["fail"]


OF_SPLITS = {
    "damaged-rows": lambda train, held: (train, [(s, t.encode().decode("latin-1")) for s, t in held]),
    "seen-rows-nearly": lambda train, held: (train, [(" ".join(s.split()[1:]), t) for s, t in train[:200]]),
    "shared-rows": lambda train, held: (train, held),
    "repeated-rows": lambda train, held: (train, held[:20] * 10),
    "written-alike": lambda train, held: (train, [(s.lower(), t.lower()) for s, t in held]),
    "copied-targets": lambda train, held: (train, [(s, s) for s, _ in held]),
    "rows-of-text": lambda train, held: (train, [("" if k % 5 else s, t) for k, (s, t) in enumerate(held)]),
}


@pytest.mark.parametrize("caught_by", ["", *OF_SPLITS])
def test_faults_of_a_split_are_found(caught_by: str):
    train, held, test = made_up(800, 1), made_up(200, 2), made_up(200, 3)
    if caught_by:
        train, valid = OF_SPLITS[caught_by](train, held)
        test = held if caught_by == "shared-rows" else test
    else:
        valid = held
    report = run_audits([*PAIR_AUDITS, *AS_ROWS], PairSet({"train": train, "valid": valid, "test": test}))
    alarms = {f.audit for f in (*report.failures, *report.warnings)}
    assert caught_by in alarms if caught_by else not alarms


@pytest.mark.parametrize("rows", [60, 300])
def test_small_splits_of_one_text_count_as_written_alike(rows: int):
    for seed in range(5):
        data = PairSet({"train": made_up(5 * rows, 2 * seed), "valid": made_up(rows // 2, 2 * seed + 1)})
        assert all(f.verdict == "pass" for f in run_audits([written_alike], data).findings)


def test_pairs_seen_in_train_and_sources_with_two_targets_are_found(numbers):
    pairs = numbers.pairs
    leaky = PairSet({"train": pairs["train"], "valid": pairs["train"][:50]}, one_answer=True)
    assert "seen-pairs" in {f.audit for f in run_audits(PAIR_AUDITS, leaky).failures}
    two = PairSet({**pairs, "train": [*pairs["train"], (pairs["train"][0][0], "autre chose")]}, one_answer=True)
    assert "many-targets" in {f.audit for f in run_audits(PAIR_AUDITS, two).failures}


@pytest.mark.parametrize("fault", ["none", "each target twice", "one line for what is lacking"])
def test_targets_with_several_sources_are_found(fault: str, numbers):
    pairs, (_, anything) = numbers.pairs["train"], numbers.pairs["valid"][0]
    if fault == "each target twice":
        pairs = [(source, pairs[k - k % 2][1]) for k, (source, _) in enumerate(pairs)]
    elif fault == "one line for what is lacking":
        pairs = [(source, anything if k % 7 == 3 else target) for k, (source, target) in enumerate(pairs)]
    (finding,) = run_audits([many_sources], PairSet({"train": pairs}, one_answer=True)).findings
    expected = {"none": 0, "each target twice": 1, "one line for what is lacking": 1 / 7}[fault]
    assert finding.value == pytest.approx(expected, abs=0.01)
    assert finding.verdict == ("warn" if expected else "pass")


@pytest.mark.parametrize(("same", "verdict"), [(0.0, "pass"), (0.15, "pass"), (0.5, "fail")])
def test_words_shared_by_both_languages_only_count_as_copies_if_there_are_many(same: float, verdict: str):
    pairs = [(f"word{k}", f"word{k}" if k < same * 200 else f"mot{k}") for k in range(200)]
    (finding,) = run_audits([copied_targets], PairSet({"train": pairs})).findings
    assert finding.verdict == verdict
    assert not same or f"{same * 200:.0f} of" in finding.sentence


@pytest.mark.parametrize(("direction", "verdict"), [("there", "pass"), ("back", "fail")])
def test_similar_languages_are_not_taken_for_swapped(direction: str, verdict: str):
    """Letter statistics identify only four of five sentences."""
    rng = np.random.default_rng(0)
    words = ["".join(chr(97 + k) for k in rng.integers(16, size=rng.integers(2, 8))) for _ in range(300)]

    def line(own: int) -> str:
        return " ".join(words[k if rng.random() < 0.7 else k // 2 + own] for k in rng.integers(300, size=8))

    pairs = [(line(0), line(150)) for _ in range(2400)]
    held_out = pairs[2000:] if direction == "there" else [(target, source) for source, target in pairs[2000:]]
    data = PairSet({"train": pairs[:2000], "valid": held_out})
    assert 0.15 < TwoLanguages(pairs[:2000]).mistaken < 0.25
    (finding,) = run_audits([swapped_sides], data).findings
    assert finding.verdict == verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.0, "pass"), (0.1, "warn"), (0.3, "fail")])
@pytest.mark.parametrize("few", [120, 380])
def test_scattered_swapped_rows_are_found(share: float, verdict: str, few: int, numbers):
    turned = np.random.default_rng(few).permutation(few) < share * few
    pairs = [pair[::-1] if is_turned else pair for pair, is_turned in zip(numbers.pairs["train"], turned, strict=False)]
    (finding,) = run_audits([swapped_sides], PairSet({"train": pairs})).findings
    assert finding.verdict == verdict
    assert finding.value == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(("share", "verdict"), [(0.0, "pass"), (0.2, "warn"), (0.5, "fail")])
@pytest.mark.parametrize("source", [numbers_en_fr, pig_latin])
def test_shuffled_targets_are_found(share: float, verdict: str, source):
    """In sentences, words of source and target are associated; in single words, pairs of letters are."""
    pairs = source.splits()["train"]
    rng = np.random.default_rng(0)
    some = rng.permutation(len(pairs))[: int(share * len(pairs))].tolist()
    others = dict(zip(some, rng.permutation(some).tolist(), strict=True))
    train = [(pair[0], pairs[others.get(k, k)][1]) for k, pair in enumerate(pairs)]
    (finding,) = run_audits([misaligned_pairs], PairSet({"train": train})).findings
    assert finding.verdict == verdict
    assert finding.value == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("line", [("( Laughter )", "( Rires )"), ("order {} was shipped", "commande {} expédiée")])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_lines_that_repeat_are_not_misaligned(line: tuple[str, str], share: float):
    """All of their sources explain their targets equally well, so ranks among them say nothing."""
    rng = np.random.default_rng(0)
    often = [tuple(side.format(k) for side in line) for k in range(100_000, 110_000)]
    train = [often[k] if rng.random() < share else pair for k, pair in enumerate(numbers_en_fr.splits()["train"])]
    (finding,) = run_audits([misaligned_pairs], PairSet({"train": train})).findings
    assert finding.verdict == "pass"


@pytest.mark.parametrize("apart", [1.0, 0.8, 0.5])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.25])
def test_the_share_of_swapped_rows_is_estimated_even_for_similar_sides(share: float, apart: float):
    rng = np.random.default_rng(0)
    # independent of each other, and equally likely for long and short texts
    strange = rng.random((2, 40_000)) < (1 - apart) / 2
    strange ^= rng.random(40_000) < share
    found = mixture(strange[0], strange[1], rng.integers(5, 90, size=40_000))
    assert found.share == pytest.approx(share, abs=0.02) and found.told_apart == pytest.approx(apart, abs=0.03)
    assert (found.deviations >= TOGETHER) == (share > 0)


@pytest.mark.parametrize("between", ["", " "])
def test_reversed_targets_are_taken_neither_for_swapped_nor_for_out_of_order(between: str):
    digits = np.random.default_rng(0).integers(10**7, 10**8, size=2000).astype(str).tolist()
    report = run_audits(PAIR_AUDITS, PairSet({"train": [(between.join(d), between.join(d[::-1])) for d in digits]}))
    assert not report.failures and not report.warnings


def test_sources_with_several_translations_are_not_taken_for_swapped():
    rng = np.random.default_rng(0)

    def words(n: int) -> list[str]:
        return ["".join(chr(97 + k) for k in rng.integers(8, size=rng.integers(2, 8))) for _ in range(n)]

    texts = [words(rng.integers(3, 20)) for _ in range(500)]
    pairs = [(" ".join(one), " ".join(w[::-1] for w in one if rng.random() < 0.85)) for one in texts for _ in range(5)]
    report = run_audits([swapped_sides], PairSet({"train": pairs}))
    assert not report.failures and not report.warnings


@pytest.mark.parametrize("noise", ["words left out", "letters exchanged", "halves"])
def test_pairs_in_one_language_are_not_taken_for_swapped(noise: str):
    rng = np.random.default_rng(0)
    words = ["".join(chr(97 + k) for k in rng.integers(26, size=rng.integers(2, 8))) for _ in range(200)]

    def changed(text: str) -> tuple[str, str]:
        if noise == "halves":
            return text[: len(text) // 2], text[len(text) // 2 :]
        if noise == "words left out":
            return text, " ".join(word for word in text.split() if rng.random() < 0.8)
        return "".join(chr(rng.integers(97, 123)) if rng.random() < 0.1 else c for c in text), text

    pairs = [changed(" ".join(words[k] for k in rng.integers(200, size=rng.integers(3, 12)))) for _ in range(600)]
    report = run_audits([swapped_sides], PairSet({"train": pairs}))
    assert not report.failures and not report.warnings


NOISY = ["model.dropout=0.2", "model.label_smoothing=0.1", "model.width=32", "model.layers=1"]
ALONE = ["model.kind=decoder-only", "model.positions=learned"]
HYBRID = ["model.layers=2", "model.mixer=[{kind: gru}, {kind: attention, heads: 2}]"]


@pytest.mark.parametrize(
    "changes",
    [
        ["model.tied=none"],
        ["model.noise=locked", "model.noise.words=0.1", "model.mixer.dropout=0.1"],
        [*ALONE, "model.mask=prefix"],
        [*ALONE, "model.mask=causal", "model.loss_on=all"],
        ["model.kind=decoder-only", "model.positions=none", "model.mixer=gru"],
        ["model.mixer=gru", "model.positions=none", "model.mixer.weight_dropout=0.2", "model.first_state=encoder"],
        [*HYBRID, "model.encoder_mixer=gru", "model.positions=none", "model.first_state=encoder"],
        [*ALONE, "model.mask=causal", "model.mixer.window=4", "model.layers=2"],
        [*ALONE, "model.mask=causal", "model.mixer.window=9", "model.layers=2"],
        [*ALONE, *HYBRID, "model.mixer.1.window=5", "model.mask=causal"],
    ],
    ids=" ".join,
)
def test_a_fresh_translator_with_every_kind_of_dropout_raises_no_alarm(changes, tmp_path):
    assert not audit_by_name("pig-latin", [*NOISY, *changes], tmp_path).failures


@pytest.mark.parametrize(("window", "verdict"), [(4, None), (9, "fail")])
def test_windows_excuse_only_what_is_out_of_their_reach(window, verdict, tmp_path, monkeypatch):
    """A window that reaches back far enough, and a fault: the first token is not read."""
    read = DecoderOnly.read

    def without_the_first(self, sources, *given, **named):
        return read(self, torch.cat((torch.zeros_like(sources[..., :1]), sources[..., 1:]), 2), *given, **named)

    monkeypatch.setattr(DecoderOnly, "read", without_the_first)
    changes = [*ALONE, "model.mask=causal", f"model.mixer.window={window}", "model.layers=2"]
    report = audit_by_name("pig-latin", [*NOISY, *changes], tmp_path)
    finding = report.finding("source-reaches-all")
    assert (finding and finding.verdict) == verdict
    assert verdict or "windows reach back 6 tokens" in report.not_run["source-reaches-all"]


def test_every_audit_of_translators_is_known_to_the_runner():
    assert {one.name for one in tasks.Translating.probing.audits} <= set(AUDITS)


def test_rows_without_proper_text_are_counted_by_reason(numbers):
    pairs = [*numbers.pairs["train"], ("<title>one", "<title>un"), ("two", ""), ("three " * 251, "trois " * 251)]
    (finding,) = (f for f in run_audits(PAIR_AUDITS, PairSet({"train": pairs})).findings if f.audit == "rows-of-text")
    assert finding.verdict == "pass" and finding.value == pytest.approx(3 / len(pairs))
    assert all(f"1 {reason}" in finding.sentence for reason in ("metadata", "empty", "too long"))


@pytest.mark.parametrize("changes", [{}, {"buckets": 3}, {"buckets": 3, "equal": "rows"}], ids=str)
def test_batches_of_pairs_sorted_by_length_raise_no_alarm(changes, tmp_path, ground):
    """Batches of pairs of one length then come from one part of the file."""
    rows = sorted((" ".join("abc"[k % 3 :] * (1 + k // 40)) for k in range(400)), key=len)
    (tmp_path / "sorted.tsv").write_text("".join(f"{row} {k}\t{row}\n" for k, row in enumerate(rows)), "utf-8")
    data = {"kind": "pairs", "source": "files", "path": str(tmp_path / "sorted.tsv"), "tokenizer": "word"}
    sorted_pairs = from_tree({"data": {**data, "batches": changes}, "model": {"kind": "encoder-decoder"}}, "sorted")
    report = tasks.load(sorted_pairs).gather_evidence().reading()
    assert {f.audit: f.verdict for f in report.findings} == dict.fromkeys(
        ("batches", "batch-pairs", "every-pair"), "pass"
    )
