"""Scoring a text as one stream: each segment continues from the state of the one before.

A recurrence launches a few kernels per token, and on a GPU the launch overhead exceeds the compute time. So the forward
pass of a segment is captured once as a CUDA graph, which is replayed for all other segments.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.models.language_model import LanguageModel
from headway.nn.trainable import Carried

SEGMENTS_THAT_PAY = 8
"""A CUDA graph is captured from this many segments on."""


class Stream:
    """Runs a model over the segments of a text, keeping its state between calls."""

    def __init__(self, model: LanguageModel, segments: int):
        self.model = model
        self.state: Carried | None = None
        self.pays = next(model.parameters()).is_cuda and segments >= SEGMENTS_THAT_PAY
        self.graph: torch.cuda.CUDAGraph | None = None
        self.rows: Tensor
        self.recorded: Tensor

    def losses(self, rows: Int[Tensor, "R 1 T1"]) -> Float[Tensor, "R T"]:
        """Nats of every token but the first, which was the last token of the previous segment."""
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
        """Capture the graph. From now on the state is read from and written to the same tensors."""
        assert self.state is not None
        self.rows, state = rows.clone(), {name: tensor.clone() for name, tensor in self.state.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # warm up: kernels are selected and compiled before the capture
            self._read(self.rows)
        torch.cuda.current_stream().wait_stream(side)
        self.state, graph = state, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.recorded = self._read(self.rows)
            after = self.state
            for name, tensor in state.items():
                tensor.copy_(after[name])
        self.state, self.graph = state, graph
