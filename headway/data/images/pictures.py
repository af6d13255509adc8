"""A picture file as numbers, [3, size, size], red, green and blue from 0 to 255. What becomes of what is in it:

    too many pixels        refused by what its header says, before anything is unpacked
    turned by its EXIF     turned upright
    several frames         the first
    grey, 1 to 8 bits      the same value in all three colours; of 16 bits and more, the upper eight
    transparent            laid on white
    palette, CMYK …        as red, green and blue
    not square             made smaller until its shorter side fits, and the middle cut out

Files are read by Pillow, and only in formats that are nothing but pictures: none of those that run a program.
"""

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from headway.core.errors import UserError
from headway.core.reading import read_bytes

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MOST_PIXELS = 50_000_000
"""A picture of 7,000 × 7,000: 150 MB when it is unpacked. Files of a few kilobytes can claim to be a thousand times
that."""
LONGEST_SIDE = 30_000

Pixels = UInt8[np.ndarray, "3 S S"]


@dataclass(frozen=True, eq=False)
class DecodedPicture:
    pixels: Pixels
    name: str
    notes: tuple[str, ...] = ()
    """What was done to it that its owner may not expect."""


def read_picture(path: Path | str, size: int) -> DecodedPicture:
    """A file as a picture of this size; or a UserError that says why it is none."""
    path = Path(path).expanduser()
    try:
        content = read_bytes(path, through_links=True)
    except FileNotFoundError:
        raise UserError(f"there is no picture '{path}'") from None
    except IsADirectoryError:
        raise UserError(f"'{path}' is a folder; expected a picture") from None
    except OSError as problem:
        raise UserError(f"'{path}' cannot be read: {problem.strerror or problem}") from None
    return decode_picture(content, size, str(path))


def decode_picture(content: bytes, size: int, name: str) -> DecodedPicture:
    """What is in a file, as a picture of this size."""
    image, notes = open_image(content, name)
    return DecodedPicture(squared(image, size), name, tuple(notes))


def open_image(content: bytes, name: str) -> tuple[Any, list[str]]:
    """What is in a file as a Pillow image, upright and of three colours, in its own size; and what was done to it."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not content:
        raise UserError(f"'{name}' is empty; expected a picture")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # our own limit is stricter than the one that Pillow warns of
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            width, height = image.size
            if width * height > MOST_PIXELS or max(width, height) > LONGEST_SIDE:
                what = f"'{name}' says it has {width:,} × {height:,} pixels, in {len(content):,} bytes"
                raise UserError(f"{what}; at most {MOST_PIXELS:,} are unpacked: make it smaller first")
            notes = []
            if getattr(image, "is_animated", False):
                notes.append("the first of several frames")
                image.seek(0)
            image.load()
            upright = ImageOps.exif_transpose(image)
            if upright.size != image.size or image.getexif().get(0x0112, 1) != 1:
                notes.append("turned upright, as its EXIF says")
            return _in_colour(upright, notes), notes
        except UserError:
            raise
        except Image.DecompressionBombError:  # which Pillow says before it tells the size
            raise UserError(
                f"'{name}' says it has far more than {MOST_PIXELS:,} pixels; more are not unpacked"
            ) from None
        except UnidentifiedImageError:
            reason = f"it is none of {', '.join(FORMATS)}"
            raise UserError(f"'{name}' cannot be read as a picture: {reason}") from None
        except Exception as problem:  # Pillow's readers raise whatever a broken file makes of them
            raise UserError(f"'{name}' cannot be read as a picture: {str(problem) or type(problem).__name__}") from None


def squared(image: Any, size: int) -> Pixels:
    """The shorter side made this long, and the middle of the longer one."""
    from PIL import Image

    width, height = image.size
    if (width, height) != (size, size):
        scale = size / min(width, height)
        # A strip of 1 × 10,000 would be blown up to 224 × 2,240,000: what is not shown is cut off first.
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        resampling = Image.Resampling.BICUBIC if scale > 1 else Image.Resampling.LANCZOS
        image = image.resize((size, size), resampling, box=(left, top, left + side, top + side))
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).transpose(2, 0, 1))


def _in_colour(image: Any, notes: list[str]) -> Any:
    """As red, green and blue."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        values = np.asarray(image).astype(np.float64)
        notes.append("16 bits of grey, or more, made 8")
        most = 65535 if not image.mode.startswith("F") else max(float(np.nanmax(values, initial=0.0)), 1e-30)
        values = np.nan_to_num(values / most * 255).clip(0, 255)
        image = Image.fromarray(values.round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        if image.getextrema()[3][0] < 255:
            notes.append("transparent parts laid on white")
        below = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(below, image)
    return image.convert("RGB")


def is_picture(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".")
