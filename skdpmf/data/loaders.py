"""Rating and item files to data frames."""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..exceptions import MissingExtraError, counted
from .labelled_rows import as_frame, as_pandas

if TYPE_CHECKING:
    import pandas as pd


class _Kind(NamedTuple):
    """A kind of table: what a row is, the known names of its columns by role, and of its files.

    Names of columns are in lower case, without punctuation.
    """

    row: str
    roles: dict[str, set[str]]
    required: tuple[str, ...]
    files: tuple[str, ...]


_RATINGS = _Kind(
    "rating",
    {
        "user": {
            *("user", "userid", "userindex", "uid", "username", "customer", "customerid"),
            *("member", "memberid", "client", "clientid", "visitor", "visitorid", "reviewerid"),
            *("account", "accountid", "person", "personid", "subscriber", "subscriberid"),
        },
        "item": {
            *("item", "itemid", "itemindex", "iid", "movie", "movieid", "productid", "product"),
            *("bookid", "book", "isbn", "songid", "song", "trackid", "track", "artistid", "asin"),
            *("sku", "article", "articleid", "artist", "game", "gameid"),
        },
        "rating": {"rating", "ratings", "score", "stars", "bookrating", "preference", "value"},
        "time": {"time", "timestamp", "date", "datetime", "unixtime"},
    },
    ("user", "item"),
    ("ratings.dat", "ratings.csv", "u.data", "ratings.tsv", "ratings.parquet"),
)
_ITEMS = _Kind(
    "item",
    {
        "item": _RATINGS.roles["item"] | {"id"},
        "title": {"title", "name", "movietitle", "itemname", "booktitle", "movietitles"},
        "genres": {"genres", "genre", "categories", "category"},
    },
    ("item", "title"),
    (
        *("movies.dat", "movies.csv", "u.item"),
        *("items.csv", "items.tsv", "items.dat", "items.parquet"),
    ),
)
_USERS = _Kind(
    "user",
    {"user": _RATINGS.roles["user"] | {"id"}},
    ("user",),
    ("users.dat", "users.csv", "u.user", "users.tsv", "users.parquet"),
)
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

# Packed files begin so, whatever their names are.
_PACKED = {
    b"\x1f\x8b": "gzip file",
    b"BZh": "bzip2 file",
    b"\xfd7zXZ\0": "xz file",
    b"\x28\xb5\x2f\xfd": "zstd file",
    b"PK\x03\x04": "zip archive",
    b"PK\x05\x06": "zip archive",
}
_TAR, _TAR_AT = b"ustar", 257
_PACKED_NAME = re.compile(r"\.(gz|bz2|xz|zst)$", re.IGNORECASE)
_DAMAGE: Any = (EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError)
_DAMAGE += (tarfile.TarError, zipfile.BadZipFile)
_OTHERS = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it",
    b"Rar!": "a RAR archive: unpack it",
    b"\xd0\xcf\x11\xe0": "an Excel workbook: save its sheet as CSV UTF-8",
    b"SQLite format 3": "an SQLite database: export its table as CSV",
    b"\x89HDF": "an HDF5 file: read it by pandas, and pass the table",
    b"ARROW1": "an Arrow file: read it by pandas.read_feather, and pass the table",
}
_MARKS = {  # the longer ones first
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_IDS = ("user", "item")
_TYPES = {**dict.fromkeys(_IDS, "category"), "title": "str", "genres": "str"}
_FIELD, _TEXT = "\x1f", "\x1e"  # a separator, and an id, that no file has
_N_LINES = 20  # that show the separator


def read_ratings(path: Any, *, columns: Any = None, sep: str | None = None) -> "pd.DataFrame":
    r"""Read ratings from a file, folder, archive, open file or table.

    Parameters
    ----------
    path : str, path-like, file or DataFrame
        A text file (comma, tab, semicolon, bar, blanks or ``::`` between the fields, with or
        without a header, in UTF-8, UTF-16 or Windows-1252), a Parquet file (needs the extra
        ``parquet``), or a folder, zip or tar archive that holds ``ratings.dat``, ``ratings.csv``,
        ``u.data``, ``ratings.tsv`` or ``ratings.parquet``, such as those of MovieLens. Files may
        be packed by gzip, bzip2, xz or zstd (needs the extra ``parquet``), whatever their names
        are; nothing is unpacked to disk. ``"-"`` is the standard input. Open files and pipes are
        read once from their beginning to their end. A table of pandas, polars or Arrow with a
        header of its own is taken as well.
    columns : dict or sequence of str, default=None
        A dict maps ``"user"``, ``"item"``, ``"rating"``, ``"time"`` to the names that the
        file's header uses, where they are not among the usual ones (userId, movieId, score,
        ...). A sequence names all columns in order for a file **without** a header; names other
        than the four are left out. None: the header shows, or without one the order is user,
        item, rating, time.
    sep : str, default=None
        Text between the fields. None: found from the first lines.

    Returns
    -------
    frame : pandas.DataFrame
        Columns user, item and, where the file has them, rating (float64; empty = NaN = unknown)
        and time (as in the file), rows in file order. Ids of a text file become integers where the
        file writes each id of the column as Python writes that integer. Otherwise all of them are
        text, so that ``007`` and ``7`` stay two ids.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    ValueError
        If `path` is nothing of this kind or damaged, no ratings file is found inside, columns
        cannot be recognised, ids are missing, or ratings are not numbers. The error names the file;
        it says what the file has and what is expected.
    MissingExtraError
        If the file is Parquet or packed by zstd, and pyarrow is not installed.

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
       user  item  rating       time
    0     1  1193     5.0  978300760
    1     2   661     3.0  978302109
    """
    import pandas as pd

    frame, label, _ = _read(path, _RATINGS, columns, sep)
    if "rating" in frame:
        numbers = pd.to_numeric(frame["rating"], errors="coerce")
        bad = np.flatnonzero(numbers.isna() & frame["rating"].notna())
        if len(bad):
            value = str(frame["rating"].iloc[bad[0]])
            remedy = "If another column holds the ratings, name it by columns={'rating': ...}."
            if value.replace(",", "", 1).lstrip("+-").isdecimal():
                remedy = (
                    "It has a decimal comma, or a comma between thousands: write decimal points, "
                    "or pass the table that pandas.read_csv(..., decimal=',') returns."
                )
            raise ValueError(
                f"{label}: the rating in data row {bad[0] + 1} is {value!r} and must be a number. "
                f"{remedy}"
            )
        frame["rating"] = numbers.astype("float64")
    return frame


def read_items(path: Any, *, columns: Any = None, sep: str | None = None) -> "pd.DataFrame":
    r"""Read the titles of items from a file, folder, archive, open file or table.

    Parameters
    ----------
    path : str, path-like, file or DataFrame
        As for `read_ratings`; in folders and archives ``movies.dat``, ``movies.csv``, ``u.item`` or
        ``items.csv``, ``.tsv``, ``.dat``, ``.parquet``.
    columns : dict or sequence of str, default=None
        As for `read_ratings`, with ``"item"``, ``"title"`` and ``"genres"``, which are also the
        order without a header.
    sep : str, default=None
        Text between the fields. None: found from the first lines.

    Returns
    -------
    frame : pandas.DataFrame
        Columns item (as in `read_ratings`), title and, where the file has them, genres (text such
        as ``"Comedy|Drama"``).

    Raises
    ------
    FileNotFoundError, ValueError, MissingExtraError
        As `read_ratings`.

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
    return _read(path, _ITEMS, columns, sep)[0]


def read_users(path: Any, *, columns: Any = None, sep: str | None = None) -> "pd.Series":
    """Return the ids of a file of users, one a row: the first column, or that of a header's name.

    Their order in the file stays. The series has the header's name, or none. Errors are those of
    `read_items`.
    """
    frame, _, header = _read(path, _USERS, columns, sep)
    return frame["user"].rename(header)


# Sources of bytes


def _read(path: Any, kind: _Kind, columns: Any, sep: str | None) -> "tuple[pd.DataFrame, str, Any]":
    """Return the columns that play a role, the name for errors, and what the users' header says."""
    header = None
    table = as_frame(path)
    if hasattr(table, "columns"):
        label = f"the {type(path).__name__}"
        names = columns_of(table.columns, columns, label, kind)
        frame = as_pandas(table, list(names))[list(names)].rename(columns=names)
    else:
        with _source(path, kind) as (stream, label):
            if _head(stream).startswith(b"PAR1") or label.lower().endswith(".parquet"):
                file = parquet_file(stream, label)
                names = columns_of(file.schema_arrow.names, columns, label, kind)
                table = file.read(columns=list(names))
                frame = table.to_pandas(ignore_metadata=True).rename(columns=names)
            else:
                frame, header = _read_text(stream.read(), label, kind, columns, sep)
    for role in kind.required:
        absent = np.flatnonzero(frame[role].isna())
        if absent.size:
            raise ValueError(
                f"{label}: {absent.size} of {len(frame)} data rows have no {role}, the first of "
                f"them data row {absent[0] + 1}, and every row must have one. A wrong sep= or "
                "a truncated file has this effect too."
            )
    return frame[[role for role in kind.roles if role in frame]], label, header


@contextmanager
def _source(path: Any, kind: _Kind) -> Iterator[tuple[IO[bytes], str]]:
    """Give the bytes of the wanted table, seekable and unpacked, and the name for errors."""
    with ExitStack() as stack:
        stream: IO[bytes]
        if hasattr(path, "read"):
            content = path.read()
            stream = io.BytesIO(content.encode() if isinstance(content, str) else content)
            label = str(getattr(path, "name", "the open file"))
        elif not isinstance(path, str | os.PathLike):
            raise ValueError(
                f"path={path!r:.80} must be a path, an open file, or a table with named columns: "
                "pass one of them."
            )
        elif path == "-":
            stream, label = stack.enter_context(open(0, "rb", closefd=False)), "standard input"
        else:
            path = Path(path).expanduser()
            if path.is_dir():
                path /= _pick([p.name for p in path.iterdir() if p.is_file()], str(path), kind)
            if not path.exists():
                wanted = f"pass the path of a file, folder or archive with {kind.row}s"
                raise FileNotFoundError(f"{path} does not exist: {wanted}.")
            stream, label = stack.enter_context(path.open("rb")), str(path)
        if not stream.seekable():  # a pipe gives its bytes to its first reader
            stream = io.BytesIO(stream.read())
        what = _packing(_head(stream)) or "file"
        try:
            yield _unpacked(stream, label, kind, stack)
        except _DAMAGE as error:
            if getattr(error, "errno", None) is not None:  # of the disk, not of what is on it
                raise
            raise ValueError(
                f"{label} is a {what} that cannot be read to its end ({error}): it is cut, damaged "
                "or locked. Get it anew, or unpack it with the program that made it."
            ) from error


def _head(stream: IO[bytes]) -> bytes:
    head = stream.read(_TAR_AT + len(_TAR))
    stream.seek(0)
    return head


def _packing(head: bytes) -> str:
    """Return how a file that begins so is packed, if it is."""
    if head[_TAR_AT:] == _TAR:
        return "tar archive"
    return next((name for magic, name in _PACKED.items() if head.startswith(magic)), "")


def _unpacked(stream: Any, label: str, kind: _Kind, stack: ExitStack) -> tuple[IO[bytes], str]:
    """Return what is inside, however often it is packed, and its name."""
    inner: Any
    packing = _packing(_head(stream))
    if not packing:
        return stream, label
    if packing == "zip archive":
        archive = stack.enter_context(zipfile.ZipFile(stream))
        member = _pick(archive.namelist(), label, kind)
        inner, label = archive.open(member), f"{label}/{member}"
    elif packing == "tar archive":
        tar = stack.enter_context(tarfile.open(fileobj=stream))  # noqa: SIM115
        member = _pick([m.name for m in tar.getmembers() if m.isfile()], label, kind)
        inner, label = tar.extractfile(member), f"{label}/{member}"
    elif packing == "zstd file":
        pyarrow, _ = pyarrow_for(label, "zstd")
        inner = io.BytesIO(pyarrow.CompressedInputStream(stream, "zstd").read())
    else:
        inner = {"gzip file": gzip, "bzip2 file": bz2, "xz file": lzma}[packing].open(stream)
    return _unpacked(stack.enter_context(inner), label, kind, stack)


def _pick(members: list[str], label: str, kind: _Kind) -> str:
    """Choose the member with the first known name, or the only data file."""
    members = [m for m in members if not m.startswith("__MACOSX")]
    if "xl/workbook.xml" in members:
        raise ValueError(f"{label} is an Excel workbook: save its sheet as CSV UTF-8.")
    plain = {m: Path(m).with_suffix("") if _PACKED_NAME.search(m) else Path(m) for m in members}
    for name in kind.files:
        found = [m for m in members if plain[m].name == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"{label} holds several files {name}: {found}. Pass the path of one.")
    data_files = [m for m in members if plain[m].suffix.lower() in _SUFFIXES]
    if len(data_files) == 1:
        return data_files[0]
    raise ValueError(
        f"{label} must hold one of {list(kind.files)} with its {kind.row}s, and holds "
        f"{sorted(members)[:20]}. Pass the path of the file itself."
    )


# Parquet


def pyarrow_for(label: str, what: str = "Parquet") -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet; `label` names the file in the error."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        words = f"{label} is a {what} file, and pyarrow must read it: pip install skdpmf[parquet]"
        raise MissingExtraError(words) from error
    return pyarrow, parquet


def parquet_file(stream: Any, label: str) -> Any:
    """Open a stream as a Parquet file; `label` names the file in errors."""
    pyarrow, parquet = pyarrow_for(label)
    # Files are buffered, as a row group may be the whole file; bytes in memory need no second copy.
    size = 0 if isinstance(stream, pyarrow.BufferReader) else 1 << 20
    try:
        return parquet.ParquetFile(stream, buffer_size=size)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{label} cannot be read as Parquet ({error}): get it anew.") from error


def columns_of(fields: Any, columns: Any, label: str, kind: _Kind = _RATINGS) -> dict[str, str]:
    """Return the role of each column of a table that has one."""
    fields = list(fields)
    if columns is not None and not isinstance(columns, dict):
        rule = f"a dict for {label}, whose columns have names: {fields}"
        raise ValueError(f"columns={columns!r} must be {rule}.")
    found = _by_name([str(field) for field in fields], kind, columns, label)
    return {fields[p]: role for role, p in found.items()}


# Text


def _read_text(
    content: bytes, label: str, kind: _Kind, columns: Any, sep: str | None
) -> "tuple[pd.DataFrame, str | None]":
    """Return the columns that play a role, and the header of a file of users, if it has one."""
    content, encoding = _decodable(content, label)
    text = content[: 1 << 16].decode(encoding, errors="replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    n_blank = next((i for i, line in enumerate(lines) if line.strip()), None)
    if n_blank is None:
        raise ValueError(f"{label} is empty and must have {kind.row}s: pass another file.")
    lines = [line for line in lines[n_blank : n_blank + _N_LINES] if line.strip()]
    sep = sep or _guess_sep(lines, label)
    fields = _split(lines[0], sep)
    positions, has_header = _match(fields, kind, columns, label)
    flags = {}
    if kind is _ITEMS and columns is None and not has_header and len(fields) == _U_ITEM_WIDTH:
        flags = {name: 5 + i for i, name in enumerate(_U_ITEM_GENRES)}
        positions.pop("genres", None)
    used = {p: name for name, p in {**positions, **flags}.items()}
    quoting = _quoting(lines[0], sep)
    frame = _parse(label, content, encoding, sep, quoting, n_blank + has_header, len(fields), used)
    header = fields[positions["user"]].strip() if has_header and kind is _USERS else None
    ids = [role for role in _IDS if role in positions]
    if columns is None and not has_header and all(_stands_out(frame[role]) for role in ids):
        if kind is not _USERS:
            raise ValueError(
                f"{label}: the first line has the fields {fields}, which seem to be names of "
                f"columns, as all further ids are integers. Name the {' and the '.join(ids)} by "
                f"columns={{{ids[0]!r}: ...}}."
            )
        header, frame = fields[0].strip(), frame[1:].reset_index(drop=True)
        frame["user"] = frame["user"].cat.remove_unused_categories()
    for role in ids:
        frame[role] = _plain_ids(frame[role])
    if flags:
        rows = frame[list(flags)].to_numpy() == 1
        genres = ["|".join(n for n, on in zip(flags, row, strict=True) if on) for row in rows]
        frame = frame.drop(columns=list(flags)).assign(genres=genres)
    return frame, header


def _decodable(content: bytes, label: str) -> tuple[bytes, str]:
    """Return text in an encoding that the parser takes, and its name."""
    wide = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if wide is None and b"\0" in content:  # without a mark, every other byte of ASCII is zero
        halves = {"utf-16-le": content[1::2], "utf-16-be": content[::2]}
        wide = next((name for name, half in halves.items() if 4 * half.count(0) > len(content)), "")
    try:
        if wide is not None:
            content = content.decode(wide or "utf-8").encode()
        if b"\0" in content:
            raise ValueError("NUL bytes")
    except ValueError as error:
        what = next((what for magic, what in _OTHERS.items() if content.startswith(magic)), None)
        raise ValueError(
            f"{label} is {what}."
            if what
            else f"{label} holds NUL bytes, as binary files and damaged UTF-16 do; expected text "
            "in UTF-8. Save it so (from a spreadsheet as CSV UTF-8), and get a damaged file anew."
        ) from error
    content = content.removeprefix(codecs.BOM_UTF8)
    for encoding in ("utf-8", "cp1252"):
        try:
            if not content.isascii():
                content.decode(encoding)
            return content, encoding
        except UnicodeDecodeError:
            pass
    return content, "latin-1"


def _guess_sep(lines: list[str], label: str) -> str:
    """Return the separator that cuts all lines into as many fields, or one of the first line."""
    suffix = Path(_PACKED_NAME.sub("", label.lower())).suffix
    preferred = {".csv": (",",), ".tsv": ("\t",)}.get(suffix, ())
    order = [s for s in (*preferred, *_SEPARATORS) if s in lines[0]]
    widths = {s: {len(_split(line, s)) for line in lines} for s in order}
    steady = [s for s in order if len(widths[s]) == 1 and widths[s] != {1}]
    sep = next(iter([*steady, *order]), ",")
    if sep == "," and not any(re.search(r"(?<!\d),|,(?!\d)", line) for line in lines):
        # commas between digits alone are decimal commas where another separator cuts more fields
        return max(steady, key=lambda s: max(widths[s]), default=sep)
    return sep


def _quoting(line: str, sep: str) -> Any:
    """Comma, semicolon and tab files quote; elsewhere a quote is part of a title, as a rule."""
    first = line.split(sep)[0].strip()
    is_quoted = len(first) > 1 and first[0] == first[-1] == '"'
    return csv.QUOTE_MINIMAL if sep in ",;\t" or is_quoted else csv.QUOTE_NONE


def _split(line: str, sep: str) -> list[str]:
    if sep == " ":
        line = " ".join(line.split())
    if len(sep) > 1:
        line, sep = line.replace(sep, _FIELD), _FIELD
    return next(csv.reader([line], delimiter=sep, quoting=_quoting(line, sep)))


def _match(fields: list[str], kind: _Kind, columns: Any, label: str) -> tuple[dict[str, int], bool]:
    """Return the position of each role in a line, and whether the first line is a header."""
    roles = kind.roles
    if columns is not None and not isinstance(columns, dict):
        names = list(columns)
        if len(names) != len(fields):
            raise ValueError(
                f"columns={names} has {counted(len(names), 'name')}, but the lines of {label} have "
                f"{len(fields)} fields ({fields}): pass a name for each, any for those without use."
            )
        return _by_name(names, kind, None, label), False
    known = set().union(*roles.values())
    if columns is not None or any(_normalised(f) in known for f in fields):
        return _by_name(fields, kind, columns, label), True
    # No header: the roles in their order.
    fits = kind is _USERS or 2 <= len(fields) <= len(roles)
    if kind is _RATINGS:
        fits = fits and all(_is_number(f.replace(",", ".", 1)) for f in fields[2:3])
    if not fits and (kind is not _ITEMS or len(fields) != _U_ITEM_WIDTH):
        raise ValueError(
            f"{label}: the first line has the fields {fields}, and must be a header with names for "
            f"{list(roles)} (such as {_examples(roles)}), or else values in this order. Pass "
            "columns= to name them (and sep=, if the fields are cut wrongly)."
        )
    return {role: p for p, role in enumerate(roles) if p < len(fields)}, False


def _by_name(fields: list[str], kind: _Kind, columns: Any, label: str) -> dict[str, int]:
    columns = columns or {}
    unknown = [role for role in columns if role not in kind.roles]
    if unknown:
        roles = list(kind.roles)
        raise ValueError(f"columns={columns} has the keys {unknown}: use keys among {roles}.")
    names = [f.strip() for f in fields]
    positions = {}
    for role, known in kind.roles.items():
        if role in columns:
            found = [p for p, name in enumerate(names) if name == columns[role]]
        else:
            taken = columns.values()
            found = [p for p, n in enumerate(names) if _normalised(n) in known and n not in taken]
            found = [p for p in found if _normalised(names[p]) == role] or found
        if len(found) == 1:
            positions[role] = found[0]
        elif found or role in columns or role in kind.required:
            trouble = "several columns" if found else "no column"
            raise ValueError(
                f"{label} has {trouble} for the {role}: its columns are {names}, and it must be "
                f"{columns.get(role) or 'one of ' + str(sorted(known))}. Name it by "
                f"columns={{{role!r}: ...}}; for a file without a header pass all names in order."
            )
    return positions


def known_columns(names: Any, role: str) -> list[Any]:
    """Return the columns of a table that have a known name of a role; the role itself first."""
    found = [name for name in names if _normalised(str(name)) in _RATINGS.roles[role]]
    return sorted(found, key=lambda name: name != role)


def rating_columns(names: Any) -> dict[str, Any]:
    """Return the columns of a table of ratings, by role; {} unless both ids are among them."""
    found = {role: known_columns(names, role) for role in _RATINGS.roles}
    by_role = {role: columns[0] for role, columns in found.items() if columns}
    return by_role if {"user", "item"} <= by_role.keys() else {}


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
    label: str, content: bytes, encoding: str, sep: str, quoting: Any, skip: int, n: int, used: Any
) -> "pd.DataFrame":
    """Read the used columns with the fast parser; ids become categories of their texts."""
    import pandas as pd

    shown = sep
    if sep == " ":  # any number of them
        content = b"\n".join(b" ".join(line.split()) for line in content.splitlines())
    elif len(sep.encode()) > 1:  # the parser takes separators of one byte
        content, sep = content.replace(sep.encode(encoding), _FIELD.encode()), _FIELD
    # A first line of the right length: longer ones are errors then, and categories are texts, which
    # pandas would make numbers of where all could be.
    first = [_TEXT if used.get(p) in _IDS else "0" for p in range(n)]
    content = sep.join(first).encode() + b"\n" + content
    unknown: Any = {p: _NO_NUMBER if name == "rating" else [""] for p, name in used.items()}
    try:
        frame = pd.read_csv(
            io.BytesIO(content),
            encoding=encoding,
            sep=sep,
            quoting=quoting,
            header=None,
            skiprows=range(1, 1 + skip),
            # all columns, as with usecols the parser drops the surplus fields of a line silently
            names=list(range(n)),
            keep_default_na=False,
            na_values=unknown,
            dtype={p: _TYPES[name] for p, name in used.items() if name in _TYPES},
            low_memory=False,
        )
    except pd.errors.ParserError as error:
        trouble = str(error).strip()
        if longer := re.search(r"in line (\d+), saw (\d+)", trouble):
            trouble = "its header or first line has fewer fields than other lines (line "
            trouble += f"{int(longer[1]) - 1} has {longer[2]})"
        raise ValueError(
            f"{label} cannot be read: {trouble}. A line must have {n} fields, "
            f"separated by {shown!r}: pass sep=, or repair the file."
        ) from error
    frame = frame[sorted(used)].rename(columns=used)[1:].reset_index(drop=True)
    ids = {role: frame[role].cat.remove_categories([_TEXT]) for role in _IDS if role in frame}
    return frame.assign(**ids)


def _integer(text: str) -> int | None:
    """Return the integer of 64 bits that is written so."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if str(number) == text and -(1 << 63) <= number < 1 << 63 else None


def _plain_ids(texts: "pd.Series") -> "pd.Series":
    """Return a column of ids as integers, if all are written as integers are; else as text."""
    import pandas as pd

    written = texts.cat.categories
    numbers = [_integer(text) for text in written]
    if None in numbers or texts.hasnans:
        return texts.astype(written.dtype)
    return pd.Series(np.array(numbers, np.int64)[texts.cat.codes], texts.index)


def _stands_out(texts: "pd.Series") -> bool:
    """Return whether the first id is no integer, stands there once, and all others are integers."""
    first = texts.iloc[0] if len(texts) > 1 else "0"
    others = [text for text in texts.cat.categories if text != first]
    return (
        _integer(str(first)) is None
        and len(others) > 0
        and all(_integer(text) is not None for text in others)
        and int((texts == first).sum()) == 1
    )
