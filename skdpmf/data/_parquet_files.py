"""Parquet files of ratings as anybody may have written them: opened, or refused by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..exceptions import RatingStoreError
from ._store_checks import damaged
from .loaders import _parquet_opener, _pyarrow

__all__ = ["open_parquet", "reading", "user_range"]

_TYPES = {"user": ("int64",), "item": ("int32",), "rating": ("float", "double")}  # Arrow's names


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """Open a Parquet file; whatever pyarrow finds wrong in it is an error that names it."""
    pyarrow, _ = _pyarrow(str(path))
    try:
        with path.open("rb") as stream:
            yield stream
    except RatingStoreError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of the disk, not of what is on it
            raise
        raise damaged(path, f"it is no Parquet file that can be read ({error})") from error


def open_parquet(stream: Any, path: Path) -> Any:
    """Return an open Parquet file that has the right columns."""
    # Buffered: otherwise a row group, which may be the whole file, is read at once.
    file = _parquet_opener(str(path))(stream, buffer_size=1 << 20)
    schema = file.schema_arrow
    for name, types in _TYPES.items():
        index = schema.get_field_index(name)
        found = str(schema.field(index).type) if index >= 0 else "missing or there twice"
        if found not in types:
            raise damaged(path, f"its column {name!r} is {found}; expected {' or '.join(types)}")
    return file


def user_range(file: Any, path: Path) -> tuple[int, int]:
    """Return the least and the largest user of a Parquet file by its footer."""
    metadata = file.metadata
    paths = [metadata.schema.column(k).path for k in range(metadata.num_columns)]
    ranges = []
    for k in range(metadata.num_row_groups):
        group = metadata.row_group(k)
        if not group.num_rows:
            continue
        column = group.column(paths.index("user"))
        # pyarrow 14 ends the process when the statistics have another type than the schema says
        statistics = column.statistics if column.physical_type == "INT64" else None
        if statistics is None or not statistics.has_min_max:
            raise damaged(path, "its footer has no least and largest user; write statistics")
        ranges.append((statistics.min, statistics.max))
    if not ranges:
        raise damaged(path, "its footer has no least and largest user, and ratings")
    return min(low for low, _ in ranges), max(high for _, high in ranges)
