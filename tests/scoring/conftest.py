import pytest
import torch

from headway.models.language_model import LanguageModel, LanguageModelSpec
from headway.nn.attention import AttentionSpec
from headway.nn.heads import Concat
from headway.nn.positions import Learned

V, CONTEXT = 11, 8


@pytest.fixture
def model():
    """Small models with large weights: fresh weights give nearly uniform predictions, which would hide mistakes."""

    def make(positions=None, fusion=None, seeds=(0,), context: int = CONTEXT, vocabulary: int = V) -> LanguageModel:
        mixer = AttentionSpec(heads=2, fusion=fusion or Concat())
        spec = LanguageModelSpec(layers=2, width=8, context=context, mixer=mixer, positions=positions or Learned())
        made = spec.build(vocabulary, seeds)
        generator = torch.Generator().manual_seed(9)
        with torch.no_grad():
            for p in made.parameters():
                p.add_(torch.randn(p.shape, generator=generator))
        return made.eval()

    return make


@pytest.fixture
def uniform(model):
    """A model that gives every token about the same probability."""

    def make(**settings) -> LanguageModel:
        made = model(**settings)
        with torch.no_grad():
            for p in made.parameters():
                p.zero_()
        return made

    return make
