"""The state that is carried from batch to batch (truncated backpropagation through time): kept, begun anew, saved.

    rows of the batch    0 … B - 1, each the continuation of the same row one step before
    here                 the rows of this process, [R, rows, …] under every name; parts of a batch own theirs

A model's `loss` takes the state of its rows and gives the new one, which is cut off from its past (detached) and
written where the old one was: a step that is recorded as a CUDA graph reads and writes the same memory at every replay.
Where the sampler says that rows begin anew (`batch.begins`) the state is zeros. A model that carries nothing, such as
attention, costs nothing here.
"""

import torch
from jaxtyping import Bool
from torch import Tensor

from headway.core.errors import UserError
from headway.nn.trainable import Carried
from headway.training.processes import ALONE, Processes


class CarriedState:
    def __init__(self, processes: Processes = ALONE):
        self.processes = processes
        self.here: Carried = {}

    def __bool__(self) -> bool:
        return bool(self.here)

    def before(self, part: int, of: int, begins: Bool[Tensor, "..."]) -> Carried:
        """What this part of our rows goes on from. `begins`: whether all begin anew, or which of them, [R, rows]."""
        return {name: _begun_anew(rows.chunk(of, dim=1)[part], begins) for name, rows in self.here.items()}

    @torch.no_grad()
    def after(self, part: int, of: int, state: Carried) -> None:
        """Keep what the loss of this part gave."""
        for name, rows in state.items():
            if name not in self.here:
                self.here[name] = rows.new_zeros(rows.shape[0], rows.shape[1] * of, *rows.shape[2:])
            self.here[name].chunk(of, dim=1)[part].copy_(rows)

    def of_replica(self, r: int) -> Carried:
        """The state of all rows, whoever has them. All processes must ask."""
        return {name: torch.cat(self.processes.gather(rows[r])) for name, rows in self.here.items()}

    @torch.no_grad()
    def restore(self, r: int, replicas: int, saved: Carried, device: torch.device) -> None:
        """Put back what was saved of replica r; each process takes its rows."""
        for name, rows in saved.items():
            mine = rows.chunk(self.processes.world)[self.processes.rank]
            if name not in self.here:
                self.here[name] = torch.zeros(replicas, *mine.shape, dtype=mine.dtype, device=device)
            self.here[name][r].copy_(mine)
        for name in self.here.keys() - saved.keys():
            self.here[name][r].zero_()

    def check_rows(self, batch: int) -> None:
        """A state belongs to rows: it cannot go on in a batch of another size."""
        for name, rows in self.here.items():
            if (saved := rows.shape[1] * self.processes.world) != batch:
                raise UserError(f"training.batch: the state that was saved ({name}) is of {saved} rows, not of {batch}")


def _begun_anew(rows: Tensor, begins: Bool[Tensor, "..."]) -> Tensor:
    return torch.where(begins.view(*begins.shape, *[1] * (rows.ndim - begins.ndim)), torch.zeros_like(rows), rows)
