"""Rating and item files to data frames."""

import csv
import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ..exceptions import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["rating_columns", "read_items", "read_ratings"]

# Column names, lower case without punctuation, that are known for each role.
_RATING_ROLES = {
    "user": {"user", "userid", "userindex", "uid", "customerid", "memberid"},
    "item": {
        *("item", "itemid", "itemindex", "iid", "movie", "movieid", "productid", "product"),
        *("bookid", "book", "isbn", "songid", "song", "trackid", "track", "artistid", "asin"),
    },
    "rating": {"rating", "ratings", "score", "stars", "bookrating", "preference", "value"},
    "timestamp": {"timestamp", "time", "date", "datetime", "unixtime"},
}
_ITEM_ROLES = {
    "item": _RATING_ROLES["item"] | {"id"},
    "title": {"title", "name", "movietitle", "itemname", "booktitle", "movietitles"},
    "genres": {"genres", "genre", "categories", "category"},
}
_USER_ROLES = {"user": _RATING_ROLES["user"] | {"id"}}
_REQUIRED = {"rating": ("user", "item"), "item": ("item", "title"), "user": ("user",)}
_RATING_FILES = ("ratings.dat", "ratings.csv", "u.data", "ratings.tsv", "ratings.parquet")
_ITEM_FILES = (
    *("movies.dat", "movies.csv", "u.item"),
    *("items.csv", "items.tsv", "items.dat", "items.parquet"),
)
_USER_FILES = ("users.dat", "users.csv", "u.user", "users.tsv", "users.parquet")
_SUFFIXES = {".csv", ".tsv", ".txt", ".dat", ".data", ".item", ".parquet"}
_SEPARATORS = ("::", "\t", "|", ";", ",", " ")

# MovieLens 100k marks the genres of an item by 19 flags, in this order (its file u.genre).
_U_ITEM_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance"),
    *("Sci-Fi", "Thriller", "War", "Western"),
)
_NO_NUMBER = ["", "NA", "NaN", "nan", "null", "NULL", "None", "N/A"]
_U_ITEM_WIDTH = 5 + len(_U_ITEM_GENRES)


def read_ratings(path: Any, *, columns: Any = None, sep: str | None = None) -> "pd.DataFrame":
    r"""Read a file, folder or zip archive of ratings.

    Parameters
    ----------
    path : str or path-like
        A text file (comma, tab, semicolon, bar, blank or ``::`` between the fields, with or
        without a header, may be gzipped), a Parquet file (needs the extra ``parquet``), or a
        folder or zip archive that holds ``ratings.dat``, ``ratings.csv``, ``u.data``,
        ``ratings.tsv`` or ``ratings.parquet``, such as those of MovieLens. Archives are read
        without unpacking them to disk. ``"-"`` is the standard input. Text and Parquet files are
        read once from their beginning to their end, so that pipes serve as well.
    columns : dict or sequence of str, default=None
        A dict maps ``"user"``, ``"item"``, ``"rating"``, ``"timestamp"`` to the names that the
        file's header uses, where they are not among the usual ones (userId, movieId, score,
        ...). A sequence names all columns in order for a file **without** a header; names other
        than the four are left out. None: the header shows, or without one the order is user,
        item, rating, timestamp.
    sep : str, default=None
        Text between the fields. None: found from the first line.

    Returns
    -------
    frame : pandas.DataFrame
        Columns user, item and, where the file has them, rating (float64; empty = NaN = unknown)
        and timestamp (as in the file), rows in file order. Ids that are all digits become
        integers.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    ValueError
        If no ratings file is found inside, columns cannot be recognised, ids are missing, or
        ratings are not numbers. The error names the file, what it has and what is expected.
    MissingExtraError
        If the file is Parquet and pyarrow is not installed.

    See Also
    --------
    ratings_to_matrix : From the table to the matrix that estimators take.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "ratings.dat"
    ...     size = path.write_text("1::1193::5::978300760\n2::661::3::978302109\n")
    ...     read_ratings(folder)
       user  item  rating  timestamp
    0     1  1193     5.0  978300760
    1     2   661     3.0  978302109
    """
    import pandas as pd

    source = _locate(path, _RATING_FILES, "ratings")
    frame = _read_table(source, _RATING_ROLES, "rating", columns, sep)
    if "rating" in frame:
        numbers = pd.to_numeric(frame["rating"], errors="coerce")
        bad = frame["rating"][numbers.isna() & frame["rating"].notna()]
        if len(bad):
            raise ValueError(
                f"{source.label}: the rating in data row {bad.index[0] + 1} is {bad.iloc[0]!r}; "
                "expected a number. If another column holds the ratings, name it by columns=."
            )
        frame["rating"] = numbers.astype("float64")
    return frame


def read_items(path: Any, *, columns: Any = None, sep: str | None = None) -> "pd.DataFrame":
    r"""Read a file, folder or zip archive with the titles of items.

    Files are those of `read_ratings`, in UTF-8 or Latin-1; in folders and archives ``movies.dat``,
    ``movies.csv``, ``u.item`` or ``items.csv``, ``.tsv``, ``.dat``, ``.parquet``. The columns item,
    title and, where the file has them, genres (text such as ``"Comedy|Drama"``) are also the order
    that is assumed without a header.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "movies.csv"
    ...     size = path.write_text("movieId,title,genres\n7,Up (2009),Comedy|Drama\n")
    ...     read_items(path)
       item      title        genres
    0     7  Up (2009)  Comedy|Drama
    """
    source = _locate(path, _ITEM_FILES, "items")
    return _read_table(source, _ITEM_ROLES, "item", columns, sep)


def read_users(path: Any, *, columns: Any = None, sep: str | None = None) -> "pd.Series":
    """Return the ids of a file of users, one a row: the first column, or that of a header's name.

    Their order in the file stays. Errors are those of `read_items`.
    """
    users = _read_table(_locate(path, _USER_FILES, "users"), _USER_ROLES, "user", columns, sep)
    return users["user"]


class _Source(NamedTuple):
    label: str  # how errors name the file
    open: Callable[[], IO[bytes]]

    @property
    def suffix(self) -> str:
        return Path(self.label.removesuffix(".gz")).suffix.lower()


def _locate(path: Any, names: tuple[str, ...], what: str) -> _Source:
    """Find the file with the wanted table at `path`, in the folder or in the archive."""
    if path == "-":
        return _Source("standard input", lambda: open(0, "rb", closefd=False))
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; expected a file, folder or zip archive with {what}."
        )
    if path.is_dir():
        members = [p.name for p in path.iterdir() if p.is_file()]
        return _file_source(path / _pick(members, names, path, what))
    if path.suffix.lower() != ".zip":
        return _file_source(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.namelist() if not m.startswith("__MACOSX")]
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not a readable zip archive ({error}).") from error
    member = _pick(members, names, path, what)

    def open_member() -> IO[bytes]:
        with zipfile.ZipFile(path) as archive:  # the open member keeps the archive's file open
            return archive.open(member)

    return _Source(f"{path}/{member}", open_member)


def _file_source(path: Path) -> _Source:
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    return _Source(str(path), lambda: opener(path, "rb"))


def _pick(members: list[str], names: tuple[str, ...], path: Path, what: str) -> str:
    """Choose the member with the first known name, or the only data file."""
    for name in names:
        found = [m for m in members if Path(m).name == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"{path} holds several files {name}: {found}. Give the path of one.")
    data_files = [m for m in members if Path(m).suffix.lower() in _SUFFIXES]
    if len(data_files) == 1:
        return data_files[0]
    shown = sorted(members)[:20]
    raise ValueError(
        f"{path} holds no file with {what}: found {shown}, expected one of {list(names)}. "
        "Give the path of the file itself."
    )


def _read_table(
    source: _Source, roles: dict[str, set[str]], kind: str, columns: Any, sep: str | None
) -> "pd.DataFrame":
    """Read the columns that play a role, named by their roles and in the roles' order."""
    read = _read_parquet if source.suffix == ".parquet" else _read_text
    frame = read(source, roles, kind, columns, sep)
    for role in _REQUIRED[kind]:
        absent = frame[role].isna().to_numpy().nonzero()[0]
        if absent.size:
            raise ValueError(
                f"{source.label}: {absent.size} of {len(frame)} data rows have no {role} (first: "
                f"data row {absent[0] + 1}); expected one in every row. A wrong sep= or a "
                "truncated file has this effect too."
            )
    return frame[[role for role in roles if role in frame]]


def pyarrow_for(label: str) -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet; `label` names the file in the error."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            f"{label} is a Parquet file, which needs pyarrow: pip install skdpmf[parquet]"
        ) from error
    return pyarrow, parquet


def parquet_file(stream: Any, label: str) -> Any:
    """Open a stream as a Parquet file; `label` names the file in errors."""
    pyarrow, parquet = pyarrow_for(label)
    # Files are buffered, as a row group may be the whole file; bytes in memory need no second copy.
    size = 0 if isinstance(stream, pyarrow.BufferReader) else 1 << 20
    try:
        return parquet.ParquetFile(stream, buffer_size=size)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{label} is not a readable Parquet file ({error}).") from error


def parquet_columns(
    file: Any,
    columns: Any,
    label: str,
    roles: dict[str, set[str]] = _RATING_ROLES,
    kind: str = "rating",
) -> dict[str, str]:
    """Return the role of each column of an open Parquet file that has one."""
    fields = file.schema_arrow.names
    if columns is not None and not isinstance(columns, dict):
        raise ValueError(
            f"columns={columns!r} must be a dict for the Parquet file {label}, whose columns have "
            f"names: {fields}."
        )
    return {fields[p]: role for role, p in _by_name(fields, roles, kind, columns, label).items()}


def _read_parquet(
    source: _Source, roles: dict[str, set[str]], kind: str, columns: Any, sep: str | None
) -> "pd.DataFrame":
    with source.open() as stream:
        # the footer comes last, so that a pipe must be read whole
        whole = stream if stream.seekable() else io.BytesIO(stream.read())
        file = parquet_file(whole, source.label)
        names = parquet_columns(file, columns, source.label, roles, kind)
        table = file.read(columns=list(names))
    return table.to_pandas(ignore_metadata=True).rename(columns=names)


def _read_text(
    source: _Source, roles: dict[str, set[str]], kind: str, columns: Any, sep: str | None
) -> "pd.DataFrame":
    with source.open() as stream:  # once: a pipe gives its bytes to its first reader
        try:
            content = stream.read()
        except gzip.BadGzipFile as error:
            raise ValueError(f"{source.label} is not a readable gzip file ({error}).") from error
    if b"\0" in content:
        raise ValueError(
            f"{source.label} holds NUL bytes, as UTF-16 and binary files do; expected text in "
            "UTF-8. Save it so (from a spreadsheet as CSV UTF-8); a Parquet file needs its suffix."
        )
    text = content[: 1 << 16].decode("utf-8-sig", errors="replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    n_blank = next((i for i, line in enumerate(lines) if line.strip()), None)
    if n_blank is None:
        raise ValueError(f"{source.label} is empty; expected {kind}s, one a line.")
    first = lines[n_blank]
    sep = sep or _guess_sep(first, source.suffix)
    # Only comma, semicolon and tab files quote; elsewhere a quote is part of a title.
    quoting = csv.QUOTE_MINIMAL if sep in ",;\t" else csv.QUOTE_NONE
    fields = _split(first, sep, quoting)
    positions, has_header = _match(fields, roles, kind, columns, source.label)
    flags = {}
    if kind == "item" and columns is None and not has_header and len(fields) == _U_ITEM_WIDTH:
        flags = {name: 5 + i for i, name in enumerate(_U_ITEM_GENRES)}
        positions.pop("genres", None)
    used = {p: name for name, p in {**positions, **flags}.items()}
    frame = _parse(source.label, content, sep, quoting, n_blank + has_header, len(fields), used)
    return _join_flags(frame, flags) if flags else frame


def _guess_sep(line: str, suffix: str) -> str:
    preferred = {".csv": (",",), ".tsv": ("\t",)}.get(suffix, ())
    return next((s for s in (*preferred, *_SEPARATORS) if s in line), ",")


def _split(line: str, sep: str, quoting: Any) -> list[str]:
    if len(sep) > 1:
        return line.split(sep)
    return next(csv.reader([line], delimiter=sep, quoting=quoting))


def _match(
    fields: list[str], roles: dict[str, set[str]], kind: str, columns: Any, label: str
) -> tuple[dict[str, int], bool]:
    """Return the position of each role in a line, and whether the first line is a header."""
    if columns is not None and not isinstance(columns, dict):
        return _by_order(fields, list(columns), roles, kind, label), False
    known = set().union(*roles.values())
    if columns is not None or any(_normalised(f) in known for f in fields):
        return _by_name(fields, roles, kind, columns, label), True
    # No header: the roles in their order.
    if kind == "rating":
        fits = 2 <= len(fields) <= len(roles) and all(_is_number(f) for f in fields[2:3])
    else:
        fits = 2 <= len(fields) <= len(roles) or len(fields) == _U_ITEM_WIDTH or kind == "user"
    if not fits:
        raise ValueError(
            f"{label}: the first line has the fields {fields}; expected a header with names for "
            f"{list(roles)} (such as {_examples(roles)}), or values in this order without a "
            "header. Pass columns= (and sep=, if the fields are cut wrongly)."
        )
    return {role: p for p, role in enumerate(roles) if p < len(fields)}, False


def _by_order(
    fields: list[str], columns: list[str], roles: dict[str, set[str]], kind: str, label: str
) -> dict[str, int]:
    needed = _REQUIRED[kind]
    if len(columns) != len(fields):
        raise ValueError(
            f"columns={columns} has {len(columns)} names, but the lines of {label} have "
            f"{len(fields)} fields ({fields}); give one name for each (any name for the unused)."
        )
    if any(columns.count(role) != 1 for role in needed) or any(columns.count(r) > 1 for r in roles):
        raise ValueError(f"columns={columns} must name {list(needed)}, and each of them once.")
    return {role: columns.index(role) for role in roles if role in columns}


def _by_name(
    fields: list[str], roles: dict[str, set[str]], kind: str, columns: Any, label: str
) -> dict[str, int]:
    columns = columns or {}
    unknown = [role for role in columns if role not in roles]
    if unknown:
        raise ValueError(f"columns={columns} has the keys {unknown}; allowed are {list(roles)}.")
    names = [f.strip() for f in fields]
    positions = {}
    for role, synonyms in roles.items():
        if role in columns:
            found = [p for p, name in enumerate(names) if name == columns[role]]
        else:
            taken = columns.values()
            found = [
                p for p, n in enumerate(names) if _normalised(n) in synonyms and n not in taken
            ]
            found = [p for p in found if _normalised(names[p]) == role] or found
        if len(found) == 1:
            positions[role] = found[0]
        elif found or role in columns or role in _REQUIRED[kind]:
            trouble = "several columns" if found else "no column"
            raise ValueError(
                f"{label} has {trouble} for the {role}: found {names}, expected "
                f"{columns.get(role) or 'one of ' + str(sorted(synonyms))}. Name it by "
                f"columns={{{role!r}: ...}}; for a file without a header pass all names in order."
            )
    return positions


def rating_columns(names: Any) -> dict[str, Any]:
    """Return the columns of a table of ratings, by role; {} unless both ids are among them."""
    found = {
        role: name
        for role, synonyms in _RATING_ROLES.items()
        for name in reversed(list(names))
        if _normalised(str(name)) in synonyms
    }
    return found if {"user", "item"} <= found.keys() else {}


def _normalised(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _examples(roles: dict[str, set[str]]) -> str:
    return ", ".join(sorted(min(s, key=lambda n: (len(n), n)) for s in roles.values()))


def _parse(
    label: str,
    content: bytes,
    sep: str,
    quoting: Any,
    skip: int,
    width: int,
    used: dict[int, str],
) -> "pd.DataFrame":
    """Read the used columns with the fast parser, which takes separators of one byte only."""
    import pandas as pd

    if len(sep.encode()) > 1:
        content = content.replace(sep.encode(), b"\x1f")
    # All columns, because with usecols the parser drops the surplus fields of a line silently.
    options: Any = {
        "sep": sep if len(sep.encode()) == 1 else "\x1f",
        "quoting": quoting,
        "header": None,
        "skiprows": skip,
        "names": list(range(width)),
        "keep_default_na": False,
        "na_values": {p: _NO_NUMBER if name == "rating" else [""] for p, name in used.items()},
        "low_memory": False,
    }
    try:
        try:
            frame = pd.read_csv(io.BytesIO(content), encoding="utf-8", **options)
        except UnicodeDecodeError:
            frame = pd.read_csv(io.BytesIO(content), encoding="latin-1", **options)
        if len(frame) and not isinstance(frame.index, pd.RangeIndex):
            # The parser has made an index of the first line's surplus fields.
            raise pd.errors.ParserError("more fields in the lines than in the header")
    except pd.errors.ParserError as error:
        raise ValueError(
            f"{label} cannot be read: {str(error).strip()}. Expected {width} fields a "
            f"line, separated by {sep!r}; pass sep= or repair the file."
        ) from error
    return frame[sorted(used)].rename(columns=used)


def _join_flags(frame: "pd.DataFrame", flags: dict[str, int]) -> "pd.DataFrame":
    rows = frame[list(flags)].to_numpy() == 1
    genres = ["|".join(n for n, on in zip(flags, row, strict=True) if on) for row in rows]
    return frame.drop(columns=list(flags)).assign(genres=genres)
