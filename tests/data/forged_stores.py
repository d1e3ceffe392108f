"""Stores with right checksums and wrong content, tried out in a process of its own.

``python -m tests.data.forged_stores FOLDER KIND`` prints one line a case: its name, and "refused"
or the error that came instead. A crash ends the output.
"""

import copy
import hashlib
import json
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from skdpmf import CacheSGDFactorizer
from skdpmf.data import ParquetRatings, RatingStore, row_blocks
from skdpmf.data._store_files import FIELDS, serialised, signed

N_USERS, N_ITEMS, BLOCK_ROWS = 7, 5, 3
LENGTHS = [N_USERS, N_ITEMS, N_ITEMS]
HUGE = (2**31, 2**62, 2**63, 10**30)
NO_COUNTS = (-1, *HUGE, 1.0, "1", None, True, [1], {})
NO_TEXTS = (1, None, "", [], {}, "\0")
OUTSIDE = ("../outside.json", "/etc/passwd", "..", ".", "manifest.json", "a/../b", "ratings.bin")


def ratings():
    rng = np.random.default_rng(0)
    X = rng.integers(1, 6, (N_USERS, N_ITEMS)).astype(float)
    X[rng.random(X.shape) < 0.3] = np.nan
    return X


def chunks():
    users, items = np.nonzero(~np.isnan(ratings()))
    return [(users + 10, np.array(list("abcde"))[items], ratings()[users, items])]


def titled():
    return pd.DataFrame({"item": list("abcde"), "title": list("ABCDE")})


def put(path, manifest):
    """Write a manifest such that its own checksum is right."""
    (path / "manifest.json").write_bytes(serialised(signed(manifest)))


def manifest_cases(manifest):
    """Name, and a manifest in which one value is not what it may be."""
    nested = {"blocks": range(6), "parts": range(6), "user_ids": list(manifest["user_ids"])}
    for key in sorted(manifest.keys() - {"format", "version", "fingerprint"}):
        without = {name: value for name, value in manifest.items() if name != key}
        # one is there where something was read off, the other where titles are known
        if key not in ("undeclared", "titles"):
            yield f"without {key}", without
        values = list(NO_COUNTS)
        if key in ("user_ids", "item_ids", "titles", "mean", "std"):
            values = [value for value in values if value is not None]
        if key in ("mean", "std"):
            values = ["1", True, [1], {}, 10**400, None]
        for value in values:
            yield f"{key}={value!r:.40}", {**manifest, key: value}
        for inner in nested.get(key, ()):
            old = manifest[key]
            old = old if isinstance(inner, str) else old[1][inner]
            bad = NO_TEXTS + OUTSIDE if isinstance(old, str) or inner == "file" else NO_COUNTS
            for value in bad:
                changed = copy.deepcopy(manifest)
                (changed[key] if isinstance(inner, str) else changed[key][1])[inner] = value
                yield f"{key}.{inner}={value!r:.40}", changed
    for shape in ([N_USERS], [N_USERS, N_ITEMS, 1], "75", [0, 0]):
        yield f"shape={shape}", {**manifest, "shape": shape}
    for place in (0, 1):
        for value in NO_COUNTS:
            shape = [N_USERS, N_ITEMS]
            shape[place] = value
            yield f"shape={shape!r:.60}", {**manifest, "shape": shape}


def store_manifest_cases(manifest):
    yield from manifest_cases(manifest)
    yield "shape of fewer items", {**manifest, "shape": [N_USERS, N_ITEMS - 1]}
    yield "shape of fewer users", {**manifest, "shape": [N_USERS - 3, N_ITEMS]}
    yield "shape of more users", {**manifest, "shape": [N_USERS + 3, N_ITEMS]}
    for rows in (0, 1, 2, 4, 100, 65537):
        yield f"block_rows={rows}", {**manifest, "block_rows": rows}
    for nnz in (0, manifest["nnz"] + 1):
        yield f"nnz={nnz}", {**manifest, "nnz": nnz}
    blocks = manifest["blocks"]
    for change in (blocks[:-1], [*blocks, blocks[0]], [row[:5] for row in blocks], [blocks]):
        yield f"blocks={change!r:.60}", {**manifest, "blocks": change}
    moved = copy.deepcopy(blocks)
    moved[0][1], moved[1][1] = moved[0][1] + 1, moved[1][1] - 1
    yield "a rating moved to another block", {**manifest, "blocks": moved}


def field_cases(path, manifest):
    """Name, and bytes of one field with the manifest that has their checksums."""
    store = RatingStore(path)
    for number in range(store.n_blocks):
        block = store.read_block(number)
        for name, dtype in FIELDS.items():
            whole = np.fromfile(path / f"{name}.bin", dtype)
            first = int(store._bounds[name][number])
            stored = getattr(block, name)
            info = np.iinfo(dtype) if name != "ratings" else None
            for at in sorted({0, stored.size // 2, stored.size - 1}):
                bad = [np.nan, np.inf, -np.inf]
                if info is not None:
                    near = int(stored[at])
                    bad = [info.min, -1, near - 1, near + 1, 2**15, info.max]
                for value in bad:
                    changed = stored.copy()
                    if info is None or info.min <= value <= info.max:
                        changed[at] = value
                    if np.array_equal(changed, stored) or is_right(block, name, changed):
                        continue
                    content = whole.copy()
                    content[first : first + stored.size] = changed
                    claim = copy.deepcopy(manifest)
                    place = 2 + list(FIELDS).index(name)
                    claim["blocks"][number][place] = zlib.crc32(changed.astype(dtype).data)
                    case = f"{name}[{number}][{at}]={value}"
                    yield case, f"{name}.bin", content.tobytes(), claim


def is_right(block, name, changed):
    """Whether a field may be so: another store's, and no forgery."""
    fields = block._replace(**{name: changed})
    cells = set()
    if name == "indptr" and (changed[0] != 0 or changed[-1] != block.ratings.size):
        return False
    if not np.isfinite(fields.ratings).all() or any(np.diff(fields.indptr.astype(object)) < 1):
        return False
    for run, item in enumerate(fields.items.tolist()):
        users = fields.users[fields.indptr[run] : fields.indptr[run + 1]].tolist()
        if users != sorted(set(users)) or users[-1] >= block.stop - block.start:
            return False
        cells.add(item)
    ordered = fields.items.tolist() == sorted(cells)
    return ordered and min(cells) >= 0 and max(cells) < N_ITEMS


def label_cases(manifest):
    for name, texts in {
        "item_ids": ["", "[", "{}", "1", '"abcde"', "[1,2,3,4]", "[[1],2,3,4,5]", "[1,2,3,4,null]"]
        + ["[1,2,3,4,1.5]", "[1,2,3,4,true]", "[" * 100_000, "\x80", "[1,2,3,4,NaN]"],
        "titles": ["", "{}", '["A"]', '["A","B","C","D",null]', '["A","B","C","D",["E"]]'],
        "user_ids": ["", "x" * 8, "x" * 55, "x" * 64],
    }.items():
        for text in texts:
            content = text.encode("latin-1")
            claim = copy.deepcopy(manifest)
            claim[name] |= {"size": len(content), "crc32": zlib.crc32(content)}
            yield f"{name}: {text!r:.30}", manifest[name]["file"], content, claim


def part_cases(path, manifest):
    """Parts whose bytes were changed, and their checksums with them."""
    rng = np.random.default_rng(1)
    for number, part in enumerate(manifest["parts"]):
        content = (path / part[0]).read_bytes()
        for k in range(60):
            changed = bytearray(content)
            for at in rng.integers(len(changed), size=1 + k % 3):
                changed[at] ^= 1 << int(rng.integers(8))
            claim = copy.deepcopy(manifest)
            claim["parts"][number][5] = hashlib.sha256(changed).hexdigest()
            yield f"bytes of part {number}, {k}", part[0], bytes(changed), claim


def use(kind, path):
    """Do with a store what anybody does; a forgery ends in ValueError on the way."""
    opened = kind(path)
    if [len(ids) for ids in (opened.user_ids, opened.item_ids, opened.titles)] != LENGTHS:
        raise RuntimeError("labels of another length")
    for block in row_blocks.row_blocks(opened, 3):
        block.check()
        block.load()
    if kind is RatingStore:
        CacheSGDFactorizer(2, max_iter=1, random_state=0).fit(opened)
    return opened


def outcome(kind, path, may_pass=False):
    for look in (use, lambda kind, path: kind(path).verify()):
        try:
            found = look(kind, path)
        except ValueError as error:
            if str(path) not in str(error):
                return f"ValueError without the file: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        else:
            if not may_pass:
                return f"passed: {found}"
    return "refused"


def cases(path, kind):
    manifest = json.loads((path / "manifest.json").read_bytes())
    if kind is RatingStore:
        for name, changed in store_manifest_cases(manifest):
            yield name, None, b"", changed
        yield from field_cases(path, manifest)
    else:
        for name, changed in manifest_cases(manifest):
            yield name, None, b"", changed
        yield from part_cases(path, manifest)
    yield from label_cases(manifest)


def main():
    folder, kind = Path(sys.argv[1]), {"store": RatingStore, "parquet": ParquetRatings}[sys.argv[2]]
    whole, forged = folder / "whole", folder / "forged"
    if kind is RatingStore:
        RatingStore.from_chunks(whole, chunks(), items=titled(), block_rows=BLOCK_ROWS)
    else:
        ParquetRatings.write(whole, chunks(), items=titled(), rows_per_part=BLOCK_ROWS)
    (folder / "outside.json").write_text("[1,2,3,4,5]")
    use(kind, whole).verify()
    for name, file, content, manifest in list(cases(whole, kind)):
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
        sys.stdout.write(outcome(kind, forged, may_pass).replace("\n", " ") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
