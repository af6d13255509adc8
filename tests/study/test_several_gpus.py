"""Populations on several GPUs: one process per GPU, and what happens if one dies. Here the processes compute on the
CPU, and recognise their GPU by CUDA_VISIBLE_DEVICES."""

import json
import os
import signal

import pytest
from listening import Told
from small import small_study

from headway.core.errors import UserError
from headway.core.events import Began, Ended, Event, Stepped, Warned
from headway.core.plugins import forget, load_plugin
from headway.core.status import State
from headway.study.execution import plan as planning
from headway.study.execution import sharing
from headway.study.execution.execute import execute, executor_named, suited
from headway.study.execution.executor import Workforce
from headway.study.execution.in_process import InProcess
from headway.study.execution.plan import Speed, plan
from headway.study.execution.pool import Gpus, Pool, gpus_here
from headway.study.execution.populations import loads, populations_for
from headway.study.results.results import read_results

SCORE = "valid.perplexity"
ARMS = {"slow": ["training.optimizer.learning_rate=1e-4"], "fast": [], "wide": ["model.width=32"]}


@pytest.fixture(autouse=True)
def cache(workshop, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(workshop.cache))


# --- distribution ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arms", "seeds", "gpus", "sizes"),
    [
        (1, 32, 4, [8, 8, 8, 8]),
        (8, 32, 8, [32] * 8),  # not split: a population costs little more than one of its runs
        (8, 32, 4, [32] * 8),
        (2, 6, 1, [6, 6]),
        (1, 5, 4, [2, 2, 1]),  # with four parts it would not finish sooner
        (1, 3, 8, [1, 1, 1]),
        (5, 32, 4, [11, 11, 10] * 5),
    ],
)
def test_populations_are_split_no_further_than_keeps_all_gpus_busy(workshop, arms, seeds, gpus, sizes):
    widths = {f"w{k}": [f"model.width={16 * (k + 1)}"] for k in range(arms)}
    runs = small_study(workshop.text, arms=widths, questions=[], seeds=seeds).runs()
    found = populations_for(runs, gpus)
    assert [len(part) for part in found] == sizes
    assert [run.name for part in found for run in part] == [run.name for run in runs]


def test_the_next_population_goes_to_the_first_free_worker():
    assert loads([3, 1, 1, 1, 2], 2) == [5, 3]
    assert loads([], 3) == [0, 0, 0]


def test_a_study_uses_all_gpus_unless_one_is_named(workshop, monkeypatch):
    import torch

    from headway.training import setting

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *which: "a GPU")
    monkeypatch.setattr(setting, "_precision", lambda *given: (torch.float32, "float32"))
    study = small_study(workshop.text, changes=["training.device=auto"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_here() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5a,-1")
    assert executor_named(None, None, study) == executor_named("gpus", 2, study) == Gpus(("3", "GPU-5a"))
    assert suited(study).workforce == Workforce(processes=2, gpus=2)
    assert executor_named(None, 1, study) == InProcess() and suited(study, 1).workforce == Workforce(1, gpus=1)
    shared = executor_named(None, 4, study)
    assert shared == Gpus(("3", "GPU-5a", "3", "GPU-5a")) and shared.workforce == Workforce(4, gpus=2)
    asked = small_study(workshop.text, changes=["training.device=cuda:1"])
    assert executor_named(None, None, asked) == executor_named(None, 1, asked) == InProcess()
    with pytest.raises(UserError, match=r"training.device=cuda:1 allows only one process, not 3"):
        executor_named(None, 3, asked)
    with pytest.raises(UserError, match=r"training.device=cuda:1 is one GPU, and --on gpus uses all"):
        executor_named("gpus", None, asked)
    assert executor_named(None, 3, small_study(workshop.text, changes=["training.device=cpu"])) == Pool(3)


def test_by_default_there_are_as_many_processes_as_populations_and_cores_allow(workshop, monkeypatch):
    def processes(shapes: int, cores: int, *gpus: str) -> Workforce:
        monkeypatch.setattr(sharing, "cores", lambda: cores)
        widths = {f"w{k}": [f"model.width={16 * (k + 1)}"] for k in range(shapes)}
        runs = small_study(workshop.text, arms=widths, questions=[], seeds=4).runs()
        return Gpus.suited(runs, gpus).workforce

    assert processes(5, 16, "0") == processes(5, 64, "0") == Workforce(4, gpus=1)
    assert processes(3, 16, "0") == Workforce(3, gpus=1)
    assert processes(2, 16, "0") == processes(4, 8, "0") == Workforce(2, gpus=1)
    assert processes(1, 16, "0") == processes(4, 4, "0") == processes(4, 1, "0") == Workforce(1, gpus=1)
    assert processes(6, 64, "0", "1") == Workforce(6, gpus=2)
    assert processes(2, 64, "0", "1") == processes(6, 8, "0", "1") == Workforce(2, gpus=2)


def test_the_plan_shows_the_number_of_gpus_and_the_time(workshop, capsys):
    from headway.cli.study_printing import show_plan

    study = small_study(workshop.text, arms=ARMS, questions=[], seeds=4)
    one, two = plan(study, Workforce(1, gpus=1)), plan(study, Workforce(2, gpus=2))
    assert [(p.runs, p.at_once) for p in one.populations] == [(8, 8), (4, 4)]
    assert [(p.runs, p.at_once) for p in two.populations] == [(8, 4), (4, 2)]
    show_plan(two)
    assert (
        "2 model shapes, as populations of up to 4 distributed over 2 GPUs, one process each" in capsys.readouterr().out
    )


def test_the_plan_accounts_for_processes_that_share_a_gpu(workshop, monkeypatch, capsys):
    """Two populations at once need the memory of two, each may use half of it, and together they take as long as in
    turn."""
    from headway.cli.study_printing import show_plan

    shares = []

    def speed(recipe, sizes, wanted, members, seconds, share):
        shares.append(share)
        return Speed(wanted, 1.0, 2**30, 0.0)

    monkeypatch.setattr(planning, "speed", speed)
    study = small_study(workshop.text, arms=ARMS, questions=[], seeds=4)
    one, shared = (plan(study, Workforce(processes, gpus=1)) for processes in (1, 2))
    assert shares == [1, 1, 0.5, 0.5]
    assert (one.memory, shared.memory) == (2**30, 2**31) and shared.seconds == one.seconds
    show_plan(shared)
    assert "distributed over 1 GPU, shared by 2 processes; 2.00 GiB of GPU memory" in capsys.readouterr().out
    for processes, populations, on_each in ((4, 4, 2), (4, 3, 2), (4, 1, 1), (2, 4, 1), (3, 9, 2)):
        assert Workforce(processes, gpus=2).share_one(populations) == on_each


# --- training --------------------------------------------------------------------------------------------------------


def test_every_gpu_trains_populations_and_the_scores_equal_those_of_one_process(workshop, tmp_path):
    study, told = small_study(workshop.text, arms=ARMS, questions=[], seeds=2), Told()
    outcome = execute(study, tmp_path / "two", Gpus(("0", "1")), [told])
    assert (outcome.done, outcome.failed, outcome.interrupted) == (6, {}, False)
    together = [set(event.of) for event in told.of_kind(Began)]
    assert {"fast.seed-0", "fast.seed-1"} in together and len(together) == 4
    facts = json.loads((tmp_path / "two" / "runs" / "fast.seed-0" / "run.json").read_text())
    assert facts["population"] == [0, 1]
    execute(study, tmp_path / "one", InProcess())
    alone = read_results(tmp_path / "one").table(SCORE)
    for arm, row in read_results(tmp_path / "two").table(SCORE).items():
        assert row == pytest.approx(alone[arm], rel=1e-5)


def test_a_gpu_shared_by_two_processes_trains_whole_populations(workshop, tmp_path):
    """They are not split for it, because two at once on one GPU take as long as one after the other; only what follows
    training overlaps with the next training."""
    study, told = small_study(workshop.text, arms=ARMS, questions=[], seeds=2), Told()
    outcome = execute(study, tmp_path / "shared", Gpus(("0", "0")), [told])
    assert (outcome.done, outcome.failed, outcome.interrupted) == (6, {}, False)
    together = {event.of for event in told.of_kind(Began)}
    assert {len(names) for names in together} == {2, 4}


@pytest.mark.slow
def test_a_killed_process_loses_only_its_population(workshop, tmp_path):
    arms = {"endless": ["training.duration=9M steps", "model.width=32"], "short": [], "wide": ["model.width=48"]}

    def kill(event: Event) -> None:
        if isinstance(event, Stepped) and (name := event.of[0]).startswith("endless"):
            os.kill(int((tmp_path / "x" / "runs" / name / "lock").read_text()), signal.SIGKILL)

    study = small_study(workshop.text, arms=arms, questions=[], seeds=2)
    outcome = execute(study, tmp_path / "x", Gpus(("0", "1")), [kill])
    assert outcome.failed.keys() == {"endless.seed-0", "endless.seed-1"} and outcome.done == 4
    assert str(outcome.failed["endless.seed-0"]).startswith("GPU 0: its process was killed by SIGKILL")


FULL = '''
import os
from typing import Literal

from headway.nn.positions import NoPositions


class OnTheOther(NoPositions):
    """Takes more memory than GPU 0 has."""

    kind: Literal["on-the-other"] = "on-the-other"

    def build(self, replicas, width, heads, context):
        if os.environ["CUDA_VISIBLE_DEVICES"] in {places}:
            raise MemoryError
        return super().build(replicas, width, heads, context)
'''


@pytest.mark.slow
@pytest.mark.parametrize(("full", "fail"), [("('0',)", False), ("('0', '1')", True)])
def test_populations_of_a_full_gpu_go_to_another(workshop, tmp_path, full, fail, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")  # for this process, which measures the sizes
    (tmp_path / "full.py").write_text(FULL.replace("{places}", full))
    plugin = load_plugin(tmp_path / "full.py")
    arms = {f"a{k}": ["model.positions=on-the-other", f"model.width={16 * (k + 1)}"] for k in range(4)}
    try:
        study, told = small_study(workshop.text, arms=arms, questions=[], seeds=1), Told()
        outcome = execute(study, tmp_path / "x", Gpus(("0", "1")), [told])
    finally:
        forget(plugin)
    said = [event.text for event in told.of_kind(Warned)]
    which = "GPU " if fail else "GPU 0"
    assert any(which in text and "its memory is full; these runs go to another GPU" in text for text in said)
    if fail:
        assert outcome.done == 0 and len(outcome.failed) == 4
        assert all("memory" in str(how).lower() for how in outcome.failed.values())
        return
    assert (outcome.done, outcome.failed) == (4, {})
    assert sum("its memory is full" in text for text in said) <= 2  # then it is no longer used
    assert [event.status.state for event in told.of_kind(Ended)] == [State.FINISHED] * 4


CROWDED = '''
import os
from pathlib import Path
from typing import Literal

from headway.nn.positions import NoPositions


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return process != os.getpid()


class Alone(NoPositions):
    """Takes more than half of the memory of a GPU."""

    kind: Literal["alone"] = "alone"

    def build(self, replicas, width, heads, context):
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            there = Path("{there}")
            (there / str(os.getpid())).touch()
            if any(is_alive(int(one.name)) for one in there.iterdir()):
                raise MemoryError
        return super().build(replicas, width, heads, context)
'''


@pytest.mark.slow
def test_a_population_that_does_not_fit_beside_others_waits_for_them(workshop, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # for this process, which measures the sizes
    (there := tmp_path / "there").mkdir()
    (tmp_path / "alone.py").write_text(CROWDED.replace("{there}", str(there)))
    plugin = load_plugin(tmp_path / "alone.py")
    arms = {f"a{k}": ["model.positions=alone", f"model.width={16 * (k + 1)}"] for k in range(3)}
    try:
        study, told = small_study(workshop.text, arms=arms, questions=[], seeds=1), Told()
        outcome = execute(study, tmp_path / "x", Gpus(("0", "0", "0")), [told])
    finally:
        forget(plugin)
    assert (outcome.done, outcome.failed) == (3, {})
    assert any("its memory is full" in text for text in told.warned)
