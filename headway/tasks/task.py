"""A task: data and what a model does with it. Everything specific to one kind of model is in its task.

Training, scoring, audits, studies and looking inside work the same for every kind of model. What they need to know
about a kind they get from its task: how the model is built and what it reads, its metrics and which of them is the
headline, the baselines it is compared with, how audits query it (`Probing`) and what its data offer them (`Evidence`),
how its outputs are shown. What only some kinds can do (write, classify …) are abilities: headway/tasks/abilities.py.

Some facts are in the model's spec, since recipes are read before a task exists: which data it `reads`, which settings
cannot work (`problems`) or have misled people (`warnings`), and its FLOPs (`flops_per_token`).

To add a kind, write a spec of its model, a spec of its data if that is new too, and a `Task`; defining the class
registers it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from headway.audit.baselines import CheapMethods
from headway.audit.evidence import Evidence
from headway.audit.probing import Probing
from headway.core.errors import UserError
from headway.core.variants import Registry
from headway.data.tokenizers import Tokenizer
from headway.look.gradients import Explained, Gradients, gradients_of
from headway.look.maps import Maps, attention_layers, maps_of
from headway.look.token_losses import Losing
from headway.nn.trainable import Trainable
from headway.recipe.recipe import Recipe
from headway.run.folder import Run
from headway.scoring.metrics import Metric
from headway.scoring.score import Score
from headway.training.update import Sampler


class Data(Protocol):
    """What tasks need of any loaded data."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def splits(self) -> Mapping[str, Any]: ...
    @property
    def identity(self) -> str:
        """A fingerprint of everything the tokens depend on."""
        ...

    def split(self, name: str) -> Any:
        """The split with this name, or a UserError."""


TASKS: "Registry[type[Task]]" = Registry("task for models of the kind")


@dataclass(frozen=True)
class Task(ABC):
    kind: ClassVar[str]
    """The kind of model it is for, as in `model.kind`."""
    models: ClassVar[str]
    """The plural name of these models for messages, such as "language models"."""
    example: ClassVar[str]
    """An example command for such models, `headway … {run} "…"`, suggested when a command does not apply to them."""
    metrics: ClassVar[tuple[Metric, ...]]
    """The metrics of a split: `valid.loss` … (some also have a value for each class)."""
    headline: ClassVar[Metric]
    """The main metric, which baselines have too."""
    cheap_methods: ClassVar[CheapMethods]
    probing: ClassVar[Probing]
    """How audits query such models."""

    recipe: Recipe
    data: Data

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "kind" in vars(cls):
            TASKS.add(cls.kind, cls, cls.__module__)

    @classmethod
    def headline_of(cls, recipe: Recipe) -> Metric:
        """The main metric for this recipe."""
        return cls.headline

    @classmethod
    @abstractmethod
    def load(cls, recipe: Recipe) -> Self:
        """Read the data."""

    @classmethod
    def load_again(cls, recipe: Recipe, known_as: str | None) -> Self:
        """Read the data of a run, which recorded the identity of its data."""
        return cls.load(recipe)

    @classmethod
    @abstractmethod
    def rebuild(cls, run: Run, device: str) -> Trainable:
        """The untrained model of a run with one replica, from the run folder alone."""

    @abstractmethod
    def build(self, seeds: Sequence[int], device: str) -> Trainable:
        """A new model with a replica per seed."""

    @abstractmethod
    def sampler(self, seeds: Sequence[int], device: str) -> Sampler:
        """The training batches of the replicas."""

    def with_features(self, model: Any, sampler: Sampler, autocast: Callable[[], Any]) -> Sampler:
        """The same batches as precomputed features, for training the head alone. Features for evaluation are cached
        too."""
        raise NotImplementedError

    @classmethod
    def is_stock(cls, method: str) -> bool:
        """Whether this method is defined by Headway and not overridden in a user's task. An override may read other
        data or draw other batches than the recipe says, which audits could not know."""
        owner = next(one for one in cls.__mro__ if method in vars(one))
        return owner.__module__.partition(".")[0] == __name__.partition(".")[0]

    @property
    @abstractmethod
    def tokens_per_step(self) -> int:
        """Tokens per training step of one replica."""

    @property
    def longest_row(self) -> int:
        """The longest sequence that the layers may have to process."""
        return max(self.recipe.segment, self.recipe.model.context)

    @property
    @abstractmethod
    def flops_per_step(self) -> int:
        """FLOPs of a training step, for one replica."""

    @abstractmethod
    def tokens_in(self, split: str) -> int:
        """The number of tokens that scoring this split has to process."""

    @abstractmethod
    def check_split(self, split: str) -> None:
        """Raise a UserError, before training, if this split cannot be scored."""

    @abstractmethod
    def evaluate(self, model: Any) -> list[dict[str, float]]:
        """Evaluate every replica during training (`split.loss` …), on the same part of each split every time."""

    @abstractmethod
    def score(self, model: Any, splits: Sequence[str]) -> list[list[Score]]:
        """All scores of these whole splits, for every replica."""

    @abstractmethod
    def title(self, model: Any) -> list[str]:
        """A description of the data in a line or two."""

    def on_less_data(self, folder: Path, most: int) -> Recipe:
        """For short trial trainings: the same recipe on a sample of its data with about `most` tokens to score, if
        there are many more. Files for that are written to the folder."""
        return self.recipe

    @abstractmethod
    def gather_evidence(self) -> Evidence:
        """What the data offer to audits: their own checks, baselines, and what a training is compared with."""

    @classmethod
    @abstractmethod
    def explain(cls, run: Run, answer: Any) -> Explained:
        """The scalars whose gradients are shown, from a model's output for one text, [T, …] or [C]."""

    @classmethod
    def maps(cls, run: Run, model: Any, text: str) -> Maps:
        """The attention maps of a run's model for a text."""
        (maps,) = maps_of(model, run.tokenizer, [text], run.name)
        return maps

    @classmethod
    def attention(cls, model: Any) -> dict[str, dict[int, str]]:
        """The module paths of its attention, by stack (as named in its maps) and layer."""
        return {"self": attention_layers(model)}

    @classmethod
    def gradients(cls, run: Run, model: Any, text: str, only: Sequence[int] | None = None) -> Gradients:
        """Gradients of its predictions (all, or only these) with respect to the inputs; also for models without
        attention."""
        return gradients_of(model, run.tokenizer, text, run.name, partial(cls.explain, run), only=only)

    @classmethod
    def losing(cls, run: Run, model: Any, text: str) -> Losing:
        """A function that returns the model's loss on this text, or on its own output for it. The text is fixed now;
        the function can be called repeatedly, with parts of the model switched off in between."""
        raise UserError(f"losses token by token are not available for {cls.models}")

    @cached_property
    def evidence(self) -> Evidence:
        return self.gather_evidence()

    @property
    def vocabularies(self) -> dict[str, Tokenizer]:
        """The tokenizers that the run folder keeps, by file name; the names follow the keys of the data spec."""
        return {"tokenizer.json": self.data.tokenizer}

    @property
    def facts(self) -> dict[str, Any]:
        """What the run folder records about the task: the data's identity and the headline metric."""
        return {"corpus": self.data.identity, "headline": self.headline_of(self.recipe).name}

    @property
    def scored_splits(self) -> list[str]:
        """The splits to score: those named in the recipe, else all but train."""
        asked = self.recipe.scoring.splits
        return asked if asked is not None else [split for split in self.data.splits if split != "train"]

    def check_splits(self) -> None:
        for split in {*self.recipe.training.evaluate_on, *self.scored_splits}:
            self.check_split(split)

    def check_same_data(self, run: Run) -> None:
        """Raise a UserError if the data have changed since the run was trained. (Imported runs recorded no data, and
        pass.)"""
        if run.facts.get("corpus", self.data.identity) != self.data.identity:
            name = self.data.name
            raise UserError(f"'{name}' has changed since {run.name} was trained on it: restore the data or train again")
