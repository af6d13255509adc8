"""Encoders that transformers runs, behind Headway's interface: vectors, taps, maps, reproducible training."""

import inspect

import pytest
import torch
from folders_of_others import FOREIGN, PIECES
from tiny import cache_in

from headway.core.errors import UserError
from headway.look.gradient_flow import stream_norms
from headway.look.gradient_rows import GradientRows, GradientSide, rows_of
from headway.look.maps import maps_of
from headway.nn.taps import intervene, watch
from headway.recipe.recipe import from_tree

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # from DeBERTa's own code


def recipe(origin, *changes):
    start = {"kind": "pretrained", "from": str(origin)}
    return from_tree({"model": {"kind": "classifier", "start": start}, "data": {"kind": "labelled"}}, "", None, changes)


def started(made, seeds=(0,)):
    model = made.model.build(len(PIECES), 2, seeds)
    model.notes = made.model.start.fill(model)
    return model.eval()


@pytest.mark.parametrize("family", FOREIGN)
def test_it_is_built_in_training_mode(encoder_folder, family):
    model = recipe(encoder_folder(family)[0]).model.build(len(PIECES), 2, (0,))
    assert [name for name, part in model.named_modules() if not part.training] == []


@pytest.mark.parametrize("family", FOREIGN)
@torch.no_grad()
def test_vectors_equal_those_of_transformers_and_maps_and_taps_work(encoder_folder, family):
    from transformers import AutoTokenizer

    folder, theirs = encoder_folder(family)
    made = recipe(folder)
    model = started(made)
    given = AutoTokenizer.from_pretrained(folder)(["a good film .", "no"], ["it", "a bad film"], padding=True)
    given = {name: torch.tensor(rows) for name, rows in given.items()}
    if "token_type_ids" not in inspect.signature(theirs.forward).parameters:
        given.pop("token_type_ids")
    there = given["attention_mask"].bool()
    with watch(model, "layers.0.stream", "embedded") as seen:
        ours, _ = model.hidden(given["input_ids"][None], padding_mask=there[None])
    expected = theirs(**given, output_hidden_states=True)
    assert torch.allclose(ours[0][there], expected.last_hidden_state[there], atol=1e-5)
    assert ("layers.0.stream" in seen) == (family != "albert"), "ALBERT applies one layer many times"
    (shown,) = maps_of(model, made.data.tokenizer.learn(""), ["a good film"])
    assert set(shown.layers) == {0, 1} and shown.largest_difference < 1e-5
    assert torch.allclose(shown.layers[1].sum(-1), torch.ones(2, 5), atol=1e-5)
    row = torch.tensor([2, 5, 6, 11, 3])
    from transformers import AutoModel

    plain = AutoModel.from_pretrained(folder, attn_implementation="eager")(row[None], output_attentions=True)
    assert torch.allclose(shown.layers[1], plain.attentions[1][0], atol=1e-5)
    if family != "albert":
        with intervene(model, {"layers.1.stream": torch.zeros_like}):
            changed, _ = model.hidden(given["input_ids"][None], padding_mask=there[None])
        assert not torch.allclose(changed, ours)


@pytest.mark.parametrize("family", ["mpnet", "albert"])
def test_gradient_flow_works_where_layers_are_distinct(encoder_folder, family):
    model, row = started(recipe(encoder_folder(family)[0])), torch.tensor([[[2, 5, 6, 11, 3]]])
    rows = GradientRows(rows_of(row, row), GradientSide(5), lambda model, row: row.target, "", "", "")
    if family == "albert":
        with pytest.raises(UserError, match="cannot be told apart"):
            stream_norms(model, rows)
    else:
        assert all(norm > 0 for norms in stream_norms(model, rows)[0].values() for norm in norms.typical)


def test_results_do_not_depend_on_padding_and_other_rows(encoder_folder):
    folder, _ = encoder_folder("deberta")
    model = started(recipe(folder))
    row = torch.tensor([2, 5, 6, 11, 3])
    filled = torch.zeros(1, 2, 8, dtype=torch.long)
    filled[0, 0, :5], filled[0, 1] = row, 7
    told = torch.zeros(1, 2, 8, dtype=torch.bool)
    told[0, 0, :5], told[0, 1] = True, True
    with torch.no_grad():
        assert torch.allclose(model(row[None, None])[0, 0], model(filled, told)[0, 0], atol=1e-5)


def test_padding_may_be_anywhere(encoder_folder):
    folder, _ = encoder_folder("mpnet")
    model = started(recipe(folder))
    row, ids = torch.tensor([2, 5, 6, 11, 3]), torch.full((1, 3, 9), 7)
    told = torch.zeros_like(ids, dtype=torch.bool)
    for k, first in enumerate((0, 2, 4)):
        ids[0, k, first : first + 5], told[0, k, first : first + 5] = row, True
    with torch.no_grad():
        expected, _ = model.hidden(row[None, None])
        found, _ = model.hidden(ids, padding_mask=told)
    assert torch.allclose(found[told].view(3, 5, -1), expected[0].expand(3, -1, -1), atol=1e-5)


def tried(folder, reviews, *changes):
    steps = ["training.batch=4", "training.evaluate_every=2 steps", "training.duration=4 steps"]
    data = ["data.source=files", f"data.path={reviews}", "model.context=8", "scoring.splits=[valid]"]
    return recipe(folder, *data, *steps, *changes)


def test_training_is_reproducible_including_dropout(encoder_folder, reviews, tmp_path, workshop):
    from headway.experiment.load import load_model
    from headway.experiment.train import train

    folder, theirs = encoder_folder("small-electra")
    with cache_in(workshop.cache):
        runs = [train([tried(folder, reviews)], [name], tmp_path / "runs")[0] for name in ("one", "other")]
        (dry,) = train([tried(folder, reviews, "model.dropout=0")], ["dry"], tmp_path / "runs")
    weights = [run.checkpoint("last").weights for run in (*runs, dry)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["head.output.weight"], weights[2]["head.output.weight"])
    model, _ = load_model(runs[0])
    moved = model.body.embeddings.word_embeddings.weight[0] - theirs.embeddings.word_embeddings.weight
    assert 0 < moved.abs().max() < 0.1


@pytest.mark.slow
@pytest.mark.audited
@pytest.mark.parametrize("family", ["small-electra", "mpnet", "deberta"])
def test_audits_apply_as_to_any_model(encoder_folder, reviews, tmp_path, workshop, family):
    from headway.audit.audit import read_report
    from headway.experiment.train import train

    folder, _ = encoder_folder(family)
    with cache_in(workshop.cache):
        (run,) = train([tried(folder, reviews)], ["run"], tmp_path / "runs")
    report = read_report(run.folder)
    assert report is not None
    asked = {finding.audit: finding for finding in report.findings}
    for name in ("finite", "determinism", "padding", "batch-invariance", "order", "moved"):
        assert asked[name].verdict != "fail", asked[name].sentence


def test_an_unknown_architecture(encoder_folder):
    import json

    folder, _ = encoder_folder("mpnet")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mpnett", "auto_map": {"AutoModel": "x.Y"}}))
    with pytest.raises(UserError, match=r"'mpnett' model.*did you mean 'mpnet'.*does not run"):
        recipe(folder)


def test_unsupported_settings_are_refused(encoder_folder):
    folder, _ = encoder_folder("deberta")
    made = recipe(folder)
    with pytest.raises(UserError, match="one replica at a time"):
        made.model.build(len(PIECES), 2, [0, 1])
    frozen = recipe(folder, "training.tuning=frozen").training.tuning.apply(started(made), [0])
    paces = {name: p.pace for name, p in frozen.named_parameters()}
    assert paces["head.output.weight"] == 1 and not any(pace for name, pace in paces.items() if "head" not in name)
    with pytest.raises(UserError, match=r"model\.start"):
        recipe(folder, "model.layers=3")


@pytest.mark.parametrize("family", ["mpnet", "deberta"])
@torch.no_grad()
def test_adapters_are_added_by_peft(encoder_folder, family):
    pytest.importorskip("peft")
    folder, _ = encoder_folder(family)
    targets = "[queries, keys, values, output, feedforward]"
    made = recipe(folder, f"training.tuning={{kind: lora, rank: 2, dropout: 0.5, targets: {targets}}}")
    plain = started(made)
    models = [made.training.tuning.apply(started(made), [seed]).eval() for seed in (0, 0, 1)]
    one, same, other = (dict(model.named_parameters()) for model in models)
    added = [name for name in one if models[0].is_added(name)]
    assert len(added) == 2 * 2 * 6  # layers; down and up; queries, keys, values, output, two of the feed-forward net
    assert {name for name, p in one.items() if p.pace} == {*added, *(name for name in one if name.startswith("head."))}
    for name in added:
        assert one[name].shape[0] == 1 and torch.equal(one[name], same[name])
        assert torch.equal(one[name], other[name]) == ("lora_B" in name)  # the up projection starts at zero
    ids = torch.tensor([[[2, 5, 6, 11, 3]]])
    assert torch.allclose(models[0](ids), plain(ids), atol=1e-6)
    with torch.enable_grad():
        models[0].train()
        models[0](ids).sum().backward()
    assert all(one[name].grad is not None for name in added)
    for name in added:
        one[name].normal_()
    assert not torch.allclose(models[0].eval()(ids), plain(ids), atol=1e-3)
