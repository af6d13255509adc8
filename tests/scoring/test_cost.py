"""The count of operations is torch's own, where torch can count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.models.classifier import ClassifierSpec
from headway.models.language_model import LanguageModelSpec
from headway.scoring.cost import peak_flops


@pytest.mark.parametrize("feedforward", ["gelu", "swiglu", {"kind": "relu", "hidden": 10}])
@pytest.mark.parametrize("tied", [True, False])
def test_operations_are_those_torch_counts(feedforward, tied: bool):
    settings = {"layers": 3, "width": 32, "context": 16, "tied": tied, "feedforward": feedforward}
    spec = LanguageModelSpec.model_validate({**settings, "mixer": {"heads": 2, "backend": "plain"}})
    model = spec.build(vocabulary=50)
    ids = torch.zeros(1, 2, 16, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(ids)
    assert counter.get_total_flops() == ids.numel() * spec.forward_flops_per_token(50, 16)


@pytest.mark.parametrize("head", [{"kind": "relu", "hidden": 10}, "tanh"])
def test_operations_of_a_classifier_are_those_torch_counts(head):
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
