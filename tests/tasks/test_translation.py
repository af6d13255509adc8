"""Translation from a recipe to a verdict: trained, resumed, audited, scored, translating, maps."""

import json

import numpy as np
import pytest
import torch
from tiny import tiny_recipe

from headway import tasks
from headway.audit.audit import read_report
from headway.core.errors import UserError
from headway.experiment.audit import audit_run
from headway.experiment.evaluate import score_splits_again, translate_texts
from headway.experiment.inspect import look
from headway.experiment.load import load_model
from headway.experiment.train import train
from headway.recipe.recipe import from_tree
from headway.run.folder import open_run
from headway.scoring.decoding import Beam, Greedy
from headway.study.design.measures import GivenTargets
from headway.training.parallel import Parallel
from headway.training.processes import Processes
from headway.training.setting import Setting
from headway.training.update import Update

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ROWS = [f"{a} {b} {c}\t{c} {b} {a}" for a in WORDS for b in WORDS for c in WORDS[:4]]


def recipe(path, *changes: str, kind: str = "encoder-decoder", seed: int = 0):
    tree = {
        "seed": seed,
        "data": {"kind": "pairs", "source": "files", "path": str(path), "tokenizer": "word", "exact": True},
        "model": {"kind": kind, "layers": 1, "width": 32, "context": 8, "mixer": {"heads": 2}},
        "training": {
            "duration": "20 steps",
            "batch": 16,
            "optimizer": {"learning_rate": 1e-2},
            "evaluate_every": "10 steps",
            "checkpoint_every": "10 steps",
            "evaluate_tokens": 400,
        },
    }
    return from_tree(tree, "reversed", overrides=changes)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("\n".join(ROWS) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Rows of one to six words, all in one bucket of lengths."""
    path = tmp_path_factory.mktemp("unlike") / "pairs.tsv"
    texts = [" ".join(WORDS[(k + j) % 10] for j in range(1 + k % 6)) for k in range(120)]
    path.write_text("".join(f"{text}\t{text}\n" for text in texts), "utf-8")
    return path


@pytest.mark.audited
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder-only"])
def test_it_trains_is_audited_and_translates(rows, tmp_path, kind):
    (run,) = train([recipe(rows, kind=kind)], [kind], tmp_path)
    scores = {score.name: score.value for score in run.scores()}
    assert scores["valid.loss"] < 2.2 and {"valid.token_accuracy", "valid.exact_match"} < set(scores)
    report = read_report(run.folder)
    assert report is not None and [f.audit for f in report.failures if f.audit != "beats-chance"] == []
    said = {finding.audit for finding in report.findings}
    assert {"causality", "cache", "padding", "source-padding", "source-reaches-all", "source-matters", "loss"} < said
    assert {"scored-split", "scores-again", "kept-checkpoint"} < said
    again = {score.name: score.value for score in score_splits_again(open_run(kind, tmp_path))}
    assert again == pytest.approx(scores)
    texts = ["one two three", "", "four five"]
    for how in (Greedy(), Beam(size=3, nbest=2)):
        found = translate_texts([run], texts, how, "auto")
        assert [one.source for one in found] == texts and found[1].text == "" and "empty" in found[1].notes[0]
        assert len(found[0].hypotheses) == getattr(how, "nbest", 1)
        alone = [translate_texts([run], [text], how, "auto")[0] for text in texts]
        assert [one.text for one in alone] == [one.text for one in found]
    picture, numbers = look([run], "one two three", "heads", None, None, "auto")
    assert numbers["tokens"] == ["one", "two", "three"] and numbers["target"][-1] == "END"
    *stacks, aligned = picture.grids
    assert len(stacks) == (3 if kind == "encoder-decoder" else 1)
    for panel in (panel for grid in stacks for row in grid.panels for panel in row):
        assert panel.matrix.shape == (len(panel.rows), len(panel.columns))  # no column is padding
        assert panel.matrix.sum(1) == pytest.approx(np.ones(len(panel.rows)), abs=1e-5)
    ((panel,),) = aligned.panels
    assert panel.columns == ("one", "two", "three", "END") and panel.rows[-1] == "END"
    assert panel.matrix.shape == (len(panel.rows), 4) and numbers["alignment"] == panel.matrix.argmax(1).tolist()


def test_replicas_train_together_as_alone_and_resume(rows, tmp_path):
    together = train([recipe(rows, seed=s) for s in (0, 1)], ["a", "b"], tmp_path / "both")
    (alone,) = train([recipe(rows, seed=1)], ["b"], tmp_path / "alone")
    assert {s.name: s.value for s in together[1].scores()} == pytest.approx(
        {s.name: s.value for s in alone.scores()}, abs=1e-3
    )


@pytest.mark.parametrize(
    ("kind", "changes"), [("encoder-decoder", []), ("decoder-only", ["model.mask=causal", "model.loss_on=all"])]
)
def test_a_batch_in_parts_has_the_mean_over_all_its_tokens(unlike, tmp_path, kind, changes):
    """And not the mean of the means of its parts, which have different numbers of tokens."""
    told = []
    for parts in (1, 4):
        given = (*changes, "model.dropout=0.2", "training.duration=4 steps", f"training.accumulate={parts}")
        (run,) = train([recipe(unlike, *given, kind=kind)], [f"{parts}"], tmp_path)
        told.append([(line["loss"], line["norm"]) for line in run.metrics() if "loss" in line])
    whole, in_parts = (np.array(losses) for losses in told)
    assert len(whole) == 4 and in_parts == pytest.approx(whole, rel=1e-5)


def test_processes_share_a_batch_by_its_tokens(unlike):
    """The mean of the losses recorded by two processes is the loss of the batch, even if one has the longer rows."""
    task, noted = tasks.load(recipe(unlike)), []
    for rank, world in ((0, 1), (0, 2), (1, 2)):
        model = task.build([0], "cpu")
        parallel = Parallel(model)
        parallel.processes = Processes(rank, world)
        setting, alive = Setting(torch.device("cpu"), torch.float32, False, False, ()), torch.ones(1).bool()
        optimizer = task.recipe.training.optimizer.build(dict(model.named_parameters()), [0.0], [0.0])
        sampler = task.sampler([0], "cpu")
        update = Update(model, optimizer, sampler, task.recipe.training, setting, alive, parallel)
        noted.append(update(0, 1.0)[0].item())
    whole, *shares = noted
    assert sum(shares) / 2 == pytest.approx(whole, rel=1e-6) and shares[0] != pytest.approx(shares[1], rel=1e-3)


def test_only_translators_score_given_targets(workshop):
    with pytest.raises(UserError, match="needs a translator"):
        GivenTargets().check(tasks.load(tiny_recipe(workshop.text)))


def test_the_mean_of_the_last_checkpoints_is_saved_and_scored(rows, tmp_path):
    """The last 2, which are 4 steps apart; given as `every`, and as a share of training by `last`."""
    constant, kept = "training.schedule=constant", []
    for steps in (8, 12):
        (run,) = train([recipe(rows, constant, f"training.duration={steps} steps")], [f"{steps}"], tmp_path)
        kept.append(run.checkpoint("last").weights)
    tail = ["training.duration=12 steps", "training.averaging={kind: tail, every: 4, last: 0.67}"]
    (averaged,) = train([recipe(rows, constant, *tail)], ["averaged"], tmp_path)
    for name, weight in averaged.checkpoint("last").weights.items():
        assert weight == pytest.approx((kept[0][name] + kept[1][name]) / 2, abs=1e-6)
    again = {score.name: score.value for score in score_splits_again(averaged)}
    assert again == pytest.approx({score.name: score.value for score in averaged.scores()})
    (moving,) = train([recipe(rows, constant, *tail[:1], "training.averaging=moving")], ["moving"], tmp_path)
    ours, last = moving.checkpoint("last").weights, kept[1]
    assert any((ours[name] != last[name]).any() for name in last) and moving.scores() != run.scores()


def test_given_targets_are_measured_with_padding_and_without(unlike, tmp_path):
    (run,) = train([recipe(unlike, "training.duration=6 steps")], ["run"], tmp_path)
    task, (model, _) = tasks.load_for(run), load_model(run)
    measure = GivenTargets(split="valid", tokens=10_000, batch=3)
    measure.check(task)
    found = {score.name: score.value for score in measure.scores(model, task)}
    scored = {score.name: score.value for score in run.scores()}
    assert found["valid-given.loss"] == pytest.approx(scored["valid.loss"])
    assert found["valid-given.token_accuracy"] == pytest.approx(scored["valid.token_accuracy"])
    lengths = [int(n) for n in task.data.split("valid").target.lengths]
    slots = sum(len(some) * max(some) for some in (lengths[k : k + 3] for k in range(0, len(lengths), 3)))
    right = found["valid-given.token_accuracy"] * sum(lengths)
    assert found["valid-padded.token_accuracy"] == pytest.approx((right + slots - sum(lengths)) / slots)
    assert set(measure.told) == set(found)


def test_two_vocabularies_are_stored_in_the_run(rows, tmp_path):
    changes = ("data.target_tokenizer=char", "model.context=24", "training.duration=5 steps")
    (run,) = train([recipe(rows, *changes)], ["two"], tmp_path)
    assert (run.folder / "target_tokenizer.json").exists()
    assert tasks.load_for(run).data.is_joint is False
    assert len(translate_texts([run], ["one two"], Greedy(), "auto")) == 1
    with pytest.raises(UserError, match="cannot have a vocabulary of their own"):
        recipe(rows, "data.target_tokenizer=char", kind="decoder-only")
    with pytest.raises(UserError, match="share one embedding table"):
        recipe(rows, "data.target_tokenizer=char", "model.tied=all")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.source=multi3k", "data.path=null"], "multi30k"),
        (["data.direction=english"], "not a direction"),
        (["data.direction=2-2"], "one side twice"),
        (["scoring.segment=4"], "scored whole"),
        (["model.cross.kind=lstm"], "cannot attend to another"),
        (["scoring.decoding={kind: beam, size: 0}"], "size"),
    ],
)
def test_impossible_settings_are_refused_before_training(rows, changes, message):
    with pytest.raises(UserError, match=message):
        recipe(rows, *changes)


def test_the_verb(rows, tmp_path, command_line, monkeypatch):
    import io

    train([recipe(rows, "training.duration=5 steps")], ["tiny"], tmp_path)
    where = ("--runs", str(tmp_path))
    assert command_line("translate", "tiny", "one two three", *where).code == 0
    assert "were read" in command_line("translate", "tiny", "one " * 200, *where).err

    def pipe(content: bytes, *words: str):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "ascii", errors="surrogateescape"))
        return command_line("translate", "tiny", *words, *where)

    piped = pipe(b"\xef\xbb\xbfone two\r\n\nthree\n", "--beam", "3")
    assert piped.code == 0 and piped.out.count("\n") == 3 and "line 2" in piped.err
    for content, message in ((b"one\nt\xe9\n", "0xe9 at offset 5, in line 2"), (b"", "no text to translate")):
        refused = pipe(content)
        assert refused.code == 2 and message in refused.err
    for content, words in (("\ufeffone\ntwo\n".encode("utf-16-le"), ()), (b"one\rtwo\r", ("--encoding", "cp1252"))):
        assert pipe(content, *words).out == pipe(b"one\ntwo\n").out
    drawn = pipe(b"one two three\n" * 20, "--temperature", "3")
    assert drawn.out.count("\n") == 20  # although the vocabulary has a line end
    (tmp_path / "blank").write_text("\n \n\n")
    assert command_line("translate", "tiny", "--file", str(tmp_path / "blank"), *where).out == pipe(b"\n\n\n").out
    blank = command_line("translate", "tiny", "  ", *where)
    assert blank.out == "\n" and "the text is empty" in blank.err  # as for a blank line in a file
    scored = [command_line("translate", "tiny", f"one{gap}two", "--nbest", "2", *where).out for gap in ("\n", " ")]
    assert scored[0] == scored[1]  # as in a cell of a table
    drawing = ("--temperature", "2", "--top-k", "3", "--seed", "1")
    told = [command_line("translate", "tiny", text, *drawing, *where).out for text in ("one two", " one two ")]
    assert told[0] == told[1]
    found = json.loads(command_line("translate", "tiny", "one", "--nbest", "2", "--json", *where).out)
    assert len(found["translations"][0]["hypotheses"]) == 2 and "beam" in found["decoding"]
    for words, message in (
        (("one", "--beam", "0"), "--beam 0"),
        (("one", "--beam", "1001"), "--beam 1001"),
        (("one", "--nbest", "1001"), "--nbest 1001"),
        (("one", "--beam", "2", "--nbest", "3"), "at most as many translations as its width"),
        (("one", "--temperature", "1", "--nbest", "3"), "give only one of them"),
        (("one", "--top-p", "0.5", "--no-repeat", "2"), "give only one of them"),
        (("one", "--temperature", "nan"), "--temperature"),
        (("one", "--temperature", "inf"), "--temperature"),
        (("one", "--length-penalty", "1e6"), "--length-penalty"),
        (("one", "--encoding", "cp1252"), "--encoding"),
        (("--file", "-", "--encoding", "rot13"), "Python knows no text encoding"),
        (("one", "--seed", "3"), "give --temperature too"),
        (("--split", "valid", "--out", str(tmp_path / "t.tsv"), "--nbest", "2"), "only the best translation"),
        (("one", "--file", "x"), "give only one of"),
        (("--split", "valid"), "go together"),
        (("--split", "vlid", "--out", str(tmp_path / "t.tsv")), "no split 'vlid'"),
        (("--file", str(tmp_path / "nothing")), "cannot be read"),
    ):
        refused = command_line("translate", "tiny", *words, *where)
        assert refused.code == 2 and message in refused.err
    table = tmp_path / "valid.tsv"
    assert command_line("translate", "tiny", "--split", "valid", "-o", str(table), *where).code == 0
    header, *lines = table.read_text("utf-8").splitlines()
    assert (
        header.startswith("source\treference\ttranslation") and len(lines) == 36
    )  # palindromes are dropped as untranslated
    assert "only possible with language models" in command_line("sample", "tiny", *where).err


def test_other_models_do_not_translate(workshop, command_line):
    refused = command_line("translate", "tiny", "a", "--runs", str(workshop.runs))
    assert (
        refused.code == 2
        and "translating is only possible with translators, but tiny is a language-model" in refused.err
    )


@pytest.mark.parametrize(
    "decoding",
    [
        pytest.param("greedy", marks=pytest.mark.slow),
        "{kind: beam, size: 1}",
        pytest.param("{kind: beam, size: 3}", marks=pytest.mark.slow),
    ],
)
def test_an_empty_source_of_a_held_out_split_stays_empty_and_is_reported_and_recounted(tmp_path, decoding):
    """Scoring and translating read the same source."""
    (tmp_path / "train.tsv").write_text("\n".join(ROWS) + "\n", "utf-8")
    (tmp_path / "valid.tsv").write_text("one two\ttwo one\n\tthree\nfour one\tone four\n", "utf-8")
    changes = ("training.duration=2 steps", f"scoring.decoding={decoding}", "scoring.decoding.extra=2")
    (run,) = train([recipe(tmp_path, *changes)], ["run"], tmp_path)
    (score,) = [score for score in run.scores() if score.name == "valid.exact_match"]
    assert score.texts is not None and score.texts[1] == "" and "1 empty source" in score.label
    report = audit_run(run)
    assert "scores-again" in {f.audit for f in report.findings} - {f.audit for f in report.failures}
