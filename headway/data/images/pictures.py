"""Decode picture files to arrays [3, size, size], RGB from 0 to 255.

    too many pixels        refused by the size in the header, before decoding
    EXIF orientation       rotated upright
    several frames         only the first is used
    greyscale              the same value in all three channels; 16 bits and more are reduced to 8
    transparent            composited on white
    palette, CMYK …        converted to RGB
    not square             resized so that the shorter side fits, then cropped to the centre

Files are read by Pillow, in a fixed list of formats that contain no programs.
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
MAX_PIXELS = 50_000_000
"""About 7,000 × 7,000 pixels, 150 MB when decoded. A file of a few kilobytes can claim a thousand times as many."""
LONGEST_SIDE = 30_000

Pixels = UInt8[np.ndarray, "3 S S"]


@dataclass(frozen=True, eq=False)
class DecodedPicture:
    pixels: Pixels
    name: str
    notes: tuple[str, ...] = ()
    """Conversions that the user may not expect."""


def read_picture(path: Path | str, size: int) -> DecodedPicture:
    """Read a file as a picture of this size, or raise a UserError."""
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
    """Decode the content of a file as a picture of this size."""
    image, notes = open_image(content, name)
    return DecodedPicture(squared(image, size), name, tuple(notes))


def open_image(content: bytes, name: str) -> tuple[Any, list[str]]:
    """Decode the content of a file as a Pillow image, upright, RGB, in its own size; also returns notes on
    conversions."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not content:
        raise UserError(f"'{name}' is empty; expected a picture")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # our limit is stricter than the one of Pillow's warning
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            width, height = image.size
            if width * height > MAX_PIXELS or max(width, height) > LONGEST_SIDE:
                what = f"'{name}' claims {width:,} × {height:,} pixels in {len(content):,} bytes"
                raise UserError(f"{what}; the limit is {MAX_PIXELS:,}: make it smaller first")
            notes = []
            if getattr(image, "is_animated", False):
                notes.append("only the first of several frames is used")
                image.seek(0)
            image.load()
            upright = ImageOps.exif_transpose(image)
            if upright.size != image.size or image.getexif().get(0x0112, 1) != 1:
                notes.append("rotated upright, according to its EXIF")
            return _in_colour(upright, notes), notes
        except UserError:
            raise
        except Image.DecompressionBombError:  # Pillow raises this before it gives the size
            raise UserError(
                f"'{name}' claims far more than {MAX_PIXELS:,} pixels, the limit: make it smaller first"
            ) from None
        except UnidentifiedImageError:
            reason = f"it is not one of {', '.join(FORMATS)}"
            raise UserError(f"'{name}' cannot be read as a picture: {reason}") from None
        except Exception as problem:  # Pillow's decoders raise many kinds of exceptions on broken files
            raise UserError(f"'{name}' cannot be read as a picture: {str(problem) or type(problem).__name__}") from None


def squared(image: Any, size: int) -> Pixels:
    """Resize the shorter side to `size` and crop the centre."""
    from PIL import Image

    width, height = image.size
    if (width, height) != (size, size):
        scale = size / min(width, height)
        # Crop before resizing: a strip of 1 × 10,000 would become 224 × 2,240,000.
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        resampling = Image.Resampling.BICUBIC if scale > 1 else Image.Resampling.LANCZOS
        image = image.resize((size, size), resampling, box=(left, top, left + side, top + side))
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).transpose(2, 0, 1))


def _in_colour(image: Any, notes: list[str]) -> Any:
    """Convert to RGB."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        values = np.asarray(image).astype(np.float64)
        notes.append("greyscale of 16 bits or more reduced to 8")
        most = 65535 if not image.mode.startswith("F") else max(float(np.nanmax(values, initial=0.0)), 1e-30)
        values = np.nan_to_num(values / most * 255).clip(0, 255)
        image = Image.fromarray(values.round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        if image.getextrema()[3][0] < 255:
            notes.append("transparent parts composited on white")
        below = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(below, image)
    return image.convert("RGB")


def is_picture(path: Path) -> bool:
    """Whether the file name is that of a picture."""
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".")
