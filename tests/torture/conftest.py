"""One bench for all of them: making it takes seconds."""

from collections.abc import Iterator

import pytest
from crash import Forge
from torture.workbench import Bench


@pytest.fixture(scope="package")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    home = tmp_path_factory.mktemp("torture")
    with Forge(home) as forge:
        yield Bench(home, forge)
