"""Which losses gradients are taken of, and of which rows: compared with autograd, one text at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import cache_in

from headway import tasks
from headway.core.errors import UserError
from headway.experiment.inspect import flow_in
from headway.experiment.train import train
from headway.look.flow_page import FlowOfArm, FlowPage
from headway.look.gradient_flow import gradient_flow
from headway.look.gradient_rows import GradientRows, GradientSide, long_enough, rows_of, some_of
from headway.look.state_flow import hidden_states
from headway.models.classifier import ClassifierSpec
from headway.recipe.recipe import Recipe, from_tree

WORDS = ["salt", "ship", "wave", "sail", "bird", "wing", "star", "mud", "root", "old"]
LSTM = ("model.mixer={kind: lstm}", "model.positions=none", "model.pooling=last")
BOTH_WAYS = ("model.mixer={kind: lstm, bidirectional: true}", "model.positions=none")


def texts(count: int, begin: int) -> list[str]:
    """Texts of three to seven words; half of them have five or more."""
    return [" ".join(WORDS[(k * k + j) % 10] for j in range(3 + k % 5)) for k in range(begin, begin + count)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("followed")
    for split, count, begin in (("train", 60, 0), ("valid", 25, 100), ("test", 6, 200)):
        rows = [f"{text}\t{'ab'[len(text) % 2]}" for text in texts(count, begin)]
        (home / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")
    (home / "text.txt").write_text("\n".join(texts(80, 0)), "utf-8")
    with cache_in(home / "cache"):
        yield home


def classifier(home: Path, *changes: str) -> Recipe:
    tree = {
        "data": {"kind": "labelled", "source": "files", "path": str(home)},
        "model": {"kind": "classifier", "layers": 2, "width": 8, "context": 6, "mixer": {"heads": 2}},
        "training": {"duration": "1 step", "batch": 4, "device": "cpu"},
    }
    return from_tree(tree, "test", overrides=changes)


def by_hand(model, ids, loss, t):
    """‖∂loss/∂x_s‖ of one text, and ‖∂top_t/∂x_s‖, by distance from t."""
    kept: dict[str, torch.Tensor] = {}

    def embed(module, given, out):
        kept["x"] = out.detach().requires_grad_()
        return kept["x"]

    hooks = [
        model.embedded.register_forward_hook(embed),
        model.layers[-1].stream.register_forward_hook(lambda module, given, out: kept.__setitem__("top", out)),
    ]
    nats = loss(model(torch.as_tensor(ids)[None, None]))
    for hook in hooks:
        hook.remove()
    (slope,) = torch.autograd.grad(nats, kept["x"], retain_graph=True)
    rows = [torch.autograd.grad(y, kept["x"], retain_graph=True)[0][0, 0] for y in kept["top"][0, 0, t]]
    jacobian = torch.stack(rows)[:, : t + 1]  # [D, t + 1, D]
    return slope[0, 0, : t + 1].norm(dim=-1).flip(0), (jacobian.norm(dim=(0, 2)) / len(rows) ** 0.5).flip(0)


@pytest.mark.parametrize("changes", [(), LSTM, BOTH_WAYS], ids=["attention", "lstm", "both ways"])
def test_for_a_classifier_the_loss_is_that_of_the_label(home, changes):
    task = tasks.load(classifier(home, *changes))
    valid, T = task.data.split("valid"), 5
    long = [k for k in range(25) if len(valid.texts[k].split()) >= T]
    model = task.build([3], "cpu").eval()
    rows = task.followed("valid", 32)  # pyright: ignore[reportAttributeAccessIssue]
    flow = gradient_flow(model, rows)
    losses, streams = [], []
    for k in long:
        ids = task.data.tokenizer.encode(" ".join(valid.texts[k].split()[:T])).ids
        label = torch.tensor(valid.labels[k])
        found = by_hand(model, ids, lambda said, label=label: -said[0, 0].log_softmax(-1)[label], T - 1)
        losses.append(found[0])
        streams.append(found[1])
    assert [row.ids.shape for row in rows.rows] == [(1, 1, T)] * 15 and len(long) == 15
    assert flow.own.losses == pytest.approx(torch.stack(losses).mean(0).tolist(), rel=1e-4)
    few = torch.stack(streams)[:: len(long) // 4][:4]
    assert flow.own.streams["embedded"].typical == pytest.approx(few.mean(0).tolist(), rel=1e-4)
    assert len(flow.own.hidden) == (2 if changes else 0)


def test_of_a_bidirectional_recurrence_the_forward_direction_is_followed():
    """A forward-only recurrence with the same weights has the same Jacobians."""
    one_way = {"layers": 1, "width": 8, "context": 6, "positions": "none", "mixer": {"kind": "lstm"}}
    both_ways = {**one_way, "mixer": {"kind": "lstm", "bidirectional": True, "hidden": 8}}
    models = [ClassifierSpec.model_validate(spec).build(11, 2).eval() for spec in (one_way, both_ways)]
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    ids = torch.randint(11, (1, 2, 5), generator=torch.Generator().manual_seed(0))
    rows = GradientRows(rows_of(ids, ids), GradientSide(5), lambda model, row: row.target, "", "", "")
    ours, theirs = (hidden_states(model, rows)[0]["layers.0.lstm"] for model in models)
    assert theirs.units == 16 and theirs.norms.typical == pytest.approx(ours.norms.typical)
    assert theirs.norms.typical[1] != pytest.approx(1.0)
    assert ours.part is None and theirs.part is not None


def test_for_a_masked_model_the_loss_is_that_of_the_last_token_masked(home):
    tree = {
        "data": {"source": "files", "path": str(home / "text.txt"), "tokenizer": "word", "batches": "lines"},
        "model": {"kind": "masked-language-model", "layers": 1, "width": 8, "context": 16, "mixer": {"heads": 2}},
    }
    task = tasks.load(from_tree(tree, "test"))
    model, marks = task.build([3], "cpu").eval(), task.data.tokenizer.marks
    assert marks is not None
    rows = task.followed("train", 4)  # pyright: ignore[reportAttributeAccessIssue]
    t = rows.own.tokens - 1
    for row in rows.rows:
        assert row.ids.shape[2] == t + 2 and row.ids[0, 0, t:].tolist() == [marks.mask, marks.sep]
    losses = [
        by_hand(model, row.ids[0, 0], lambda said, row=row: -said[0, 0, t].log_softmax(-1)[row.target[0, 0]], t)[0]
        for row in rows.rows
    ]
    flow = gradient_flow(model, rows)
    assert flow.own.losses == pytest.approx(torch.stack(losses).mean(0).tolist(), rel=1e-4)
    assert len(flow.own.streams["embedded"].typical) == t + 1


def test_too_few_or_too_short_texts(home):
    task = tasks.load(classifier(home))
    with pytest.raises(UserError, match=r"3 texts of 'test' .* at least 4 are needed for a mean: name another --split"):
        task.followed("test", 32)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UserError, match="half of the texts have a single token"):
        long_enough(np.array([1, 1, 1, 1, 1, 9]), 16, "texts")
    cut = long_enough(np.array([2, 9, 30, 31, 32, 33, 34]), 16, "texts")
    assert cut.tokens == 16 and cut.fit.tolist() == [2, 3, 4, 5, 6] and "reads 16 tokens" in cut.ends
    assert some_of(cut.fit, 4, "texts").tolist() == [2, 3, 4, 6]


def test_segments_of_a_single_token(home):
    tree = {"data": {"source": "files", "path": str(home / "text.txt"), "tokenizer": "word", "segment": 1}}
    with pytest.raises(UserError, match="segments of a single token"):
        tasks.load(from_tree(tree, "test")).followed("train", 4)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_page_of_a_run_names_the_loss(home):
    (last,) = train([classifier(home, *LSTM)], ["last"], home / "runs")
    (mean,) = train([classifier(home)], ["mean"], home / "runs")
    page = FlowPage([FlowOfArm(run.name, [flow_in(run, distance=3)]) for run in (last, mean)], "valid")
    assert [len(arm.seeds[0].own.losses) for arm in page.arms] == [4, 4]
    notes = " | ".join(page.draw().notes)
    assert "the loss is that of the label" in notes and "mean: pooling by mean reaches every token directly" in notes
    assert "the label of the text" in page.draw().charts[0].caption and "15 texts of 5 tokens" in page.draw().subtitle
    with pytest.raises(UserError, match="no more than 5 tokens, so distances go from 1 to 4"):
        flow_in(mean, distance=5)
