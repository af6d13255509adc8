"""Picture files of every kind are converted as `pictures.py` documents."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from headway.core.errors import UserError
from headway.data.images import pictures
from headway.data.images.pictures import decode_picture, read_picture


def saved(image: Image.Image, kind: str = "PNG", **how) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **how)
    return content.getvalue()


def halves(mode: str, first, second) -> Image.Image:
    """8 × 8 pixels: the upper half in one colour, the lower in another."""
    image = Image.new(mode, (8, 8), first)
    image.paste(second, (0, 4, 8, 8))
    return image


def test_a_plain_picture_is_unchanged():
    found = decode_picture(saved(halves("RGB", (10, 20, 30), (200, 100, 50))), 8, "x")
    assert found.pixels.shape == (3, 8, 8) and found.notes == ()
    assert found.pixels[:, 0, 0].tolist() == [10, 20, 30] and found.pixels[:, 7, 7].tolist() == [200, 100, 50]


def test_grey_has_three_equal_channels():
    found = decode_picture(saved(halves("L", 40, 200)), 8, "x").pixels
    assert found[:, 0, 0].tolist() == [40] * 3 and found[:, 7, 0].tolist() == [200] * 3


def test_sixteen_bits_keep_their_upper_eight():
    values = np.zeros((8, 8), np.uint16)
    values[:4], values[4:] = 65535, 32768
    found = decode_picture(saved(Image.fromarray(values)), 8, "x")
    assert found.pixels[0, 0, 0] == 255 and abs(int(found.pixels[0, 7, 0]) - 128) <= 1
    assert any("16 bits" in note for note in found.notes)


def test_transparent_parts_become_white():
    found = decode_picture(saved(halves("RGBA", (0, 0, 0, 0), (200, 0, 0, 255))), 8, "x")
    assert found.pixels[:, 0, 0].tolist() == [255] * 3 and found.pixels[:, 7, 0].tolist() == [200, 0, 0]
    assert found.notes
    assert decode_picture(saved(halves("RGBA", (1, 2, 3, 255), (4, 5, 6, 255))), 8, "x").notes == ()


def test_a_palette_with_a_transparent_colour():
    image = halves("RGB", (0, 0, 255), (255, 0, 0)).convert("P", palette=Image.Palette.ADAPTIVE, colors=2)
    blue = image.getpixel((0, 0))
    found = decode_picture(saved(image, transparency=blue), 8, "x").pixels
    assert found[:, 0, 0].tolist() == [255] * 3 and found[0, 7, 0] > 250 and found[1, 7, 0] < 5


def test_a_picture_is_rotated_by_its_exif_orientation():
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    content = saved(halves("RGB", (250, 0, 0), (0, 0, 250)), "JPEG", exif=exif, quality=100)
    found = decode_picture(content, 8, "x")
    assert found.pixels[2, 0, 0] > 150 > found.pixels[0, 0, 0]
    assert any("EXIF" in note for note in found.notes)


def test_the_first_frame_of_an_animation_is_used():
    frames = [halves("RGB", (c, c, c), (0, 0, 0)) for c in (250, 10, 90)]
    content = io.BytesIO()
    frames[0].save(content, "GIF", save_all=True, append_images=frames[1:])
    found = decode_picture(content.getvalue(), 8, "x")
    assert found.pixels[0, 0, 0] > 240 and any("frames" in note for note in found.notes)


def test_the_centre_of_a_picture_that_is_not_square_is_used():
    image = Image.new("RGB", (30, 10), (255, 0, 0))
    image.paste((0, 0, 255), (10, 0, 20, 10))
    assert (decode_picture(saved(image), 10, "x").pixels[2] == 255).all()
    assert decode_picture(saved(Image.new("RGB", (1, 3000), (9, 9, 9))), 16, "x").pixels.shape == (3, 16, 16)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims an enormous size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(60_000, 60_000), (2**30, 1), (10_000, 10_000)])
def test_a_bomb_is_refused_before_it_is_unpacked(size, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was unpacked"))
    with pytest.raises(UserError, match="pixels"):
        decode_picture(bomb(*size), 8, "bomb.png")


@pytest.mark.parametrize(
    "content",
    [b"", b"not a picture", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n"],
    ids=["empty", "text", "svg", "postscript"],
)
def test_a_file_that_is_no_picture_is_one_message(content, tmp_path):
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.png"):
        read_picture(tmp_path / "x.png", 8)


def test_a_truncated_picture(tmp_path):
    content = saved(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)))
    with pytest.raises(UserError, match="cannot be read as a picture"):
        decode_picture(content[: len(content) // 2], 8, "half.png")


def test_a_missing_picture(tmp_path):
    with pytest.raises(UserError, match="there is no picture"):
        read_picture(tmp_path / "none.png", 8)
    with pytest.raises(UserError, match="is a folder"):
        read_picture(tmp_path, 8)


@given(
    st.binary(max_size=200), st.sampled_from([b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff\xe0", b"BM", b"II*\0"])
)
def test_no_bytes_make_a_traceback(content, beginning):
    try:
        found = decode_picture(beginning + content, 8, "x")
    except UserError:
        return
    assert found.pixels.shape == (3, 8, 8)


def test_every_mode_of_pillow_becomes_colour():
    for mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16"):
        assert pictures._in_colour(Image.new(mode, (4, 4)), []).mode == "RGB", mode
