"""The model part of a recipe."""

from typing import Annotated

from headway.core.spec import CHOSEN_BY_KIND, OR_BY_NAME
from headway.models.classifier import ClassifierSpec
from headway.models.language_model import LanguageModelSpec

ModelSpec = Annotated[LanguageModelSpec | ClassifierSpec, CHOSEN_BY_KIND, OR_BY_NAME]
