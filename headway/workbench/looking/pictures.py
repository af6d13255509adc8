"""A run's model with pictures: from its own data, or uploaded by the user.

Each picture of the data is opened once, however many captions are tried with it. So the data are not loaded again, and
several captions for a picture of the test split count as one look at test.
"""

import base64
import binascii
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway import tasks
from headway.core.errors import UserError
from headway.data.images.pictures import open_image
from headway.run.folder import Run
from headway.scoring.pictures.matching import Shown
from headway.tasks.abilities import MatchesPictures
from headway.workbench.looking.frames import half, pack

FIRST = "valid:0"
"""The first picture of a page. It is not from test, since looks at test are counted."""


class PictureDesk:
    def __init__(self, run: Run, model: Any):
        self.run, self.model = run, model
        self._opened: dict[str, tuple[Shown, str]] = {}

    def match(self, text: str, image: str = FIRST, picture: str | None = None) -> bytes:
        """Match a picture with a caption: their cosine, and the attention of each head. `image`: one of the run's own
        data (test:3); `picture`: the bytes of a picture file in base64."""
        kind = tasks.able(self.run, MatchesPictures)
        shown, caption = self.of_data(image) if picture is None else (brought(picture), None)
        maps = kind.look_at(self.run, self.model, shown, text)
        among = {"patches": maps.among_patches, "words": maps.among_words}
        heads = [{"of": of, "layer": layer, "head": head} for of, found in among.items() for layer, head in found]
        arrays = {"pixels": maps.pixels, "by_patch": _half(maps.by_patch), "by_word": _half(maps.by_word)}
        for of, found in among.items():
            if found:
                arrays[f"among_{of}"] = _half(torch.stack(list(found.values())))
        header = {
            "image": shown.name,
            "caption": caption,
            "cosine": maps.cosine,
            "tokens": list(maps.tokens),
            "heads": heads,
            "notes": [*maps.sentence.warnings, *shown.notes],
        }
        return pack(header, arrays)

    def of_data(self, name: str) -> tuple[Shown, str]:
        """A picture of the run's data, with its caption there."""
        if name not in self._opened:
            split, _, place = name.partition(":")
            if not place.isdecimal():
                raise UserError(f"'{name}' is not a picture of the run's own data; expected valid:0, valid:1 …")
            (shown,) = self._data.shown(split, [int(place)])
            self.run.count_looks_at_test([split])
            self._opened[name] = shown, self._data.caption_of(split, int(place))
        return self._opened[name]

    @cached_property
    def _data(self) -> MatchesPictures:
        tasks.able(self.run, MatchesPictures)
        task = tasks.load_for(self.run)
        assert isinstance(task, MatchesPictures)
        return task


def brought(picture: str) -> Shown:
    """An uploaded picture. The file may contain anything, so it is checked first."""
    try:
        content = base64.b64decode(picture, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("the picture is not valid base64: send the bytes of its file in base64") from None
    image, notes = open_image(content, "your picture")
    return Shown("your picture", image, tuple(notes))


def _half(weights: Tensor) -> np.ndarray:
    return half(weights.float().numpy(force=True))
