"""Finds the pictures and captions that a user wants matched: pictures by path, folder or from a run's own data,
captions as text or from a file.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway import tasks
from headway.core.errors import UserError, did_you_mean
from headway.core.reading import read_bytes
from headway.data.images.pictures import is_picture, open_image
from headway.data.running.sources import read_text
from headway.draw.picture import Picture
from headway.experiment.load import load_usable
from headway.run.folder import Run, open_run, run_names
from headway.scoring.pictures.borrowed_matcher import open_borrowed
from headway.scoring.pictures.matching import Matcher, Shown
from headway.tasks.abilities import MatchesPictures

MAX_PICTURES = 5_000
_OF_SPLIT = re.compile(r"(?P<split>[\w-]+):(?P<first>\d+)(\.\.(?P<last>\d+))?")


def matcher_by_name(name: str, runs: Path, which: str = "auto") -> tuple[Matcher, Run | None]:
    """The matcher of a run, or of a pretrained model's folder; and the run, if it is one."""
    folder = Path(name).expanduser()
    if any((place / "run.json").exists() for place in (runs / name, folder)):
        run = open_run(name, runs)
        task = tasks.able(run, MatchesPictures)
        return task.matcher(run, load_usable(run, which)[0]), run
    if folder.is_dir():
        return open_borrowed(folder), None
    known = run_names(runs) if runs.is_dir() else []
    raise UserError(f"'{name}' is neither a run nor a model folder{did_you_mean(name, known)}")


def pictures_named(names: Sequence[str], run: Run | None) -> list[Shown]:
    """Pictures from files, folders, or a run's own data: test:3, test:0..15."""
    found: list[Shown] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            files = sorted(one for one in path.rglob("*") if is_picture(one))
            if not files:
                raise UserError(f"there are no pictures in the folder '{name}'")
            if len(files) > MAX_PICTURES:
                raise UserError(
                    f"'{name}' has {len(files):,} pictures; at most {MAX_PICTURES:,} can be matched at once"
                )
            found += [_opened(one) for one in files]
        elif (of_split := _OF_SPLIT.fullmatch(name)) and not path.exists():
            found += _of_split(run, of_split["split"], int(of_split["first"]), of_split["last"])
        else:
            found.append(_opened(path))
    return found


def look_at_picture(
    run: Run, image: str, caption: str, show: str, layer: int | None, head: int | None, which: str = "auto"
) -> tuple[Picture, dict[str, Any]]:
    """What `headway look --image` shows: the picture, and its numbers."""
    if show not in ("heads", "gradients"):
        raise UserError(f"--show {show}: a picture with a caption has only heads and gradients")
    if show == "gradients" and (layer, head) != (None, None):
        raise UserError("gradients cover the whole model: leave out --layer and --head")
    task, shown = tasks.able(run, MatchesPictures), pictures_named([image], run)
    if len(shown) != 1:
        raise UserError(f"look takes one picture, but '{image}' gives {len(shown)}")
    maps = task.look_at(run, load_usable(run, which)[0], shown[0], caption)
    return maps.draw(show, layer, head), {"run": str(run.folder), "show": show, **maps.as_json()}


def captions_named(given: Sequence[str]) -> list[str]:
    """Captions: given directly, or as text files with one caption per line."""
    found: list[str] = []
    for one in given:
        try:
            is_file = one.endswith((".txt", ".tsv", ".csv")) and Path(one).expanduser().is_file()
        except (OSError, ValueError):  # not a valid file name
            is_file = False
        if is_file:
            found += [line.strip() for line in read_text(Path(one).expanduser()).splitlines() if line.strip()]
        elif re.fullmatch(r"\S+\.txt", one):
            raise UserError(f"there is no caption file '{one}'")
        else:
            found.append(one)
    return found


def _opened(path: Path) -> Shown:
    try:
        content = read_bytes(path, through_links=True)
    except FileNotFoundError:
        raise UserError(f"there is no picture '{path}'") from None
    except OSError as problem:
        raise UserError(f"'{path}' cannot be read: {problem.strerror or problem}") from None
    image, notes = open_image(content, str(path))
    return Shown(str(path), image, tuple(notes))


def _of_split(run: Run | None, split: str, first: int, last: str | None) -> list[Shown]:
    if run is None:
        raise UserError(f"{split}:{first} needs a run's own data, and this model is not a run: give picture files")
    tasks.able(run, MatchesPictures)
    task = tasks.load_for(run)
    assert isinstance(task, MatchesPictures)
    places = range(first, int(last) + 1) if last else [first]
    if not places:
        raise UserError(f"{split}:{first}..{last} is empty: the last number is smaller than the first")
    if len(places) > MAX_PICTURES:
        raise UserError(f"{split}:{first}..{last}: at most {MAX_PICTURES:,} pictures can be matched at once")
    run.count_looks_at_test([split])
    return task.shown(split, places)
