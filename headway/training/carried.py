"""The state that is carried from batch to batch (truncated backpropagation through time): stored, reset and saved.

    rows of the batch    0 … B - 1, each the continuation of the same row in the previous step
    here                 the rows of this process, [R, rows, …] under every name; each part of a batch has its own rows

A model's `loss` takes the state of its rows and returns the new one. It is detached and written in place of the old
one, because a step recorded as a CUDA graph reads and writes the same memory at every replay. For rows that the sampler
starts again (`batch.begins`) the state is zeros. A model that carries no state, such as plain attention, has no cost.
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
        """The state for this part of our rows. `begins`: whether all rows start again, or which of them, [R, rows]."""
        return {name: _begun_anew(rows.chunk(of, dim=1)[part], begins) for name, rows in self.here.items()}

    @torch.no_grad()
    def after(self, part: int, of: int, state: Carried) -> None:
        """Store the state that the loss of this part returned."""
        for name, rows in state.items():
            if name not in self.here:
                self.here[name] = rows.new_zeros(rows.shape[0], rows.shape[1] * of, *rows.shape[2:])
            self.here[name].chunk(of, dim=1)[part].copy_(rows)

    def of_replica(self, r: int) -> Carried:
        """The state of all rows of replica r, from all processes. All of them must call this."""
        return {name: torch.cat(self.processes.gather(rows[r])) for name, rows in self.here.items()}

    @torch.no_grad()
    def restore(self, r: int, replicas: int, saved: Carried, device: torch.device) -> None:
        """Restore the saved state of replica r; each process takes its own rows."""
        for name, rows in saved.items():
            mine = rows.chunk(self.processes.world)[self.processes.rank]
            if name not in self.here:
                self.here[name] = torch.zeros(replicas, *mine.shape, dtype=mine.dtype, device=device)
            self.here[name][r].copy_(mine)
        for name in self.here.keys() - saved.keys():
            self.here[name][r].zero_()

    def check_rows(self, batch: int) -> None:
        """Check that the state has as many rows as the batch: it cannot be used with another batch size."""
        for name, rows in self.here.items():
            if (saved := rows.shape[1] * self.processes.world) != batch:
                raise UserError(f"training.batch: the saved state ({name}) has {saved} rows, not {batch}")


def _begun_anew(rows: Tensor, begins: Bool[Tensor, "..."]) -> Tensor:
    return torch.where(begins.view(*begins.shape, *[1] * (rows.ndim - begins.ndim)), torch.zeros_like(rows), rows)
