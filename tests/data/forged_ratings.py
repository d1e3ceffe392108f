"""Ratings with right checksums and wrong content, tried out in a process of its own.

``python -m tests.data.forged_ratings FOLDER`` prints one line a case: its name, and "refused"
or the error that came instead. A crash ends the output.
"""

import copy
import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from skdpmf import CacheSGDFactorizer
from skdpmf.data import ParquetRatings, parquet_ratings
from skdpmf.data.ratings_folder import serialised, signed

N_USERS, N_ITEMS, PART_ROWS = 7, 5, 4
LENGTHS = [N_USERS, N_ITEMS, N_ITEMS]
HUGE = (2**31, 2**62, 2**63, 10**30)
NO_COUNTS = (-1, *HUGE, 1.0, "1", None, True, [1], {})
WRONG = {
    "user": (-1, 2**31 - 1, -(2**31), N_USERS),
    "item": (-1, 2**31 - 1, -(2**31), N_ITEMS),
    "rating": (np.nan, np.inf, -np.inf),
}
NO_TEXTS = (1, None, "", [], {}, "\0")
OUTSIDE = ("../outside.json", "/etc/passwd", "..", ".", "manifest.json", "a/../b", "ratings.bin")


def ratings():
    rng = np.random.default_rng(0)
    X = rng.integers(1, 6, (N_USERS, N_ITEMS)).astype(float)
    X[rng.random(X.shape) < 0.3] = np.nan
    return X


def chunks():
    users, items = np.nonzero(~np.isnan(ratings()))
    names, values = np.array(list("abcde"))[items], ratings()[users, items]
    return [pd.DataFrame({"user": users + 10, "item": names, "rating": values})]


def titled():
    return pd.DataFrame({"item": list("abcde"), "title": list("ABCDE")})


def put(path, manifest):
    """Write a manifest such that its own checksum is right."""
    (path / "manifest.json").write_bytes(serialised(signed(manifest)))


def manifest_cases(manifest):
    """Name, and a manifest in which one value is not what it may be."""
    optional = ("user_ids", "item_ids", "titles")
    for key in sorted(manifest.keys() - {"format", "version", "fingerprint"}):
        without = {name: value for name, value in manifest.items() if name != key}
        # one is there where something was read off, the others where ids are known
        if key not in ("undeclared", *optional):
            yield f"without {key}", without
        for value in NO_COUNTS:
            if value is not None or key not in optional:
                yield f"{key}={value!r:.40}", {**manifest, key: value}
        old = manifest[key]
        nested = old[1] if key == "parts" else old if key in optional else []
        for inner, value in enumerate(nested):
            is_file = key == "parts" and inner == 0
            for bad in NO_TEXTS + OUTSIDE * is_file if isinstance(value, str) else NO_COUNTS:
                changed = copy.deepcopy(manifest)
                (changed[key][1] if key == "parts" else changed[key])[inner] = bad
                yield f"{key}.{inner}={bad!r:.40}", changed
    for shape in ([N_USERS], [N_USERS, N_ITEMS, 1], "75", [0, 0]):
        yield f"shape={shape}", {**manifest, "shape": shape}
    for place in (0, 1):
        for value in (*NO_COUNTS, 0, 4, 6, 8):
            if value != (N_USERS, N_ITEMS)[place]:
                shape = [N_USERS, N_ITEMS]
                shape[place] = value
                yield f"shape={shape!r:.60}", {**manifest, "shape": shape}
    for rows in (1, 3, 4, 100, 65537):
        yield f"group_rows={rows}", {**manifest, "group_rows": rows}


def content_cases(path, manifest):
    """Name, and a part of whose numbers one is wrong, or two are in the wrong order."""
    for number, part in enumerate(manifest["parts"]):
        stored = [
            pq.ParquetFile(path / part[0]).read_row_group(group).to_pydict()
            for group in range(pq.ParquetFile(path / part[0]).num_row_groups)
        ]
        for group, columns in enumerate(stored):
            others = [row for row in (0, 2, 4, 6) if row != part[1] + 2 * group]
            wrong = WRONG | {"user": (*WRONG["user"], *others)}
            for at in sorted({0, len(columns["user"]) - 1}):
                for name, value in [(key, bad) for key in wrong for bad in wrong[key]]:
                    changed = copy.deepcopy(stored)
                    changed[group][name][at] = value
                    yield f"{name}[{number}, {group}][{at}]={value}", number, changed
            changed = copy.deepcopy(stored)
            changed[group]["item"] = columns["item"][::-1]
            yield f"item[{number}, {group}] reversed", number, changed


def forged_part(path, manifest, number, groups):
    """The bytes of such a part, and the manifest with their checksum."""
    types = {"user": pa.int32(), "item": pa.int32(), "rating": pa.float32()}
    schema = pa.schema(list(types.items()))
    file = path / "forged"
    with pq.ParquetWriter(file, schema) as writer:
        for group in groups:
            writer.write_table(pa.table(group, schema=schema))
    content = file.read_bytes()
    file.unlink()
    return content, with_part(manifest, number, content)


def with_part(manifest, number, content):
    claim = copy.deepcopy(manifest)
    claim["parts"][number][4:] = len(content), hashlib.sha256(content).hexdigest()
    return claim


def label_cases(manifest):
    lists = ["", "[", "{}", "1", '"abcde"', "[1,2,3,4]", "[[1],2,3,4,5]", "[1,2,3,4,null]"]
    lists += ["[1,2,3,4,1.5]", "[1,2,3,4,true]", "[" * 100_000, "\x80", "[1,2,3,4,NaN]", "x" * 55]
    for name in ("user_ids", "item_ids", "titles"):
        for text in lists:
            content = text.encode("latin-1")
            about = len(content), hashlib.sha256(content).hexdigest()
            yield f"{name}: {text!r:.30}", f"{name}.json", content, {**manifest, name: about}


def part_cases(path, manifest):
    """Parts whose bytes were changed, and their checksums with them."""
    rng = np.random.default_rng(1)
    for number, part in enumerate(manifest["parts"]):
        content = (path / part[0]).read_bytes()
        for k in range(30):
            changed = bytearray(content)
            for at in rng.integers(len(changed), size=1 + k % 3):
                changed[at] ^= 1 << int(rng.integers(8))
            claim = with_part(manifest, number, bytes(changed))
            yield f"bytes of part {number}, {k}", part[0], bytes(changed), claim


def use(path):
    """Do with ratings what anybody does; a forgery ends in ValueError on the way."""
    opened = ParquetRatings(path)
    if [len(ids) for ids in (opened.user_ids, opened.item_ids, opened.titles)] != LENGTHS:
        raise RuntimeError("labels of another length")
    CacheSGDFactorizer(2, max_iter=1, random_state=0).fit(opened)
    opened.check()
    for number in range(opened.n_parts):
        opened.read_rows(number, number + 1)
    return opened


def outcome(path, may_pass=False):
    try:
        found = use(path)
    except ValueError as error:
        named = str(path) in str(error)
        return "refused" if named else f"ValueError without the file: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "refused" if may_pass else f"passed: {found}"


def cases(path):
    manifest = json.loads((path / "manifest.json").read_bytes())
    for name, changed in manifest_cases(manifest):
        yield name, None, b"", changed
    for name, number, groups in content_cases(path, manifest):
        yield name, manifest["parts"][number][0], *forged_part(path, manifest, number, groups)
    yield from part_cases(path, manifest)
    yield from label_cases(manifest)


def main():
    folder = Path(sys.argv[1])
    whole, forged = folder / "whole", folder / "forged"
    parquet_ratings._GROUP_ROWS = 2
    ParquetRatings.write(whole, chunks(), items=titled(), rows_per_part=PART_ROWS)
    (folder / "outside.json").write_text("[1,2,3,4,5]")
    use(whole).verify()
    for name, file, content, manifest in list(cases(whole)):
        shutil.rmtree(forged, ignore_errors=True)
        shutil.copytree(whole, forged)
        if file is not None:
            (forged / file).write_bytes(content)
        try:
            put(forged, manifest)
        except (ValueError, OverflowError):
            continue  # no JSON can say it
        sys.stdout.write(f"{name} -> ")
        sys.stdout.flush()
        may_pass = name.startswith("bytes of part")
        sys.stdout.write(outcome(forged, may_pass).replace("\n", " ") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
