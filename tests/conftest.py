"""Before anything of Headway is imported: shapes written in annotations are checked whenever a function is called."""

import jaxtyping
import pytest
import torch

jaxtyping.install_import_hook(
    ["headway.nn", "headway.models", "headway.scoring", "headway.noise", "headway.training.optimizers"],
    "beartype.beartype",
)
torch.set_num_threads(1)  # the tensors of tests are tiny: threads would only wait for each other


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A small text, a recipe for it and a finished run. Tests share it and write elsewhere."""
    from tiny import Workshop

    return Workshop.open(tmp_path_factory.mktemp("workshop"))
