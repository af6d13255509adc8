"""A text read as one stream, segment after segment, each going on from the state of the one before.

A recurrence launches a few kernels per token, and on a GPU to launch them takes longer than to compute them. So there
the reading of a segment is recorded once as a graph, which is then replayed for all others.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.models.language_model import LanguageModel
from headway.nn.trainable import Carried

SEGMENTS_THAT_PAY = 8
"""From so many on a graph is recorded."""


class Stream:
    """A model that reads rows of `segment` tokens, one row at a time."""

    def __init__(self, model: LanguageModel, segments: int):
        self.model = model
        self.state: Carried | None = None
        self.pays = next(model.parameters()).is_cuda and segments >= SEGMENTS_THAT_PAY
        self.graph: torch.cuda.CUDAGraph | None = None
        self.rows: Tensor
        self.recorded: Tensor

    def losses(self, rows: Int[Tensor, "R 1 T1"]) -> Float[Tensor, "R T"]:
        """Nats of every token but the first of these, which was the last of the segment before."""
        if self.graph is None and self.pays and self.state is not None:
            self._record(rows)
        if self.graph is None or rows.shape != self.rows.shape:  # the last segment is shorter
            return self._read(rows)
        self.rows.copy_(rows)
        self.graph.replay()
        return self.recorded.clone()

    def _read(self, rows: Tensor) -> Tensor:
        nats, self.state = self.model.losses_going_on(rows[..., :-1], rows[..., 1:], self.state)
        return nats[:, 0]

    def _record(self, rows: Tensor) -> None:
        """The state that is read and written stays in one place from now on."""
        assert self.state is not None
        self.rows, state = rows.clone(), {name: tensor.clone() for name, tensor in self.state.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels are chosen and compiled before the recording
            self._read(self.rows)
        torch.cuda.current_stream().wait_stream(side)
        self.state, graph = state, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.recorded = self._read(self.rows)
            after = self.state
            for name, tensor in state.items():
                tensor.copy_(after[name])
        self.state, self.graph = state, graph
