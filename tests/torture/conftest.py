"""One bench for all tests of this folder, because making it takes seconds."""

import pytest
from crash import Forge
from torture.workbench import Bench


@pytest.fixture(scope="package")
def bench(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    home = tmp_path_factory.mktemp("torture")
    return Bench(home, forge.at(home, HEADWAY_CACHE=str(home / "cache")))
