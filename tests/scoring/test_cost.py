"""Counts of operations equal torch's, where torch can count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.models.classifier import ClassifierSpec
from headway.models.language_model import LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.scoring.cost import count_parameters, peak_flops


@pytest.mark.parametrize("feedforward", ["gelu", "swiglu", {"kind": "relu", "hidden": 10}])
@pytest.mark.parametrize("tied", [True, False])
def test_operations_equal_torchs_count(feedforward, tied: bool):
    settings = {"layers": 3, "width": 32, "context": 16, "tied": tied, "feedforward": feedforward}
    spec = LanguageModelSpec.model_validate({**settings, "mixer": {"heads": 2, "backend": "plain"}})
    model = spec.build(vocabulary=50)
    ids = torch.zeros(1, 2, 16, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(ids)
    assert counter.get_total_flops() == ids.numel() * spec.forward_flops_per_token(50, 16)


@pytest.mark.parametrize("head", [{"kind": "relu", "hidden": 10}, "tanh"])
def test_operations_of_a_classifier_equal_torchs_count(head):
    settings = {"layers": 2, "width": 32, "context": 16, "head": head, "mixer": {"heads": 2, "backend": "plain"}}
    spec = ClassifierSpec.model_validate(settings)
    model = spec.build(vocabulary=50, classes=5)
    ids = torch.zeros(1, 3, 16, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(ids)
    assert counter.get_total_flops() == 3 * spec.forward_flops_per_row(5, 16)


def test_peaks_are_known_by_name():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA L40S") == 362e12 and peak_flops("NVIDIA L4") == 121e12
    assert peak_flops("cpu") is None


@pytest.mark.parametrize("positions", ["learned", "rotary", "t5"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_by_four_conventions(positions: str, tied: bool):
    """By hand: width 8, 2 layers, 10 tokens, a context of 6, a feed-forward net of 16."""
    settings = {"layers": 2, "width": 8, "context": 6, "tied": tied, "feedforward": {"kind": "gelu", "hidden": 16}}
    spec = LanguageModelSpec.model_validate({**settings, "positions": positions, "mixer": {"heads": 2}})
    counts = count_parameters(spec.build(vocabulary=10, seeds=(0, 1)))
    matrices, table = 2 * (4 * 8 * 8 + 2 * 8 * 16), 10 * 8
    learnt = {"learned": 6 * 8, "rotary": 0}.get(positions)
    if learnt is None:
        learnt = counts.everything - counts.without_positions
        assert learnt > 0
    assert counts.without_embeddings == counts.everything - learnt - table
    assert counts.without_positions == counts.everything - learnt
    assert counts.matrices == matrices + table  # the output matrix, whether tied or not
    assert counts.everything - counts.without_positions == learnt
    assert counts.without_embeddings > matrices + (0 if tied else table)  # norms and biases


def test_training_flops_follow_from_the_matrices():
    """Without attention's scores, training FLOPs per token are 6 times the parameters of the matrices."""
    spec = LanguageModelSpec.model_validate({"layers": 2, "width": 8, "context": 6, "mixer": {"heads": 2}})
    scores = spec.layers * 2 * 2 * 6 * 8
    per_token = spec.forward_flops_per_token(10, 6)
    assert 6 * count_parameters(spec.build(10)).matrices == 3 * (per_token - scores)


@pytest.mark.parametrize(("mixer", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_recurrences_by_hand(mixer: str, gates: int):
    """Where torch cannot count: per gate, a token is multiplied by an input matrix and a state matrix."""
    settings = {"layers": 1, "width": 8, "context": 6, "mixer": mixer, "feedforward": "none", "norm": "none"}
    spec = LanguageModelSpec.model_validate({**settings, "positions": "none"})
    assert spec.forward_flops_per_token(10, 6) == 2 * (gates * 2 * 8 * 8 + 8 * 10)
    assert count_parameters(spec.build(10)).matrices == gates * 2 * 8 * 8 + 8 * 10


@pytest.mark.parametrize(
    ("segment", "window", "memory"), [(8, 3, 0), (8, 8, 0), (8, 99, 0), (6, 4, 5), (5, 9, 3), (4, 1, 2)]
)
def test_only_pairs_within_a_window_are_counted(segment, window, memory):
    near = torch.arange(segment)[:, None] - torch.arange(-memory, segment)
    pairs = int((near.abs() < window).sum())
    alone = AttentionSpec(heads=1, memory=memory, window=window).flops_per_token(4, segment)
    assert alone == 2 * (4 * 16 + 3 * 16 * memory // segment) + 4 * 4 * pairs // segment
    if window > segment + memory:
        assert alone == AttentionSpec(heads=1, memory=memory).flops_per_token(4, segment)
