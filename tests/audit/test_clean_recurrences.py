"""No audit fails or warns on recurrences and hybrids without faults, and their faults are found."""

from dataclasses import replace

import pytest
from examined import OF_WEIGHTS, examine, fresh

from headway.audit.models.learning import _Attempt, initial_loss, one_batch
from headway.audit.models.recurrences import recurrences
from headway.audit.runner import audit_model
from headway.models.encoder import EncoderSpec

CHAIN = ("model.norm=none", "model.feedforward=none", "model.positions=none")
DECODERS = {
    "lstm": ("model.mixer=lstm", *CHAIN),
    "gru": ("model.mixer={kind: gru, hidden: 24}", *CHAIN, "model.dropout=0.2", "model.noise=locked"),
    "punished": (
        *("model.mixer=lstm", *CHAIN, "model.noise={kind: locked, output: 0.3}"),
        "model.penalty={size: 2, change: 1}",
    ),
    "rnn": ("model.mixer={kind: rnn, weight_dropout: 0.2}", *CHAIN, "model.noise={words: 0.1}"),
    "relu": ("model.mixer={kind: rnn, nonlinearity: relu}", "model.positions=none", "model.noise={words: 0.5}"),
    "sigmoid": ("model.mixer={kind: rnn, nonlinearity: sigmoid, bias: false}", "model.positions=learned"),
    "mingru": ("model.mixer=mingru", *CHAIN, "model.output_bias=true"),
    "lstm, attention": ("model.mixer=[lstm, {heads: 4}]", "model.positions=learned"),
    "memory": ("model.mixer.memory=24", "model.positions=t5"),
    "memory, dropped": ("model.mixer.memory=24", "model.positions=alibi", "model.mixer.dropout=0.3"),
    "short memories": ("model.mixer=[{heads: 2, memory: 3}, {heads: 4, memory: 1}]", "model.positions=alibi"),
    "lstm, memory": ("model.mixer=[lstm, {heads: 4, memory: 40}]", "model.positions=none"),
    "attention, lstm": ("model.mixer=[{heads: 4}, {kind: lstm, forget_bias: -1.0}]", "model.positions=sinusoidal"),
}
ENCODERS = {
    "lstm": ("model.mixer=lstm", *CHAIN, "model.pooling=last"),
    "two ways": ("model.mixer={kind: gru, bidirectional: true}", "model.positions=none", "model.pooling=mean"),
    "mingru": ("model.mixer={kind: mingru, bidirectional: true, hidden: 20}", *CHAIN, "model.pooling=max"),
    "hybrid": (
        "model.mixer=[{kind: lstm, bidirectional: true}, attention]",
        "model.pooling=first",
        "model.positions=none",
    ),
}
SMALL = "model.layers=2", "model.width=32", "model.context=32"
MODELS = [*DECODERS.values(), *(("model.kind=classifier", *SMALL, *changes) for changes in ENCODERS.values())]


def alarms(*changes: str, steps: int = 0, audits=OF_WEIGHTS) -> list[str]:
    report = audit_model(examine(*changes, steps=steps), audits)
    return [f"{f.verdict} {f.audit}: {f.sentence}" for f in report.findings if f.verdict != "pass"]


@pytest.mark.parametrize("changes", MODELS, ids=lambda changes: changes[0] + changes[1])
def test_no_alarm_on_recurrences_fresh_or_trained(changes: tuple[str, ...]):
    assert alarms(*changes, steps=8) == []


def test_pretrained_matrices_may_have_any_scale(monkeypatch):
    probe = examine("model.kind=classifier", *SMALL, *ENCODERS["two ways"])

    def fine_tuned():
        model = fresh(probe.recipe)
        for name, p in model.named_parameters():
            p.data *= 1.5 if name.endswith(("along.input.weight", "along.recurrent")) else 1
        return model

    started = replace(probe, fresh=fine_tuned)
    drawn = [one.what for one in recurrences(started) if one.off > 0.1]
    assert len(drawn) == 4 and all("the initial scale" in what for what in drawn)  # two matrices in each of two layers
    monkeypatch.setattr(EncoderSpec, "starts_random", False)
    assert max(one.off for one in recurrences(started)) < 1e-3


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "mingru"])
def test_a_plain_recurrent_net_can_learn(kind: str):
    changes = (f"model.mixer={kind}", *CHAIN, "training.optimizer.learning_rate=1e-2")
    assert alarms(*changes, audits=(initial_loss, one_batch)) == []


def test_a_loss_that_every_step_lowers_is_still_falling():
    steep = [2 + 2.5 * 0.88**k for k in range(31)]  # then slower, but steadily
    assert _Attempt([*steep, *(steep[-1] - 0.01 * k for k in range(1, 11))]).is_falling
    assert not _Attempt([*steep, *(steep[-1] - 0.01 * (k + 2 * (k % 2)) for k in range(1, 11))]).is_falling
    assert not _Attempt([*steep, *(steep[-1] - 0.001 * k for k in range(1, 11))]).is_falling


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([1.0 - 0.01 * step for step in range(41)], "warn"),  # slow, but not at fault
        ([1.0, *[0.8] * 40], "fail"),
        ([1.0, 0.7, 0.4], "fail"),  # of the rate
    ],
    ids=["slow", "plateau", "learns"],
)
def test_a_plateau_is_the_fault_of_the_architecture_only_if_other_rates_do_no_better(others, verdict, monkeypatch):
    attempts = iter([[1.0, *[0.6] * 40], *[others] * 3])
    monkeypatch.setattr("headway.audit.models.learning._learn", lambda *given, **named: _Attempt(next(attempts)))
    (finding,) = audit_model(examine(), (one_batch,)).findings
    assert finding.verdict == verdict
    assert ("cannot be learnt" in finding.sentence) == (others[-1] == 0.8)
