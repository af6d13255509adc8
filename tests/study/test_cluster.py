"""Studies on a Ray cluster: two nodes on this machine, one of which dies."""

import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from listening import Told
from small import small_study
from tiny import snapshot

from headway.core.errors import UserError
from headway.core.events import Ended
from headway.experiment import population
from headway.run.folder import open_run
from headway.study.execution import cluster
from headway.study.execution.cluster import Ray, pack, train_there, unpack
from headway.study.execution.execute import execute, executor_named
from headway.study.execution.executor import order_for
from headway.study.execution.in_process import InProcess
from headway.study.execution.pool import Pool
from headway.study.execution.populations import populations_for
from headway.study.results.results import read_results

SCORE = "valid.perplexity"


@pytest.fixture(autouse=True)
def cache(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))


# --- without a cluster -----------------------------------------------------------------------------------------------


def test_addresses_of_clusters_are_parsed(workshop):
    study = small_study(workshop.text)
    assert executor_named("ray", 2, study) == Ray(None, 2)
    assert executor_named("ray://head:10001", None, study) == Ray("ray://head:10001")


@pytest.mark.parametrize("address", ["ray://", "ray://head", "ray://head:port", "ray://head:99999"])
def test_an_invalid_address_is_refused_immediately(address):
    with pytest.raises(UserError, match="is no cluster address; expected ray://HOST:PORT"):
        cluster._check_reachable(address)


def test_an_address_without_a_cluster_is_one_message(workshop, tmp_path):
    pytest.importorskip("ray", reason="the extra 'cluster' is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UserError, match=f"there is no cluster at {address}: Connection refused"):
        execute(small_study(workshop.text), tmp_path / "x", Ray(address))
    assert not list((tmp_path / "x" / "runs").iterdir())


def test_without_ray_the_message_says_what_to_install(workshop, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'headway\[cluster\]'"):
        execute(small_study(workshop.text), tmp_path / "x", Ray())


def test_populations_are_distributed_over_gpus_and_runs_over_cores(workshop):
    arms = {"slow": ["training.optimizer.learning_rate=1e-4"], "fast": [], "wide": ["model.width=32"]}
    runs = small_study(workshop.text, arms=arms, questions=[], seeds=5).runs()
    assert [len(parcel) for parcel in populations_for(runs, gpus=0)] == [1] * 15
    assert [len(parcel) for parcel in populations_for(runs, gpus=2)] == [5, 5, 3, 2]
    assert [run.name for parcel in populations_for(runs, gpus=3) for run in parcel] == [run.name for run in runs]


def test_a_population_is_returned_as_complete_run_folders(workshop, tmp_path):
    runs = small_study(workshop.text).runs()[:2]
    orders = [order_for(run) for run in runs]
    for run, found in zip(runs, train_there(orders), strict=True):
        unpack(found["folder"], tmp_path / run.name)
        made = open_run(run.name, tmp_path)
        assert made.recipe == run.recipe and str(made.status) == "finished"
        assert made.checkpoint("last").step == 4
        assert [path.name for path in made.home.iterdir()] == ["step-00000004"]
        packed = pack(tmp_path / run.name)
        unpack(packed, tmp_path / "again")
        assert snapshot(tmp_path / "again") == snapshot(tmp_path / run.name)


def test_warnings_are_returned_with_the_runs(workshop, monkeypatch):
    """On the cluster nobody would see them."""
    runs = small_study(workshop.text).runs()[:2]
    train = population.train

    def filled(recipes, *rest):
        if len(recipes) > 1:
            raise MemoryError
        return train(recipes, *rest)

    monkeypatch.setattr(population, "train", filled)
    orders = [order_for(run) for run in runs]
    first, second = train_there(orders)
    assert first["warnings"] == ["out of memory: continuing with 1 replicas at a time, from the last checkpoints"]
    assert "folder" in first and "folder" in second


def test_remote_failures_are_reported_with_their_reason(workshop):
    (run, *_) = small_study(workshop.text).runs()
    tree = run.recipe.model_dump(mode="json")
    tree["data"]["path"] = "/nowhere/at-all.txt"
    found = train_there([{"name": run.name, "recipe": tree, "plugins": {}}])
    assert "/nowhere/at-all.txt" in found["failed"] and "Traceback" in found["details"]


def test_ray_never_starts_in_a_folder_that_may_contain_modules(tmp_path, monkeypatch):
    """Ray puts that folder first on the path of its workers."""
    (tmp_path / "yaml.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    called: list[list[str]] = []

    def there() -> list[str]:
        return [path.name for path in Path.cwd().iterdir()]

    fake = SimpleNamespace(init=lambda **_: called.append(there()), shutdown=lambda: called.append(there()))
    monkeypatch.setattr(cluster, "_imported", lambda: fake)
    monkeypatch.setattr(Ray, "_check_version", lambda self, ray: None)
    with Ray()._connected():
        assert Path.cwd() == tmp_path
    assert called == [[], ["yaml.py"]]


def test_paths_are_relative_to_where_the_study_was_started(workshop, tmp_path, monkeypatch):
    (run, *_) = small_study(workshop.text).runs()
    tree = run.recipe.model_dump(mode="json")
    tree["data"]["path"] = "own.txt"
    (tmp_path / "own.txt").write_text(workshop.text.read_text())
    order = {"name": run.name, "recipe": tree, "plugins": {}}
    before = Path.cwd()
    assert "folder" in train_there([order], str(tmp_path)) and "failed" in train_there([order])
    assert Path.cwd() == before


# --- with one --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_import_nothing_from_the_current_folder(workshop, tmp_path: Path, monkeypatch):
    pytest.importorskip("ray", reason="the extra 'cluster' is not installed")
    for module in ("yaml", "safetensors", "optuna", "headway"):
        (tmp_path / f"{module}.py").write_text(
            f"open({str(tmp_path / 'was-run')!r}, 'w')\nraise ImportError('hostile')"
        )
    (tmp_path / "own.txt").write_text(workshop.text.read_text())
    monkeypatch.chdir(tmp_path)
    outcome = execute(small_study(Path("own.txt")), tmp_path / "ray", Ray(workers=1))
    assert outcome.failed == {} and not (tmp_path / "was-run").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_study_survives_the_loss_of_one_of_two_nodes(workshop, tmp_path: Path):
    pytest.importorskip("ray", reason="the extra 'cluster' is not installed")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        doomed = nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes()
        study = small_study(workshop.text, seeds=4, changes=["training.duration=600 steps"])
        told = Told()

        def kill(event):
            """When the first run has been returned, a node dies, with whatever it is training."""
            if isinstance(event, Ended) and len(told.of_kind(Ended)) == 1:
                nodes.remove_node(doomed, allow_graceful=False)

        outcome = execute(study, tmp_path / "ray", Ray(nodes.address), [told, kill])
        assert told.said[0] == "ray: 2 machines, 2 cores"
        assert (outcome.done, outcome.failed) == (8, {})
    finally:
        nodes.shutdown()
    execute(study, tmp_path / "here", Pool(2))
    assert read_results(tmp_path / "ray").table(SCORE) == read_results(tmp_path / "here").table(SCORE)
    assert execute(study, tmp_path / "ray", InProcess()).done == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_is_reached_from_outside_by_its_address(workshop, tmp_path: Path):
    """With ray://, from a machine outside of the cluster."""
    pytest.importorskip("ray", reason="the extra 'cluster' is not installed")
    pytest.importorskip("grpc", reason="ray's client is not installed")
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = {"num_cpus": 2, "include_dashboard": False, "ray_client_server_port": port}
    nodes = Cluster(initialize_head=True, head_node_args=arguments)
    try:
        _wait_for(port)  # it accepts clients slightly later than it starts
        for _ in range(3):
            try:
                outcome = execute(small_study(workshop.text), tmp_path / "x", Ray(f"ray://127.0.0.1:{port}"))
                break
            except UserError as error:  # Ray's server for clients has a fixed port, which may be taken
                assert "Starting Ray client server failed" in str(error)
        assert (outcome.done, outcome.failed) == (4, {})
    finally:
        nodes.shutdown()
        os.environ.pop("RAY_ADDRESS", None)


def _wait_for(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.1)
