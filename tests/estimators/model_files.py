"""Model files of other contents, with the right checksum."""

import hashlib
import json

import numpy as np
from safetensors.numpy import load, save


def contents(path):
    """Return the description and the arrays of a model file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    arrays = load(content)
    del arrays["sha256"]
    return json.loads(metadata["skdpmf"]), arrays


def saved(model, path):
    """Save a model and return what its file holds."""
    model.save(path)
    return contents(path)


def sealed(content):
    """Return bytes whose last 32 are the checksum of those before them."""
    return content[:-32] + hashlib.sha256(content[:-32]).digest()


def forge(path, description, arrays):
    """Write a file that says this, a dict or the text of one."""
    if not isinstance(description, str):
        description = json.dumps(description, ensure_ascii=False)
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    stored["sha256"] = np.zeros(32, np.uint8)
    path.write_bytes(sealed(save(stored, {"skdpmf": description})))
    return path


def forge_header(path, description, table, content):
    """Write a file whose header has this table of arrays, and these bytes behind it."""
    at = len(content)
    last = {"sha256": {"dtype": "U8", "shape": [32], "data_offsets": [at, at + 32]}}
    header = {"__metadata__": {"skdpmf": description}, **table, **last}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(sealed(len(text).to_bytes(8, "little") + text + content + bytes(32)))
    return path
