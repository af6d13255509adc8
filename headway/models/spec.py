"""The model part of a recipe."""

from typing import Annotated

from headway.models.classifier import ClassifierSpec
from headway.models.language_model import LanguageModelSpec
from headway.spec import CHOSEN_BY_KIND, OR_BY_NAME

ModelSpec = Annotated[LanguageModelSpec | ClassifierSpec, CHOSEN_BY_KIND, OR_BY_NAME]
