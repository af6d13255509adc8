"""A binary format for numbers: a JSON header, followed by arrays in their memory layout.

    4 bytes        length of the header, little-endian
    header         {…, "arrays": {name: {"dtype", "shape", "at"}}}, padded with blanks to a multiple of 8
    arrays         each starts `at` bytes after the header, at a multiple of 8

A browser can read it without copying (`static/frames.js`). 144 maps of 128 × 128 cells are 2.4 MB, without parsing.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

DTYPES = {"uint8": np.uint8, "float16": np.float16, "float32": np.float32}


def pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    places, bodies, at = {}, [], 0
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"{name} has dtype {array.dtype}; pages can read {', '.join(DTYPES)}")
        body = np.ascontiguousarray(array).tobytes()
        places[name] = {"dtype": array.dtype.name, "shape": list(array.shape), "at": at}
        bodies.append(body + bytes(-len(body) % 8))
        at += len(bodies[-1])
    text = json.dumps({**header, "arrays": places}, ensure_ascii=False, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return b"".join([len(text).to_bytes(4, "little"), text, *bodies])


def half(weights: np.ndarray) -> np.ndarray:
    """As float16; weights above zero stay above zero, since a blank cell says that a weight is exactly zero."""
    found = weights.astype(np.float16)
    return np.where((weights > 0) & (found == 0), np.finfo(np.float16).smallest_subnormal, found)


def unpack(frame: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    length = int.from_bytes(frame[:4], "little")
    header = json.loads(frame[4 : 4 + length])
    arrays = {}
    for name, place in header.pop("arrays").items():
        count = int(np.prod(place["shape"], dtype=np.int64))
        found = np.frombuffer(frame, DTYPES[place["dtype"]], count, 4 + length + place["at"])
        arrays[name] = found.reshape(place["shape"])
    return header, arrays
