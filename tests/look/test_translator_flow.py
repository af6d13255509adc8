"""How far gradients reach in translators, along the target and from the end of the source: compared with autograd, one
pair at a time, and with models whose gradients are known."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from captioned import TREE as OF_PICTURES
from tiny import cache_in

from headway import tasks
from headway.answers.verbs import checked
from headway.core.errors import UserError
from headway.data.pairs.dataset import PairedTexts
from headway.data.pairs.dataset import Side as TextSide
from headway.experiment.inspect import flow_in
from headway.experiment.train import train
from headway.look.flow_page import FlowOfArm, FlowPage
from headway.look.gradient_flow import gradient_flow
from headway.look.gradient_rows import long_pairs
from headway.nn.mixer import Mixer, MixerSpec
from headway.nn.taps import intervene, tap_names
from headway.recipe.recipe import Recipe, from_tree
from headway.tasks.abilities import FollowsGradients

WORDS = ["salt", "ship", "wave", "sail", "bird", "wing", "star", "mud", "root", "old"]
S, T = 6, 7
"""The number of tokens, with END, that half of the sources and half of the targets have at least."""
RECURRENT = ("model.positions=none", "model.first_state=encoder")
ADDITIVE = "model.cross={kind: attention, heads: 1, similarity: additive}"
TWO_STACKS = {
    "attention": (),
    "post-norm": ("model.norm={kind: layer, placement: post}", "model.tied=all"),
    "gru": ("model.mixer=gru", "model.encoder_mixer={kind: gru, bidirectional: true}", ADDITIVE, *RECURRENT),
    "lstm": ("model.mixer=lstm", "model.norm=none", "model.feedforward=none", *RECURRENT),
    "rnn": ("model.mixer=rnn", "model.positions=none", "model.encoder_layers=1"),
}
ONE_ROW = {
    "prefix": ("model.mask=prefix",),
    "causal": ("model.mask=causal", "model.loss_on=all"),
    "lstm alone": ("model.mask=causal", "model.mixer=lstm", "model.positions=none"),
}


def texts(k: int) -> tuple[str, str]:
    """Sources of four to six words; most targets have one more."""
    source = [WORDS[(k * k + j) % 10] for j in range(4 + k % 3)]
    return " ".join(source), " ".join([*source[::-1], *["old"] * (k % 4 != 3)])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("pairs")
    for split, count, begin in (("train", 40, 0), ("valid", 12, 100), ("test", 5, 200)):
        rows = ["\t".join(texts(k)) for k in range(begin, begin + count)]
        (home / f"{split}.tsv").write_text("\n".join(rows) + "\n", "utf-8")
    with cache_in(home / "cache"):
        yield home


def recipe(home, *changes: str, kind: str = "encoder-decoder") -> Recipe:
    tree = {
        "data": {"kind": "pairs", "source": "files", "path": str(home), "tokenizer": "word", "exact": True},
        "model": {"kind": kind, "layers": 2, "width": 8, "context": 12, "mixer": {"heads": 2}},
        "training": {"duration": "1 step", "batch": 4, "device": "cpu"},
    }
    return from_tree(tree, "test", overrides=changes)


def task_and_model(home, *changes: str, kind: str = "encoder-decoder") -> tuple[Any, Any]:
    task = tasks.load(recipe(home, *changes, kind=kind))
    model = task.build([3], "cpu").eval()
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():  # so that nothing is close to zero or one, as in a fresh model
            weight.add_(0.2 * torch.randn(weight.shape, generator=drawn))
    return task, model


def long_texts(task) -> list[tuple[list[int], list[int], int]]:
    """The source with END, the target so far, and the token to predict, for all pairs that are long enough."""
    valid, found = task.data.split("valid"), []
    for source, target in zip(valid.source.texts, valid.target.texts, strict=True):
        ids = [
            one.encode(text).ids.tolist()
            for one, text in ((task.data.tokenizer, source), (task.data.target_tokenizer, target))
        ]
        read, said = [*ids[0], task.data.tokenizer.size], [*ids[1], task.data.target_tokenizer.size]
        if len(read) >= S and len(said) >= T:
            found.append((read, [task.data.target_tokenizer.size, *said[: T - 1]], said[T - 1]))
    return found


def by_hand(model, read, known, asked, taps):
    """The norms of ∂loss with respect to the outputs of these taps, and the typical norms of ∂top_t."""
    leaves, top = [], []

    def put(module, given, out):
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    hooks = [tap.register_forward_hook(put) for tap in taps]
    hooks.append(model.layers[-1].stream.register_forward_hook(lambda module, given, out: top.append(out)))
    said = model(torch.tensor(read)[None, None], torch.tensor(known)[None, None])
    for hook in hooks:
        hook.remove()
    loss = -said[0, 0, -1].log_softmax(-1)[asked]
    slopes = torch.autograd.grad(loss, leaves, retain_graph=True)
    rows = [torch.autograd.grad(y, leaves, retain_graph=True) for y in top[-1][0, 0, -1]]
    norms = [
        torch.stack([row[k][0, 0] for row in rows]).norm(dim=(0, 2)) / len(rows) ** 0.5 for k in range(len(leaves))
    ]
    return [slope[0, 0].norm(dim=-1) for slope in slopes], norms


def mean(found: list[torch.Tensor], tokens: int) -> list[float]:
    """Means by distance from the end of each."""
    return torch.stack([one.flip(0)[:tokens] for one in found]).mean(0).tolist()


@pytest.mark.parametrize("changes", TWO_STACKS.values(), ids=TWO_STACKS)
def test_encoder_and_decoder_each_have_their_own_side(home, changes):
    task, model = task_and_model(home, *changes)
    pairs = long_texts(task)
    flow = gradient_flow(model, task.followed("valid", 32))
    found = [by_hand(model, *pair, (model.encoder.embedded, model.embedded)) for pair in pairs]
    assert len(flow.rows.rows) == len(pairs) == 7 and flow.source is not None
    assert {len(pair[0]) for pair in pairs} == {6, 7}  # sources are not truncated, and distances end with the shortest
    assert flow.source.losses == pytest.approx(mean([losses[0] for losses, _ in found], S), rel=1e-4)
    assert flow.own.losses == pytest.approx(mean([losses[1] for losses, _ in found], T), rel=1e-4)
    few = [norms for _, norms in found][:: len(found) // 4][:4]
    assert flow.source.streams["embedded"].typical == pytest.approx(mean([one[0] for one in few], S), rel=1e-4)
    assert flow.own.streams["embedded"].typical == pytest.approx(mean([one[1] for one in few], T), rel=1e-4)
    layers = len(model.encoder.layers)
    assert list(flow.source.streams) == ["embedded", *(f"layers.{k}.stream" for k in range(layers))]
    assert list(flow.own.streams) == ["embedded", "layers.0.stream"]
    assert len(flow.source.hidden) == (layers if "model.positions=none" in changes else 0)


@pytest.mark.parametrize("changes", ONE_ROW.values(), ids=ONE_ROW)
def test_in_a_decoder_only_translator_gradients_reach_through_the_target_into_the_source(home, changes):
    """By autograd in two passes, the source first: its END is the first token of the second, and the slot it leaves
    free is padding."""
    task, model = task_and_model(home, *changes, kind="decoder-only")
    flow = gradient_flow(model, task.followed("valid", 32))
    found = [by_hand(model, *pair, (model.embedded,)) for pair in long_texts(task)]
    losses, norms = ([torch.cat((parts[0][1:], parts[1])) for parts in one] for one in zip(*found, strict=True))
    few = norms[:: len(norms) // 4][:4]
    assert flow.source is not None and flow.own.tokens == S + T - 1
    assert flow.own.losses == pytest.approx(mean(losses, S + T - 1), rel=1e-4)
    assert flow.source.losses == pytest.approx(mean([one[: 1 - T] for one in losses], S), rel=1e-4)
    assert flow.own.streams["embedded"].typical == pytest.approx(mean(few, S + T - 1), rel=1e-4)
    assert flow.source.streams["embedded"].typical == pytest.approx(mean([one[: 1 - T] for one in few], S), rel=1e-4)
    assert flow.source.hidden == {} and len(flow.own.hidden) == (2 if "model.mixer=lstm" in changes else 0)
    assert any(f"END is {T - 1} tokens before t" in note for note in flow.notes)


@pytest.mark.parametrize(
    "kind, changes", [("encoder-decoder", TWO_STACKS["gru"]), ("decoder-only", ONE_ROW["lstm alone"])]
)
def test_hidden_states_are_those_of_the_forward_pass(home, kind, changes):
    """For a decoder whose first state is the encoder's last, and for a row that begins with an empty slot."""
    task, model = task_and_model(home, *changes, kind=kind)
    rows = task.followed("valid", 32).few(1)
    mixer, given = model.layers[0].mixer, []
    hook = mixer.register_forward_pre_hook(lambda module, args: given.append(args))
    rows.read(model, rows.rows[0])
    hook.remove()
    x, context, first = given[0]
    x, plain = x[:, :, 1 if first is None else 0 :].detach(), replace(context, padding_mask=None)

    def typical(s: int) -> float:
        before = mixer.advance(x[:, :, : s + 1], plain, first)

        def last(*parts):
            state = dict(zip(before, parts, strict=True))
            after = mixer.advance(x[:, :, s + 1 :], plain, state) if s + 1 < x.shape[2] else state
            return torch.cat(list(after.values()), -1)[0, 0]

        parts: Any = torch.autograd.functional.jacobian(last, tuple(part.detach() for part in before.values()))
        whole = torch.cat([part[:, 0, 0] for part in parts], -1)
        return float(whole.norm()) / len(whole) ** 0.5

    (name, state), *_ = gradient_flow(model, rows).own.hidden.items()
    expected = [typical(x.shape[2] - 1 - distance) for distance in range(rows.own.tokens)]
    assert name.startswith("layers.0.") and (first is None) == (kind == "decoder-only")
    assert state.norms.typical == pytest.approx(expected, rel=1e-4)


# --- known gradients -------------------------------------------------------------------------------------------------


class DeafSpec(MixerSpec):
    """A cross-attention that ignores its source."""

    kind: Literal["deaf"] = "deaf"

    @property
    def why_no_cross(self) -> None:
        return None

    def build(self, replicas, width, out_gain, needs):
        raise NotImplementedError

    def build_cross(self, replicas, width, out_gain, needs):
        return Deaf()

    def flops_per_token(self, width, segment):
        return 0


class Deaf(Mixer):
    def forward(self, x, context, state=None):
        return torch.zeros_like(x), None


@pytest.mark.parametrize("cross", ["zeros", "deaf"])
def test_a_decoder_that_ignores_its_source_has_zero_gradients_there(home, cross):
    task, model = task_and_model(home, *(["model.cross=deaf"] if cross == "deaf" else []))
    if cross == "zeros":
        for layer in model.layers:
            layer.cross.output.weight.data.zero_()
            layer.cross.output.bias.data.zero_()
    flow = gradient_flow(model, task.followed("valid", 32))
    assert flow.source is not None and set(flow.source.losses) == {0.0}
    assert {norm for norms in flow.source.streams.values() for norm in norms.typical} == {0.0}
    assert all(length > 0 for length in flow.own.losses)
    assert any("the source has no effect on the loss" in note for note in flow.notes)
    drawn = FlowPage([FlowOfArm("deaf", [flow])], "valid").draw()
    assert [chart.across for chart in drawn.charts] == ["distance t − s"] * 2


def test_a_recurrence_alone_forgets_the_source_and_attention_does_not(home):
    """h' = tanh(x + h/2) at least halves earlier gradients at every step. Attention with zero queries attends uniformly
    to the whole source, however far away."""
    plain = ("model.layers=1", "model.norm=none", "model.feedforward=none", "model.positions=none")
    task, alone = task_and_model(home, *plain, "model.mixer=rnn", "model.mask=causal", kind="decoder-only")
    with torch.no_grad():
        alone.layers[0].mixer.along.input.weight.copy_(torch.eye(8)[None])
        alone.layers[0].mixer.along.recurrent.copy_(0.5 * torch.eye(8)[None])
    forgets = gradient_flow(alone, task.followed("valid", 32)).source
    task, looking = task_and_model(home, "model.layers=1", "model.positions=none")
    with intervene(looking, {tap: torch.zeros_like for tap in tap_names(looking) if tap.endswith("attention.queries")}):
        sees = gradient_flow(looking, task.followed("valid", 32)).source
    assert forgets is not None and sees is not None
    for distance in range(S - 1):
        assert forgets.losses[distance + 1] < 0.75 * forgets.losses[distance]
    assert forgets.losses[-1] < 0.6 ** (S - 1) * forgets.losses[0]
    assert max(sees.losses[1:]) < 2 * min(sees.losses[1:])


# --- options ---------------------------------------------------------------------------------------------------------


def test_distances_end_with_the_longer_side(home):
    task, model = task_and_model(home)
    rows = task.followed("valid", 32)
    flow = gradient_flow(model, rows, distance=6)
    assert flow.source is not None and (len(flow.own.losses), len(flow.source.losses)) == (7, 6)
    flow = gradient_flow(model, rows, distance=2)
    assert flow.source is not None and (len(flow.own.losses), len(flow.source.losses)) == (3, 3)
    sides = (
        "sources of 'valid' have no more than 6 tokens and half of the targets of 'valid' have no more than 7 tokens"
    )
    with pytest.raises(UserError, match=f"half of the {sides}, so distances go from 1 to 6"):
        gradient_flow(model, rows, distance=7)
    with pytest.raises(UserError, match="2 replicas"):
        gradient_flow(task.build([0, 1], "cpu"), rows)


def pairs_of(sources: list[int], targets: list[int]) -> PairedTexts:
    """Pairs with these numbers of tokens, including END."""
    source, target = (
        TextSide([""] * len(n), np.zeros(sum(n) - len(n), np.int32), np.cumsum(n) - np.arange(1, len(n) + 1), 9)
        for n in (sources, targets)
    )
    return PairedTexts(source, target, np.zeros(len(sources), np.bool_))


def test_both_sides_of_a_pair_count():
    found = long_pairs(pairs_of([2, 5, 5, 6, 7, 6, 7, 8, 30], [9, 4, 4, 3, 5, 4, 4, 4, 4]), 9, 3, "valid")
    assert (found.source, found.target) == (6, 4)
    assert [(row.source.shape[2], row.ids.shape[2]) for row in found.rows if row.source is not None] == [
        (7, 4),
        (6, 4),
        (8, 4),
    ]
    with pytest.raises(UserError, match=r"there are 2 pairs of 'valid' .* 7 tokens or more in the source and 7 in the"):
        long_pairs(pairs_of([2, 2, 7, 7, 7, 7], [7, 7, 7, 7, 2, 2]), 9, 32, "valid")
    with pytest.raises(UserError, match=r"there are 0 pairs of 'valid' that the model can read \(9 tokens"):
        long_pairs(pairs_of([20] * 6, [20] * 6), 9, 32, "valid")
    with pytest.raises(UserError, match="half of the targets of 'valid' have a single token"):
        long_pairs(pairs_of([5] * 6, [1] * 6), 9, 32, "valid")


def test_both_kinds_of_translators_are_drawn_together(home, tmp_path):
    arms = []
    for kind, changes in (("encoder-decoder", ()), ("decoder-only", ONE_ROW["lstm alone"])):
        task, model = task_and_model(home, "model.layers=1", *changes, kind=kind)
        arms.append(FlowOfArm(kind, [gradient_flow(model, task.followed("valid", 4))]))
    page = FlowPage(arms, "valid")
    told = checked("look", {"show": "gradient-flow", **page.as_json(), "file": None})
    runs = [arm["runs"][0] for arm in told["arms"]]
    assert [(run["tokens"], run["source"]["tokens"]) for run in runs] == [(T, S), (S + T - 1, S)]
    drawn = page.draw()
    assert [chart.across for chart in drawn.charts[:4]] == ["distance t − s", "distance from the end of the source"] * 2
    assert [curve.name for curve in drawn.charts[1].curves] == ["encoder-decoder", "decoder-only"]
    assert {"loss", "source: loss", "source: embedded", "layers.0.lstm"} <= {row[1] for row in page.table.rows}
    for ending in ("html", "svg", "png"):
        assert drawn.save(tmp_path / f"flow.{ending}").stat().st_size > 1000


def test_the_gradient_flow_of_a_run(home, tmp_path):
    (run,) = train([recipe(home, "model.layers=1", "scoring.splits=[valid]")], ["translator"], tmp_path)
    flow = flow_in(run, distance=3)
    assert flow.source is not None and len(flow.own.losses) == len(flow.source.losses) == 4
    with pytest.raises(UserError, match="there are 3 pairs of 'test'"):
        flow_in(run, "test")


def test_a_picture_model_is_refused_with_alternatives():
    run: Any = SimpleNamespace(name="pictures", recipe=from_tree(OF_PICTURES, "test", overrides=["data.path=here"]))
    with pytest.raises(
        UserError, match=r"only possible with .*translators, but pictures is a clip; try headway match pictures"
    ):
        tasks.able(run, FollowsGradients)
