"""No audit fails or warns on models without faults: fresh or trained, with every kind of part."""

import pytest
import torch
from examined import OF_WEIGHTS, examine
from pairwise import pairwise

from headway.audit.models.learning import initial_loss, one_batch
from headway.audit.models.moving import moved
from headway.audit.runner import MODEL_AUDITS, audit_model

POSITIONS = ("none", "learned", "sinusoidal", "alibi", "rotary", "t5")
FUSIONS = ("concat", "shuffle", "{kind: shuffle, drawn: every-step}", "shift", "reweight-causal")
NORMS = ("{kind: layer, placement: pre}", "{kind: rms, placement: post}")
OTHERS = (
    (NORMS[0], "model.dropout=0.1", "model.mixer.backend=plain"),
    (NORMS[1], "model.tied=false", "model.mixer.backend=sdpa"),
    (NORMS[1], "model.mixer.window=6", "model.feedforward=swiglu"),
    (NORMS[0], "model.mixer.dropout=0.1", "model.mixer.bias=false"),
    (NORMS[0], "training.optimizer=sgd", "model.feedforward=relu"),
)
STEPS = (0, 12)
LEARNING = (initial_loss, one_batch)


def decoder(position: str, fusion: str, others: tuple[str, ...]) -> tuple[str, ...]:
    norm, *more = others
    return (f"model.positions={position}", f"model.mixer.fusion={fusion}", f"model.norm={norm}", *more)


def encoder(position: str, fusion: str, pooling: str) -> tuple[str, ...]:
    what = ("model.kind=classifier", f"model.pooling={pooling}")
    return (*what, f"model.positions={position}", f"model.mixer.fusion={fusion}")


ENCODERS = [
    (encoder(position, fusion, pooling), steps)
    for position, fusion, pooling, steps in (
        ("none", "concat", "mean", 12),
        ("none", "shift", "first", 0),
        ("none", "concat", "last", 12),
        ("none", "reweight", "max", 0),
        ("learned", "reweight", "mean", 12),
        ("sinusoidal", "concat", "first", 0),
        ("alibi-symmetric", "shuffle", "max", 12),
        ("rotary", "reweight-causal", "mean", 0),
        ("t5-symmetric", "concat", "first", 12),
    )
]
DECODERS = [(decoder(*made), steps) for *made, steps in pairwise(POSITIONS, FUSIONS, OTHERS, STEPS)]
EVERYTHING_ONCE = [decoder(POSITIONS[k], FUSIONS[k % 5], OTHERS[(k + 2) % 5]) for k in range(6)]


def alarms(*changes: str, steps: int, audits=MODEL_AUDITS) -> list[str]:
    report = audit_model(examine(*changes, steps=steps), audits)
    return [f"{f.verdict} {f.audit}: {f.sentence}" for f in report.findings if f.verdict != "pass"]


@pytest.mark.parametrize(("changes", "steps"), DECODERS + ENCODERS, ids=str)
def test_no_alarm_on_models_fresh_and_trained(changes: tuple[str, ...], steps: int):
    assert alarms(*changes, steps=steps, audits=OF_WEIGHTS) == []


@pytest.mark.parametrize("changes", [*EVERYTHING_ONCE, *(made for made, _ in ENCODERS[::3])], ids=" ".join)
def test_no_alarm_in_the_first_steps_of_training(changes: tuple[str, ...]):
    assert alarms(*changes, steps=0, audits=LEARNING) == []


@pytest.mark.parametrize(("position", "steps"), list(zip(POSITIONS, STEPS * 3, strict=True)))
def test_reweighted_heads_see_the_future_and_nothing_else_is_wrong(position: str, steps: int):
    probe = examine("model.mixer.fusion=reweight", f"model.positions={position}", steps=steps)
    report = audit_model(probe, OF_WEIGHTS)
    assert [f.audit for f in report.failures] == ["causality", "causal-gradient"]
    assert "sees the future" in report.failures[0].sentence
    assert "norm" in report.not_run["cache"]


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_shortest_sequences(context: int):
    report = audit_model(examine(f"model.context={context}", "data.segment=1"))
    assert report.failures == report.warnings == []


@pytest.mark.parametrize(
    "changes",
    [
        ("model.context=96",),
        ("data.segment=20", "scoring.segment=70", "model.positions=t5"),
        ("data.segment=40", "scoring.segment=10", "model.context=64", "model.positions=learned"),
        ("model.context=80", "model.mixer.window=12", "model.positions=alibi", "model.mixer.heads=8"),
        ("model.kind=classifier", "model.context=120", "model.positions=sinusoidal"),
    ],
    ids=" ".join,
)
def test_no_alarm_on_long_rows(changes: tuple[str, ...]):
    assert alarms(*changes, steps=3, audits=OF_WEIGHTS) == []


@pytest.mark.parametrize("kind", ["language-model", "classifier"])
@pytest.mark.parametrize("rate", ["3e-4", "1e-1"])
@pytest.mark.parametrize("norm", NORMS)
def test_one_step_of_sgd_moves_little_and_freezes_nothing(kind: str, rate: str, norm: str):
    """Weight decay moves the query weights further than their gradient does."""
    slow = ("training.optimizer=sgd", f"training.optimizer.learning_rate={rate}", "model.layers=4")
    assert alarms(f"model.kind={kind}", f"model.norm={norm}", *slow, steps=1, audits=(moved,)) == []


def test_if_not_every_position_can_be_probed_the_likely_ones_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headway.audit.probe.OPERATIONS", 0)
    monkeypatch.setattr("headway.audit.probe.FEWEST_CUTS", 12)
    probe = examine("data.segment=40", "scoring.segment=100", "model.context=40", "model.positions=none")
    cut = {ids.shape[2]: set(behind.tolist()) for ids, behind, _ in probe.cuts()}
    assert set(cut) == {40, 100}
    for length, behind in cut.items():
        assert len(behind) == 12 and {0, length - 2, length // 2 - 1, 7, 15, 31} <= behind
    assert 39 in cut[100]  # the last position of training sequences


def test_many_steps_leave_a_model_clean():
    """Losses and logits grow in training, and the thresholds grow with them."""
    assert alarms("training.optimizer.learning_rate=1e-2", steps=150) == []


def test_a_model_with_constant_outputs_fails_no_other_audit():
    """Constant outputs have no spread to compare differences with."""
    probe = examine(steps=3)
    with torch.no_grad():
        for layer in probe.model.layers:
            layer.mixer.output.weight.zero_()
            layer.feedforward.output.weight.zero_()
        probe.model.embedding.weight[:] = probe.model.embedding.weight[:, :1] + 1e-6 * probe.model.embedding.weight
    failures = {f.audit for f in audit_model(probe).failures}
    assert "collapsed-answers" in failures and failures <= {"order", "collapsed-answers"}


def test_order_added_to_the_embeddings_is_found_with_last_token_pooling(monkeypatch):
    from headway.models.encoder import Encoder

    honest = Encoder.embed

    def by_slot(self, ids, padding_mask):
        x = honest(self, ids, padding_mask)
        return x + 0.1 * torch.arange(x.shape[2])[:, None] * torch.linspace(-1, 1, x.shape[3])

    monkeypatch.setattr(Encoder, "embed", by_slot)
    told = alarms(*encoder("none", "concat", "last"), steps=0)
    assert any(one.startswith("fail order: there are no positions") for one in told)


CARRIED = ("model.mixer.memory=8", "data.batches=contiguous", "model.positions=alibi")
RARE_TOGETHER = [
    ("model.mixer.fusion={kind: shuffle, drawn: every-step}", *CARRIED),
    ("model.norm=rms", "model.noise={kind: each, words: 0.3}"),
    ("model.kind=classifier", "model.positions=none", "model.mixer.window=3"),
]


@pytest.mark.parametrize("changes", RARE_TOGETHER, ids=str)
def test_no_alarm_on_features_that_are_rarely_combined(changes):
    """Noise with a carried state, dropped words before a norm with the epsilon of its dtype, windows without
    positions: each was once an alarm."""
    assert alarms(*changes, steps=0) == []
