"""What the manifest and the blocks of a store may hold, whoever wrote them.

Checksums say that nothing was altered, not that it was right. So that no file whatever leads
compiled code outside of its arrays, or a reader outside of the folder, all numbers that sizes and
places are made of are held against ranges and order, and files have the names of a store's own.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ..exceptions import RatingStoreError
from ._store_chunks import MAX_ITEMS

__all__ = [
    "FIELDS",
    "LABELS",
    "MANIFEST",
    "checked_facts",
    "checked_table",
    "damaged",
    "is_block_rows",
    "is_count",
    "is_label",
    "is_part",
    "wrong_field",
]

MANIFEST = "manifest.json"
FIELDS = {"items": "<i4", "indptr": "<i8", "users": "<u2", "ratings": "<f4"}
LABELS = ("user_ids", "item_ids", "titles")  # the last one if there are some
_MOST_USERS = 2**32  # rows are counted in 32 bits on the way


def damaged(file: Path, trouble: str) -> RatingStoreError:
    """Return the error for a file that is not as it was written."""
    return RatingStoreError(
        f"{file}: {trouble}. The store is damaged or incomplete: write it anew from its source, "
        "with overwrite=True."
    )


def is_count(value: Any) -> bool:
    """Return whether a manifest's value is a whole number that sizes may be made of."""
    return type(value) is int and 0 <= value < 1 << 53


def checked_facts(path: Path, manifest: dict[str, Any], *names: str) -> list[Any]:
    """Return the values of these names and the shape, first, of a manifest of anybody.

    Raise RatingStoreError if one is missing, or the shape is none.
    """
    shape: Any = manifest.get("shape")
    holds = isinstance(shape, list | tuple) and len(shape) == 2 and all(map(is_count, shape))
    if not holds or shape[0] > _MOST_USERS or shape[1] > MAX_ITEMS:
        raise damaged(path / MANIFEST, f"its shape is {shape!r:.99}")
    missing = [name for name in names if name not in manifest]
    if missing:
        raise damaged(path / MANIFEST, f"it does not give {', '.join(missing)}")
    return [(shape[0], shape[1]), *(manifest[name] for name in names)]


def is_label(name: str, label: Any, n_ids: int) -> bool:
    """Return whether a manifest may describe labels so: the file is one of the store's own."""
    if not isinstance(label, dict) or label.keys() != {"file", "size", "crc32"}:
        return False
    if not is_count(label["size"]) or not is_count(label["crc32"]):
        return False
    return label["file"] == f"{name}.json" or (
        label["file"] == f"{name}.i8" and label["size"] == 8 * n_ids
    )


def is_part(row: Any) -> bool:
    """Return whether a manifest may have such a row: a file of the folder itself, and counts."""
    if not isinstance(row, list | tuple) or len(row) != 6:
        return False
    name, *counts, digest = row
    plain = isinstance(name, str) and name.isprintable() and Path(name).name == name
    return plain and all(map(is_count, counts)) and isinstance(digest, str)


def checked_table(
    path: Path, shape: tuple[int, int], nnz: Any, block_rows: Any, blocks: Any
) -> Any:
    """Return the table of the blocks in int64 if it can be one of so many ratings and rows."""
    width = 2 + len(FIELDS)
    try:
        table = np.array(blocks) if blocks else np.empty((0, width), np.int64)
    except ValueError:  # ragged
        table = np.empty(0)
    n_blocks = -(-shape[0] // block_rows) if is_block_rows(block_rows) else -1
    holds = table.dtype == np.int64 and table.shape == (n_blocks, width) and is_count(nnz)
    if holds:
        n_runs, n_ratings = table[:, 0], table[:, 1]
        # both sums as Python's integers: the sizes of files are made of them
        holds = (
            bool(((n_runs >= 0) & (n_runs <= n_ratings) & (n_runs <= shape[1])).all())
            and bool(((n_runs > 0) | (n_ratings == 0)).all())
            and sum(n_ratings.tolist()) == nnz
        )
    if not holds:
        trouble = (
            f"its nnz={nnz!r:.30}, block_rows={block_rows!r:.30} and blocks are not those of "
            f"{shape[0]} rows and {shape[1]} columns"
        )
        raise damaged(path / MANIFEST, trouble)
    return table


def wrong_field(fields: list[Any], n_users: int, n_items: int) -> str:
    """Return the field of a block with numbers out of range or order, or ""."""
    items, indptr, users, ratings = fields
    if items.size and (items[0] < 0 or items[-1] >= n_items or (items[1:] <= items[:-1]).any()):
        return "items"
    inside = indptr[0] == 0 and indptr[-1] == users.size
    if not inside or (indptr[1:] <= indptr[:-1]).any():
        return "indptr"
    ascends = np.ones(users.size, bool)
    ascends[1:] = users[1:] > users[:-1]
    ascends[indptr[:-1]] = True
    if users.size and (users.max() >= n_users or not ascends.all()):
        return "users"
    return "" if np.isfinite(ratings).all() else "ratings"


def is_block_rows(block_rows: Any) -> bool:
    """Return whether blocks of a store may have so many users."""
    is_integer = isinstance(block_rows, int | np.integer) and not isinstance(block_rows, bool)
    return is_integer and 1 <= block_rows <= 1 << 16
