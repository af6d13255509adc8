"""A task: data, and what is asked of a model on them. All that is known of a kind of model is in its task.

To train, to score, to audit, to study and to look inside are the same for every kind; what they have to know of one
they ask here: how it is built and what it reads, its metrics and which of them is the headline, the cheap methods it is
set beside, how audits may ask it (`Probing`) and what its data give them (`Evidence`), how its answers are shown. What
only some kinds can do (write, classify …) are abilities: headway/tasks/abilities.py.

The model's spec has its share, since recipes are read before any task is there: which data it `reads`, what cannot work
(`problems`), what has misled people (`warnings`), and what it computes (`flops_per_token`).

A new kind is a spec of its model, a spec of its data where it reads others, and a `Task`: written down, it is known.
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
    """What tasks know of any data that is ready for use."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def splits(self) -> Mapping[str, Any]: ...
    @property
    def identity(self) -> str:
        """Stands for everything the tokens depend on."""
        ...

    def split(self, name: str) -> Any:
        """What is under this name, or a UserError in words."""


TASKS: "Registry[type[Task]]" = Registry("task for models of the kind")


@dataclass(frozen=True)
class Task(ABC):
    kind: ClassVar[str]
    """Of the models that are for it, as in `model.kind`."""
    models: ClassVar[str]
    """Many of them, in words: language models."""
    example: ClassVar[str]
    """A command that asks such a model about a text, where another command cannot: `headway … {run} "…"`."""
    metrics: ClassVar[tuple[Metric, ...]]
    """What a split is scored in: `valid.loss` … (some of them have a part for each class besides)."""
    headline: ClassVar[Metric]
    """The one that tells how good a model is; cheap methods have it as well."""
    cheap_methods: ClassVar[CheapMethods]
    probing: ClassVar[Probing]
    """How audits ask such models."""

    recipe: Recipe
    data: Data

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "kind" in vars(cls):
            TASKS.add(cls.kind, cls, cls.__module__)

    @classmethod
    def headline_of(cls, recipe: Recipe) -> Metric:
        """The one that tells how good the models of this recipe are."""
        return cls.headline

    @classmethod
    @abstractmethod
    def load(cls, recipe: Recipe) -> Self:
        """Read the data."""

    @classmethod
    def load_again(cls, recipe: Recipe, known_as: str | None) -> Self:
        """For a run, which has noted down what identity its data have."""
        return cls.load(recipe)

    @classmethod
    @abstractmethod
    def rebuild(cls, run: Run, device: str) -> Trainable:
        """The model of a run as a population of one, with nothing learnt yet; from the run folder alone."""

    @abstractmethod
    def build(self, seeds: Sequence[int], device: str) -> Trainable:
        """A new model, a replica per seed."""

    @abstractmethod
    def sampler(self, seeds: Sequence[int], device: str) -> Sampler:
        """What the replicas read, step by step."""

    def with_features(self, model: Any, sampler: Sampler, autocast: Callable[[], Any]) -> Sampler:
        """The same batches, with what the model makes of their rows below its head: for trainings of the head alone,
        which compute that once. What evaluations read is kept, too."""
        raise NotImplementedError

    @classmethod
    def is_stock(cls, method: str) -> bool:
        """Whether this method is of Headway's own class, and so does what the recipe says. A user's task that has
        another may read other data, or draw other batches, than audits would find by the recipe."""
        owner = next(one for one in cls.__mro__ if method in vars(one))
        return owner.__module__.partition(".")[0] == __name__.partition(".")[0]

    @property
    @abstractmethod
    def tokens_per_step(self) -> int:
        """Of one replica."""

    @property
    def longest_row(self) -> int:
        """Of the vectors that layers work on: a model may be given as many."""
        return max(self.recipe.segment, self.recipe.model.context)

    @property
    @abstractmethod
    def flops_per_step(self) -> int:
        """What a step of training computes, of one replica."""

    @abstractmethod
    def tokens_in(self, split: str) -> int:
        """What scoring this split has to read."""

    @abstractmethod
    def check_split(self, split: str) -> None:
        """A split that cannot be scored is refused before training, not after."""

    @abstractmethod
    def evaluate(self, model: Any) -> list[dict[str, float]]:
        """`split.loss` … of every replica during training: the same part of each split every time."""

    @abstractmethod
    def score(self, model: Any, splits: Sequence[str]) -> list[list[Score]]:
        """Every score of these splits, whole, for every replica of the model."""

    @abstractmethod
    def title(self, model: Any) -> list[str]:
        """What is read, in a line or two."""

    def on_less_data(self, folder: Path, most: int) -> Recipe:
        """The same recipe on a sample of its data, of about so many tokens to score, where they are many more: for
        short trainings that try something out. What has to be written for that goes into the folder."""
        return self.recipe

    @abstractmethod
    def gather_evidence(self) -> Evidence:
        """What the data give audits: their own checks, cheap methods, what a training is compared with."""

    @classmethod
    @abstractmethod
    def explain(cls, run: Run, answer: Any) -> Explained:
        """The answer of a run's model to one text, [T, …] or [C], as the numbers whose gradients are shown."""

    @classmethod
    def maps(cls, run: Run, model: Any, text: str) -> Maps:
        """What the attention of a run's model does with a text."""
        (maps,) = maps_of(model, run.tokenizer, [text], run.name)
        return maps

    @classmethod
    def attention(cls, model: Any) -> dict[str, dict[int, str]]:
        """The paths of its attention, by stack (as its maps name them) and layer."""
        return {"self": attention_layers(model)}

    @classmethod
    def gradients(cls, run: Run, model: Any, text: str, only: Sequence[int] | None = None) -> Gradients:
        """What its predictions depend on (all of them, or only these); for models without attention, too."""
        return gradients_of(model, run.tokenizer, text, run.name, partial(cls.explain, run), only=only)

    @classmethod
    def losing(cls, run: Run, model: Any, text: str) -> Losing:
        """What it loses on this text, or on its own answer to it: settled now, asked as often as one likes, with parts
        of the model switched off in between."""
        raise UserError(f"what {cls.models} lose on a text is not asked token by token")

    @cached_property
    def evidence(self) -> Evidence:
        return self.gather_evidence()

    @property
    def vocabularies(self) -> dict[str, Tokenizer]:
        """What the run folder keeps, by the name of the file; named as the keys of the data's spec."""
        return {"tokenizer.json": self.data.tokenizer}

    @property
    def facts(self) -> dict[str, Any]:
        """What the run folder must know of the task: which data, and the metric that it is judged by."""
        return {"corpus": self.data.identity, "headline": self.headline_of(self.recipe).name}

    @property
    def scored_splits(self) -> list[str]:
        """The splits the recipe asks to be scored: all but train, unless it names them."""
        asked = self.recipe.scoring.splits
        return asked if asked is not None else [split for split in self.data.splits if split != "train"]

    def check_splits(self) -> None:
        for split in {*self.recipe.training.evaluate_on, *self.scored_splits}:
            self.check_split(split)

    def check_same_data(self, run: Run) -> None:
        """What a run was trained on must not have changed under it. (Imported runs were trained on something else.)"""
        if run.facts.get("corpus", self.data.identity) != self.data.identity:
            name = self.data.name
            raise UserError(f"'{name}' is not the text that {run.name} was trained on: it has changed since")
