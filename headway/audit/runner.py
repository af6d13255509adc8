"""The list of all audits, and how they are run on a model or on all models of a population."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from headway.audit.audit import Audit, Finding, Report, of_plugins, run_audits
from headway.audit.baselines import BASELINE_AUDITS
from headway.audit.data.batches import LABEL_AUDITS, READ_AUDITS
from headway.audit.data.pair_batches import BATCH_AUDITS
from headway.audit.data.pair_tokens import REFERENCE_AUDITS
from headway.audit.data.pairs import PAIR_AUDITS
from headway.audit.data.rows import ROW_AUDITS
from headway.audit.data.text import TEXT_AUDITS
from headway.audit.data.tokens import TOKEN_AUDITS
from headway.audit.masking.batches import MASKING_AUDITS
from headway.audit.models.answers import ABOUT_ANSWERS, finite
from headway.audit.models.attention import ABOUT_ATTENTION
from headway.audit.models.carried import ABOUT_CARRYING
from headway.audit.models.gradient import ABOUT_GRADIENTS
from headway.audit.models.heads import HEAD_AUDITS, HeadEntropies
from headway.audit.models.learning import ABOUT_LEARNING, OF_NEXT_TOKENS, one_batch
from headway.audit.models.moving import ABOUT_WEIGHTS
from headway.audit.models.noise import ABOUT_NOISE
from headway.audit.models.order import ABOUT_ORDER
from headway.audit.models.pieces import ABOUT_PIECES
from headway.audit.models.sharing import ABOUT_SHARING
from headway.audit.models.steps import ABOUT_STEPS
from headway.audit.pictures.data import PICTURE_AUDITS, PICTURE_BATCH_AUDITS
from headway.audit.pictures.matching import OF_MATCHING
from headway.audit.pictures.recount import RETRIEVAL_AUDITS
from headway.audit.populations.members import Member, OneOrMember
from headway.audit.populations.populations import POPULATION_AUDITS
from headway.audit.probe import Probe
from headway.audit.probing import Probing
from headway.audit.scores.scores import SCORE_AUDITS
from headway.audit.training import TRAINING_AUDITS
from headway.audit.translation.crossing import OF_CROSSING
from headway.audit.translation.encoding import OF_ENCODING
from headway.audit.translation.sources import OF_TRANSLATORS
from headway.audit.translation.written import WRITTEN_AUDITS

ABOUT_TRAINING = (*ABOUT_SHARING, *ABOUT_NOISE, *ABOUT_LEARNING, *ABOUT_WEIGHTS, *ABOUT_GRADIENTS, *ABOUT_STEPS)
OF_ANY_MODEL = (*ABOUT_ANSWERS, *ABOUT_ORDER, *ABOUT_CARRYING, *ABOUT_ATTENTION, *ABOUT_PIECES, *ABOUT_TRAINING)
MODEL_AUDITS = (*OF_ANY_MODEL, *OF_NEXT_TOKENS)
OF_ROWS = (*ROW_AUDITS, *PAIR_AUDITS, *REFERENCE_AUDITS, *PICTURE_AUDITS, *TEXT_AUDITS, *TOKEN_AUDITS)
OF_BATCHES = (*READ_AUDITS, *LABEL_AUDITS, *BATCH_AUDITS, *PICTURE_BATCH_AUDITS, *MASKING_AUDITS)
DATA_AUDITS = (*OF_ROWS, *OF_BATCHES)
OF_PAIRS = (*PAIR_AUDITS, *REFERENCE_AUDITS, *BATCH_AUDITS)
OF_TRANSLATION = (*OF_TRANSLATORS, *OF_ENCODING, *OF_CROSSING, *OF_PAIRS, *WRITTEN_AUDITS)
"""Of translation pairs and of models trained on them."""
OF_PICTURES = (*OF_MATCHING, *PICTURE_AUDITS, *PICTURE_BATCH_AUDITS, *RETRIEVAL_AUDITS)
"""Of pictures with captions."""
ALL_AUDITS: tuple[Audit, ...] = (
    *MODEL_AUDITS,
    *OF_TRANSLATORS,
    *OF_ENCODING,
    *OF_CROSSING,
    *OF_MATCHING,
    *HEAD_AUDITS,
    *POPULATION_AUDITS,
    *DATA_AUDITS,
    *BASELINE_AUDITS,
    *TRAINING_AUDITS,
    *SCORE_AUDITS,
    *WRITTEN_AUDITS,
    *RETRIEVAL_AUDITS,
)
"""All audits, in the order in which they are run and shown."""

_NOT_TRAINED = "these weights were imported and have not been trained here"
OF_EACH_REPLICA = tuple(one for one in ALL_AUDITS if one.asked == "of each")
"""What replicas may differ in. They share an architecture, so most audits of a model are run once for all of them."""

OF_A_TRAINED_MODEL = (
    *(*OF_EACH_REPLICA, one_batch, *HEAD_AUDITS, *BASELINE_AUDITS, *TRAINING_AUDITS),
    *(*SCORE_AUDITS, *WRITTEN_AUDITS, *RETRIEVAL_AUDITS),
)
"""Audits of how well a training went and of its scores."""


@dataclass
class CloseLook:
    """Findings that hold for all models of one architecture."""

    by_rate: dict[float, Report] = field(default_factory=dict)
    """Findings that depend on the learning rate: whether the model can learn."""
    shared: dict[bool, Report] = field(default_factory=dict)
    """All other findings, for models with dropout (True) and without (False)."""


def audit_models(members: Iterable[Member], look: CloseLook | None = None) -> list[Report]:
    """Audit the models of one population. One of them gets all audits, the others only those whose result may differ.
    `look` holds earlier findings on this architecture; new ones are added to it."""
    look = CloseLook() if look is None else look
    closely: dict[bool, _Representative] = {}
    own: list[tuple[float, bool, Report]] = []
    for member in members:
        rate, drops = member.recipe.training.optimizer.learning_rate, member.recipe.model.dropout > 0
        mine = audit_model(member, OF_EACH_REPLICA) + _heads(member)
        is_finite = _has_finite_outputs(mine)
        mine += _alone(member, is_finite)
        own.append((rate, drops, mine))
        if not member.to_train:
            look.by_rate[rate] = Report(not_run={one.name: _NOT_TRAINED for one in ABOUT_TRAINING})
        elif rate not in look.by_rate:
            look.by_rate[rate] = audit_model(_as_it_began(member.alone()), (one_batch,))
        worth = _Worth(is_finite, member.trained, not mine.failures)
        if drops not in look.shared and (drops not in closely or worth > closely[drops].worth):
            closely[drops] = _Representative(member.alone(), worth)
    assert own, "there is no model to audit"
    shared = look.shared | {drops: _for_architecture(one) for drops, one in closely.items()}
    look.shared |= {drops: shared[drops] for drops, one in closely.items() if one.worth.is_finite}
    return [_merged(mine, look.by_rate[rate], shared[drops]) for rate, drops, mine in own]


class _Worth(NamedTuple):
    """How well a replica can stand for its architecture; earlier fields count most."""

    is_finite: bool
    trained: bool
    has_no_fault: bool


class _Representative(NamedTuple):
    probe: Probe
    worth: _Worth


def _has_finite_outputs(found: Report) -> bool:
    """Whether its weights and outputs are finite (weights can be finite and yet so large that outputs overflow)."""
    return (finding := found.finding(finite.name)) is None or finding.verdict == "pass"


def _for_architecture(one: _Representative) -> Report:
    """Findings that hold for the whole architecture and can be made with any weights. If this replica's weights or
    outputs are not finite, the initial weights are used instead."""
    probe = one.probe if one.worth.is_finite else replace(_as_it_began(one.probe), trained=False)
    of_each = (one_batch, *OF_EACH_REPLICA, *_asked_alone(probe))
    return audit_model(probe, _with_what_they_rest_on([one for one in audits_of(probe) if one not in of_each], probe))


def _alone(member: Member, is_finite: bool) -> Report:
    """The audits that run on each replica alone, outside the population."""
    if not (asked := _asked_alone(member)):
        return Report()
    if not is_finite:
        return Report(not_run={one.name: "its outputs are not finite numbers" for one in asked})
    return audit_model(member.alone(), _with_what_they_rest_on(asked, member))


def _asked_alone(probe: OneOrMember) -> list[Audit]:
    """Audits that run on each replica alone, and the user's own, since nobody knows what those look at."""
    own = of_plugins("model")
    return [one for one in audits_of(probe) if one.asked == "of each alone" or one in own]


def _with_what_they_rest_on(audits: Sequence[Audit], probe: OneOrMember) -> list[Audit]:
    names = {name for one in audits for name in one.rests_on}
    return [one for one in audits_of(probe) if one in audits or (one.name in names and one is not one_batch)]


def _as_it_began(probe: Probe) -> Probe:
    return replace(probe, model=probe.fresh())


def audits_of(probe: OneOrMember) -> list[Audit]:
    """The audits of any model, those of this kind of model, and the user's own (unless claimed by another kind)."""
    own = [one for one in of_plugins("model") if one not in Probing.claimed]
    asked = [*OF_ANY_MODEL, *probe.how.audits, *own]
    return asked if probe.to_train else [one for one in asked if one not in ABOUT_TRAINING]


def audit_model(probe: OneOrMember, audits: Sequence[Audit] | None = None) -> Report:
    """Audit one model, with all its audits or only these. If a weight is not finite, only `finite` is run: all outputs
    would be NaN, and there would be nothing to compare."""
    audits = [one for one in audits_of(probe) if audits is None or one in audits]
    with torch.no_grad():
        if probe.is_whole:
            return run_audits(audits, probe)
        lost = {one.name: "the weights are not finite numbers" for one in audits if one is not finite}
        return finite.run(probe) + Report(not_run=lost)


def _heads(probe: OneOrMember) -> Report:
    """Audit the attention heads of one model."""
    if not probe.is_whole:
        return Report(not_run={one.name: "the weights are not finite numbers" for one in HEAD_AUDITS})
    return run_audits(HEAD_AUDITS, HeadEntropies.of(probe))


def _merged(*reports: Report) -> Report:
    """One report, in the order of `ALL_AUDITS`; where several reports have an audit, the earliest one counts."""
    said: dict[str, Finding | str] = {}
    for report in reversed(reports):
        said |= report.not_run
        said |= {finding.audit: finding for finding in report.findings}
    known = [one.name for one in ALL_AUDITS]
    in_order = {name: said[name] for name in [*known, *said] if name in said}
    findings = tuple(what for what in in_order.values() if isinstance(what, Finding))
    return Report(findings, {name: what for name, what in in_order.items() if isinstance(what, str)})
