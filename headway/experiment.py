"""From recipes to finished runs: data → model → loop → run folders → scores.

`train` takes one recipe or several that differ only in what replicas may differ in, and trains them as one population.
Each member gets a run folder of its own, the same as if it had been trained alone.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from headway.data import corpus as corpora
from headway.data.corpus import Corpus
from headway.errors import UserError
from headway.models.language_model import LanguageModel
from headway.nn.replicated import set_dropout
from headway.progress import Reporter
from headway.recipe import Recipe
from headway.run import Run, check_new, open_run
from headway.scoring.perplexity import surprise
from headway.scoring.score import Score
from headway.trackers import Observer
from headway.training import setting as settings
from headway.training.checkpoint import Checkpoint
from headway.training.loop import Loop
from headway.training.population import Population, load_weights
from headway.training.update import Sampler

MAY_VARY = ("seed", "training.optimizer.learning_rate", "training.optimizer.weight_decay", "model.dropout")
"""What the members of a population may differ in; everything else is one shape or one schedule."""


def train(
    recipes: Sequence[Recipe],
    names: Sequence[str],
    runs: Path = Path("runs"),
    resume: bool = False,
    reporter: Reporter | None = None,
    observers: Sequence[Observer] = (),
) -> list[Run]:
    """Train these recipes as one population, to the end or to Ctrl-C, and score them. Gives their run folders."""
    reporter = reporter or Reporter()
    check_population(recipes)
    check_names(names)
    recipe = recipes[0]
    for warning in recipe.warnings():
        reporter.warn(warning)
    setting = settings.choose(recipe.training, recipe.model.width)
    opened = _reopen(recipes, names, runs) if resume else [None] * len(names)
    for name in () if resume else names:
        check_new(runs / name)  # all of them before the first is made
    corpus = load_corpus(recipe)
    for run in filter(None, opened):
        check_same_corpus(run, corpus)
    for split in {*recipe.training.evaluate_on, *scored_splits(recipe, corpus)}:  # now, and not after training
        if len(corpus.split(split)) < 2:
            raise UserError(f"split '{split}' of '{corpus.name}' is a single token: there is nothing to predict in it")

    population, sampler = assemble(recipes, corpus, setting)
    model = population.model
    with ExitStack() as locks:
        members = [
            run or Run.create(runs / name, r, str(setting.device), corpus=corpus.identity)
            for run, name, r in zip(opened, names, recipes, strict=True)
        ]
        for run in members:
            locks.enter_context(run.locked())
        for run in members:
            _settle_vocabulary(run, corpus)
        step = _restore(population, members, reporter) if resume else 0
        loop = Loop(
            model,
            population.optimizer,
            sampler,
            recipe.training,
            setting,
            tokens_per_step=recipe.training.batch * recipe.segment,
            evaluate=lambda: _evaluate(model, corpus, recipe, recipe.training.evaluate_on),
            journal=_Journal(population, members, reporter, observers),
            standings=population.standings,
            step=step,
        )
        if loop.warmup >= loop.total:
            reporter.warn(f"training ends in the warm-up ({loop.warmup:,} steps): the full rate is never reached")
        for observer in observers:
            observer.start(members, resume, loop.total, reporter)
            locks.callback(observer.end)  # however this ends, and before the locks are let go
        reporter.begin(_title(members, model, corpus, recipe, setting, step), step, loop.total)
        try:
            loop.run()
        finally:
            reporter.end()
        _finish(loop, population, members, corpus)
    return members


def assemble(
    recipes: Sequence[Recipe], corpus: Corpus, setting: settings.Setting
) -> tuple[Population[LanguageModel], Sampler]:
    """The replicas these recipes describe, side by side, and what they read."""
    recipe, seeds = recipes[0], [r.seed for r in recipes]
    model = recipe.model.build(corpus.tokenizer.size, seeds, str(setting.device))
    set_dropout(model, [r.model.dropout for r in recipes])
    optimizer = recipe.training.optimizer.build(
        dict(model.named_parameters()),
        [r.training.optimizer.learning_rate for r in recipes],
        [r.training.optimizer.weight_decay for r in recipes],
    )
    train_ids = torch.as_tensor(corpus.split("train").ids).to(setting.device)
    sampler = recipe.data.batches.build(train_ids, recipe.segment, recipe.training.batch, seeds)
    return Population(model, optimizer, len(recipes)), sampler


def check_population(recipes: Sequence[Recipe]) -> None:
    """All members must agree in every key but those that may vary."""
    first = _flat(recipes[0].model_dump(mode="json"))
    differing = {
        key for r in recipes[1:] for key, value in _flat(r.model_dump(mode="json")).items() if value != first.get(key)
    }
    if wrong := sorted(differing - set(MAY_VARY)):
        raise UserError(
            f"these recipes cannot be trained as one population: they differ in {', '.join(wrong)}; "
            f"only {', '.join(MAY_VARY)} may vary"
        )


def check_names(names: Sequence[str]) -> None:
    """A run's name is the name of one folder."""
    for name in names:
        if "/" in name or name in ("", ".", "..") or len(name.encode()) > 200:
            raise UserError(
                f"'{name}' cannot be the name of a run: a name is one folder's, without '/', of at most 200 bytes; "
                "--runs says where that folder is"
            )


def load_corpus(recipe: Recipe) -> Corpus:
    data = recipe.data
    return corpora.load(data.source, data.path, data.valid_fraction, data.tokenizer)


def check_same_corpus(run: Run, corpus: Corpus) -> None:
    """What a run was trained on must not have changed under it. (Imported runs were trained on something else.)"""
    if run.facts.get("corpus", corpus.identity) != corpus.identity:
        raise UserError(f"'{corpus.name}' is not the text that {run.name} was trained on: it has changed since")


def load_model(run: Run, which: str = "auto", device: str | None = None) -> tuple[LanguageModel, Checkpoint]:
    """The trained model of a run, as a population of one, and the checkpoint it came from."""
    saved = run.checkpoint(which)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = run.recipe.model.build(run.tokenizer.size, [run.recipe.seed], device)
    load_weights(model, 0, saved.weights)
    model.eval()
    return model, saved


def score_splits(model: LanguageModel, corpus: Corpus, recipe: Recipe, splits: Sequence[str]) -> list[list[Score]]:
    """Every score of every split, whole, for every replica of the model."""
    per_replica: list[list[Score]] = [[] for _ in range(model.replicas)]
    for split in splits:
        kind, unknown = corpus.tokenizer.kind, corpus.tokenizer.unknown
        text, window = corpus.split(split), (recipe.scoring_segment, recipe.stride)
        found = surprise(model, text, *window, kind, unknown=unknown)
        for scores, one in zip(per_replica, found, strict=True):
            scores += one.scores(split)
    return per_replica


def scored_splits(recipe: Recipe, corpus: Corpus) -> list[str]:
    """The splits a recipe asks to be scored: all but train, unless it names them."""
    return recipe.scoring.splits if recipe.scoring.splits is not None else [s for s in corpus.splits if s != "train"]


class _Journal:
    """Writes what the loop reports into each member's run folder."""

    def __init__(
        self, population: Population, members: list[Run], reporter: Reporter, observers: Sequence[Observer] = ()
    ):
        self.population, self.members, self.reporter, self.observers = population, members, reporter, observers

    def metrics(self, replica: int, lines: list[dict[str, Any]]) -> None:
        self.members[replica].append_metrics(lines)
        self.population.standings[replica].lines += len(lines)
        for observer in self.observers:
            observer.metrics(replica, lines)
        for line in lines:
            if "scores" in line:
                self.reporter.scores(self.members[replica].name, line["step"], line["scores"])

    def checkpoint(self, replica: int, step: int) -> None:
        self.members[replica].save_checkpoint(self.population.slice(replica, step))

    def best(self, replica: int, step: int) -> None:
        self.members[replica].save_best(self.population.slice(replica, step))

    def progress(self, step: int, losses: list[float], tokens_per_second: float) -> None:
        self.reporter.update(step, losses, tokens_per_second)

    def ended(self, replica: int, why: str) -> None:
        self.reporter.say(f"{self.members[replica].name} {why}")


def _evaluate(model: LanguageModel, corpus: Corpus, recipe: Recipe, splits: Sequence[str]) -> list[dict[str, float]]:
    """Losses during training: the same cut of each split every time."""
    found: list[dict[str, float]] = [{} for _ in range(model.replicas)]
    for split in splits:
        at_most, kind = recipe.training.evaluate_tokens, corpus.tokenizer.kind
        for r, one in enumerate(surprise(model, corpus.split(split), recipe.segment, recipe.segment, kind, at_most)):
            found[r][f"{split}.loss"] = one.nats / one.tokens
    return found


def _finish(loop: Loop, population: Population, members: list[Run], corpus: Corpus) -> None:
    """Score what was kept, and note how each run ended."""
    model = loop.model
    assert isinstance(model, LanguageModel)
    recipe = members[0].recipe
    if recipe.training.keep_best:
        for r, run in enumerate(members):
            load_weights(model, r, run.checkpoint("auto").weights)
    for run, standing in zip(members, population.standings, strict=True):
        ended = standing.ended or (f"interrupted at step {loop.step}" if loop.interrupted else "finished")
        step, seconds = standing.ended_at or loop.step, round(standing.seconds, 2)
        run.note(status=ended, step=step, steps=loop.total, seconds=seconds)
    model.eval()  # in float32, whatever was trained in: the same number that `headway score` gives later
    all_scores = score_splits(model, corpus, recipe, scored_splits(recipe, corpus))
    for run, scores in zip(members, all_scores, strict=True):
        run.save_scores(scores)


def _reopen(recipes: Sequence[Recipe], names: Sequence[str], runs: Path) -> list[Run | None]:
    """The runs to go on with. None for one that is still to be made, because all were killed while being made."""
    found = [_reopen_one(runs / n, r) if (runs / n).exists() else None for n, r in zip(names, recipes, strict=True)]
    begun = any(run is not None and run.has_checkpoints for run in found)
    if None in found and (begun or not any(found)):
        missing = runs / names[found.index(None)]
        raise UserError(f"there is nothing to resume: {missing} does not exist; leave out --resume to start it")
    return found


def _reopen_one(folder: Path, recipe: Recipe) -> Run:
    run = open_run(str(folder), folder.parent)
    ours, theirs = _flat(recipe.model_dump(mode="json")), _flat(run.recipe.model_dump(mode="json"))
    if ours != theirs:
        keys = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
        changes = ", ".join(f"{key} was {theirs.get(key)} and is {ours.get(key)}" for key in keys[:5])
        more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
        raise UserError(f"{folder} was made by another recipe: {changes}{more}; use --name for a new run")
    return run


def _settle_vocabulary(run: Run, corpus: Corpus) -> None:
    """Kept with the run; made again where it was lost."""
    path = run.folder / "tokenizer.json"
    if not path.exists() or path.read_bytes() != corpus.tokenizer.to_json().encode():
        run.tokenizer = corpus.tokenizer


def _restore(population: Population, members: list[Run], reporter: Reporter) -> int:
    """Back to the newest step at which every member can be had: at that step, or ended before it."""
    found = [list(run.resumable_checkpoints()) for run in members]
    ways: list[tuple[int, list[Checkpoint]]] = []
    for step in sorted({c.step for checkpoints in found for c in checkpoints}, reverse=True):
        chosen = [
            next((c for c in checkpoints if c.step == step or (c.step < step and c.facts["standing"]["ended"])), None)
            for checkpoints in found
        ]
        if None not in chosen:
            ways.append((step, [c for c in chosen if c is not None]))
    # Rather an older checkpoint than a gap in the metrics, and rather a gap than to begin again.
    whole = [(step, chosen) for step, chosen in ways if not _torn(members, chosen, reporter)]
    for step, chosen in (whole or ways)[:1]:
        for r, saved in enumerate(chosen):
            population.restore(r, saved)
        population.optimizer.steps.fill_(step)
        for run, saved, standing in zip(members, chosen, population.standings, strict=True):
            standing.lines = run.forget_after(saved.step)
        return step
    for run in members:
        if "imported_from" in run.facts:
            raise UserError(f"{run.folder} has lost the weights that were imported: remove it, and import them again")
    for run in members:  # killed before the first checkpoint, most likely
        if run.has_checkpoints:
            reporter.warn(f"{run.name} has no checkpoint that can be resumed from: beginning again")
        run.forget_after(0)
    return 0


def _torn(members: list[Run], chosen: list[Checkpoint], reporter: Reporter) -> bool:
    """Whether lines of metrics that were there when these checkpoints were saved are lost."""
    torn = [
        (run, saved)
        for run, saved in zip(members, chosen, strict=True)
        if len(run.metrics_until(saved.step)) < saved.facts["standing"].get("lines", 0)
    ]
    for run, saved in torn:
        reporter.warn(f"{run.folder / 'metrics.jsonl'} has lost lines before step {saved.step}")
    return bool(torn)


def _title(
    members: list[Run], model: LanguageModel, corpus: Corpus, recipe: Recipe, setting: settings.Setting, step: int
) -> list[str]:
    parameters = sum(p.numel() for p in model.parameters()) // model.replicas
    tokens = len(corpus.split("train").ids)
    many = f", {len(members)} replicas trained as one" if len(members) > 1 else ""
    return [
        f"{members[0].folder}{f' … {members[-1].name}' if len(members) > 1 else ''}"
        + (f": resuming at step {step}" if step else ""),
        f"{recipe.data.source}: {tokens:,} {recipe.data.tokenizer.kind} tokens to train on, {model.vocabulary:,} kinds",
        f"{parameters:,} parameters{many}",
        *setting.reasons,
    ]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    return {key: value for name, inner in tree.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}
