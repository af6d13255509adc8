"""How audits query a translator: at every token of a target, given the preceding ones and a source."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from headway.audit.audit import DoesNotApply
from headway.audit.models.learning import equal_chances, targets
from headway.audit.probing import Probing
from headway.audit.translation.crossing import OF_CROSSING
from headway.audit.translation.encoding import OF_ENCODING
from headway.audit.translation.sources import OF_TRANSLATORS
from headway.core import random as noise
from headway.models.decoder_only import DecoderOnly
from headway.models.state import ModelState
from headway.models.translator import Translator

PROBED = 12
"""Maximum number of tokens of the source with which targets are probed."""


class Targets(Probing):
    """Predicts at every token of a target the next one, given the preceding ones and the source. Where a check is not
    about the source, all rows have the same one."""

    per_token, looks_ahead = True, False
    audits = (targets, *OF_TRANSLATORS, *OF_ENCODING, *OF_CROSSING)

    def answer(
        self,
        model: Translator,
        ids: Tensor,
        padding_mask: Tensor | None = None,
        sources: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        if sources is None:
            return model.go_on(ids, self.before(model, ids), padding_mask)[0]
        return model(sources, ids, source_mask, padding_mask)

    def before(self, model: Translator, ids: Tensor) -> ModelState:
        """The state after a fixed source, for targets that are given without a source."""
        return model.read(self.source(model, ids))

    def answer_batch(self, model: Translator, batch: Any) -> Tensor:
        return self.answer(model, batch.inputs, batch.padding_mask, batch.sources, batch.source_mask)

    def source(self, model: Translator, ids: Tensor) -> Tensor:
        """The same source for all rows: [R, B, S], random tokens and END."""
        length = min(PROBED, model.spec.context)
        drawn = noise.integers(noise.stream_keys([0], "audit source"), 0, model.source_vocabulary - 1, length)
        drawn[:, -1] = model.source_vocabulary - 1
        return drawn.to(ids.device).expand(*ids.shape[:2], -1)

    def apart(self, model: Translator) -> Sequence[Module]:
        return model.reading

    def go_on(self, model: Translator, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        if model.why_no_cache:
            raise DoesNotApply(f"this model has no KV cache: {model.why_no_cache}")
        return model.go_on(ids, self.before(model, ids) if state is None else state)

    def loss(self, answers: Tensor, batch: Any) -> Tensor:
        nats = F.cross_entropy(answers.flatten(0, -2).double(), batch.targets.flatten(), reduction="none")
        return nats[batch.padding_mask.flatten()].mean()

    def lowered(self, model: Translator, answers: Tensor, batch: Any, before: Any = None) -> Tensor:
        """The loss with label smoothing, which mixes in the mean loss over all tokens."""
        spread = -answers.double().log_softmax(-1).mean(-1)[batch.padding_mask].mean()
        return self.loss(answers, batch).lerp(spread, model.spec.label_smoothing)

    def excerpt(self, batch: Any, rows: int, tokens: int) -> Any:
        """Rows with short and long targets, so that some are padded."""
        order = batch.padding_mask[0].sum(1).argsort(stable=True)
        some = order[np.unique(np.linspace(0, len(order) - 1, min(rows, len(order))).round().astype(int)).tolist()]
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        chosen = {name: part[:, some] for name, part in parts.items() if isinstance(part, Tensor)}
        return super().excerpt(replace(batch, **chosen), rows, tokens)

    def clueless(self, model: Translator) -> tuple[float, str]:
        return equal_chances(model.vocabulary)


class TargetsAlone(Targets):
    """For a decoder-only translator, which is a language model where there is no source. Training is one pass over
    source and target; here the outputs are computed in two."""

    one_noise = False

    def before(self, model: Translator, ids: Tensor) -> ModelState:
        return ModelState((None,) * len(model.layers))

    def lowered(self, model: DecoderOnly, answers: Tensor, batch: Any, before: Any = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The loss; if it includes the source, each source token predicts the next one, and the last one END."""
        if model.spec.loss_on == "target":
            return super().lowered(model, answers, batch)
        end = model.vocabulary - 1
        real = batch.source_mask & (batch.sources != end)
        goes_on = F.pad(real[..., 1:], (0, 1))
        following = torch.where(goes_on, F.pad(batch.sources[..., 1:], (0, 1)), end)
        of_source = model.scores(model.hidden(batch.sources, None, real)[0])
        said = torch.cat((of_source[real], answers[batch.padding_mask])).double()
        nats = F.cross_entropy(said, torch.cat((following[real], batch.targets[batch.padding_mask])))
        return nats.lerp(-said.log_softmax(-1).mean(), model.spec.label_smoothing)
