"""Faults of the state carried from batch to batch: in training, in the memory of attention, and in scores."""

import math
from typing import Any

import torch

from headway.audit.plants.needs import LANGUAGE_MODEL, part
from headway.audit.plants.planting import Bed, Need
from headway.audit.plants.scores.likelihoods import AGAIN, ALSO
from headway.models.language_model import LanguageModel
from headway.nn.attention import Attention, SelfProjection
from headway.nn.kv_cache import Memory
from headway.nn.recurrence import Recurrence, RecurrenceSpec
from headway.scoring import likelihood
from headway.training.carried import CarriedState

_bed = Bed("carried state", LANGUAGE_MODEL)
CARRIED = "carried-state"
REMEMBERS = Need(
    "a mixer that carries a state",
    lambda recipe: bool(part(recipe, "model.remembers")),
    ("model.mixer=gru", "model.positions=none"),
)
RECURRENT = Need(
    "a recurrence that carries its state",
    lambda recipe: any(isinstance(one, RecurrenceSpec) and one.remembers for one in part(recipe, "model.mixers") or ()),
    ("model.mixer=gru", "model.positions=none"),
)
MEMORY = Need(
    "attention with a memory",
    lambda recipe: any(getattr(one, "memory", 0) > 1 for one in part(recipe, "model.mixers") or ()),
    ("model.positions=rotary", "model.mixer.memory=24"),
)
MARKED = Need(
    "a recurrence whose positions restart in every batch",
    lambda recipe: RECURRENT.is_met(recipe) and recipe.model.positions.marks_embeddings,
    ("model.mixer=gru", "model.positions=learned"),
)
BESIDE_ATTENTION = Need(
    "an lstm layer and an attention layer without a memory",
    lambda recipe: (
        {("lstm", math.inf), ("attention", 0.0)}
        <= {(one.kind, one.remembers) for one in part(recipe, "model.mixers") or ()}
    ),
    ("model.mixer=[lstm, {heads: 4}]", "model.positions=none"),
)
MEMORY_OF_ONE = Need(
    "memory in some layers only",
    lambda recipe: len({one.remembers > 1 for one in part(recipe, "model.mixers") or ()}) == 2,
    ("model.positions=rotary", "model.mixer=[{heads: 4, memory: 24}, {heads: 4}]"),
)
FOLLOWED = Need("batches that follow each other", lambda recipe: recipe.data.rows_go_on, ("data.batches=contiguous",))
PARTS = Need("a batch in parts", lambda recipe: recipe.training.accumulate > 1, ("training.accumulate=2",))
STREAM = Need(
    "scores of one stream",
    lambda recipe: recipe.reading.carried,
    ("model.mixer=gru", "model.positions=none", "data.batches=contiguous"),
)


@_bed.plant(CARRIED, MEMORY, also=("step",))
def memory_not_detached(patch):
    def carried(self, state):
        memory = state.memory.filled_up(self.spec.memory)
        return {"memory": memory.inputs, "told": memory.told}

    def after(self, part, of, state):
        self.here = dict(state)

    patch.setattr(Attention, "carried", carried)
    patch.setattr(CarriedState, "after", after)


@_bed.plant(CARRIED, RECURRENT, also=("step",))
def state_not_detached(patch):
    def after(self, part, of, state):
        self.here = dict(state)

    patch.setattr(Recurrence, "carried", lambda self, state: dict(state or {}))
    patch.setattr(CarriedState, "after", after)


@_bed.plant(CARRIED, REMEMBERS)
def state_of_the_row_before(patch):
    honest = CarriedState.before

    def before(self, part, of, begins):
        return {name: rows.roll(1, 1) for name, rows in honest(self, part, of, begins).items()}

    patch.setattr(CarriedState, "before", before)


@_bed.plant(CARRIED, REMEMBERS, also=("step",))
def reset_forgotten(patch):
    honest = CarriedState.before

    def before(self, part, of, begins):
        return honest(self, part, of, torch.zeros_like(begins))

    patch.setattr(CarriedState, "before", before)


@_bed.plant(CARRIED, REMEMBERS)
def state_of_the_batch_before_last(patch):
    honest = CarriedState.after

    def after(self, part, of, state):
        late = vars(self).get("late")
        honest(self, part, of, {name: torch.zeros_like(rows) for name, rows in state.items()} if late is None else late)
        vars(self)["late"] = {name: rows.detach() for name, rows in state.items()}

    patch.setattr(CarriedState, "after", after)


@_bed.plant(CARRIED, MARKED)
def states_of_rows_in_another_order(patch):
    """In a model whose outputs are not those of one pass."""
    honest = CarriedState.before

    def before(self, part, of, begins):
        return {name: rows.flip(1) for name, rows in honest(self, part, of, begins).items()}

    patch.setattr(CarriedState, "before", before)


@_bed.plant(CARRIED, BESIDE_ATTENTION)
def hidden_state_and_cell_exchanged_between_batches(patch):
    honest = Recurrence.carried

    def carried(self, state):
        kept = honest(self, state)
        return dict(zip(kept, reversed(kept.values()), strict=True))

    patch.setattr(Recurrence, "carried", carried)


@_bed.plant(CARRIED, MARKED)
def half_of_the_state_lost_between_batches(patch):
    honest = Recurrence.carried
    patch.setattr(Recurrence, "carried", lambda self, state: {n: part / 2 for n, part in honest(self, state).items()})


@_bed.plant(CARRIED, REMEMBERS, PARTS)
def state_of_the_other_part_of_the_batch(patch):
    honest = CarriedState.before
    patch.setattr(CarriedState, "before", lambda self, part, of, begins: honest(self, of - 1 - part, of, begins))


@_bed.plant(CARRIED, REMEMBERS)
def loss_without_the_state(patch):
    """The carried state is right, but training does not use it."""
    honest = LanguageModel.loss
    patch.setattr(LanguageModel, "loss", lambda self, batch, state=None: honest(self, batch))


@_bed.plant(CARRIED, MEMORY, also=("step",))
def empty_memory_attended_to(patch):
    patch.setattr(Attention, "slots_before", lambda self, carried: torch.ones_like(carried["told"]))


@_bed.plant(CARRIED, MEMORY)
def memory_of_the_segment_alone(patch):
    patch.setattr(Memory, "extended", lambda self, new, most: Memory(new.inputs[:, :, -most:], new.told[:, :, -most:]))


@_bed.plant(CARRIED, MEMORY)
def memory_one_segment_too_old(patch):
    def extended(self: Any, new: Any, most: int) -> Any:
        old = self if self.inputs.shape[2] else new
        return Memory(old.inputs[:, :, -most:], old.told[:, :, -most:])

    patch.setattr(Memory, "extended", extended)


@_bed.plant(CARRIED, MEMORY)
def memory_twice_as_long_as_asked_for(patch):
    """It sees more than it should."""
    extended, filled_up = Memory.extended, Memory.filled_up
    patch.setattr(Memory, "extended", lambda self, new, most: extended(self, new, 2 * most))
    patch.setattr(Memory, "filled_up", lambda self, size: filled_up(self, 2 * size))


@_bed.plant(CARRIED, MEMORY_OF_ONE)
def half_a_memory_in_a_model_with_other_outputs_than_one_pass(patch):
    honest = Memory.extended
    patch.setattr(Memory, "extended", lambda self, new, most: honest(self, new, most // 2))


@_bed.plant("gradient", MEMORY, FOLLOWED)
def memory_whose_keys_and_values_teach_nothing(patch):
    """The memory has no gradient; the weights that compute keys and values from it should have one."""
    honest = SelfProjection.recall
    patch.setattr(SelfProjection, "recall", torch.no_grad()(honest))


@_bed.plant(CARRIED, MEMORY)
def memory_placed_one_slot_off(patch):
    honest = SelfProjection.recall

    def recall(self, memory, context):
        cache = honest(self, memory, context)
        turn = context.positions.for_heads(self.heads).rotate
        return type(cache)(turn(cache.keys, torch.ones(cache.keys.shape[3], dtype=torch.long)), cache.values)

    patch.setattr(SelfProjection, "recall", recall)


@_bed.plant(AGAIN, STREAM, also=ALSO)
def fresh_state_that_is_called_carried(patch):
    honest = likelihood.token_losses
    patch.setattr(likelihood, "losses_going_on", lambda model, ids, segment: honest(model, ids, segment, segment))


@_bed.plant(AGAIN, STREAM, also=ALSO)
def text_that_was_read_before_it_is_scored(patch):
    honest = likelihood.losses_going_on

    def again(model, ids, segment):
        return honest(model, torch.cat((ids, ids)), segment)[:, len(ids) :]

    patch.setattr(likelihood, "losses_going_on", again)
