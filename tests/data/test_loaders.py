import bz2
import gzip
import io
import lzma
import os
import sys
import tarfile
import threading
import zipfile

import pandas as pd
import pytest

from skdpmf.data import loaders, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.exceptions import MissingExtraError
from tests.systems import needs_posix

FULL = pd.DataFrame(
    {"user": [7, 7, 12], "item": [3, 10, 3], "rating": [4.0, 2.5, 5.0], "time": [9, 8, 7]}
)


def text(sep, header=None, frame=FULL):
    lines = [sep.join(str(v) for v in row) for row in frame.itertuples(index=False)]
    return "\n".join(([sep.join(header)] if header else []) + lines) + "\n"


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("sep", ["::", "\t", ",", ";", "|", " "])
@pytest.mark.parametrize(
    "header",
    [None, ["userId", "movieId", "rating", "timestamp"], ["user", "item", "stars", "date"]],
)
@pytest.mark.parametrize("suffix", [".txt", ".dat"])
def test_separators_and_headers_are_found(tmp_path, sep, header, suffix):
    if sep == " " and header:
        header = [name.replace(" ", "_") for name in header]
    path = written(tmp_path / f"any{suffix}", text(sep, header))
    pd.testing.assert_frame_equal(read_ratings(path), FULL)
    pd.testing.assert_frame_equal(read_ratings(str(path), sep=sep), FULL)


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("u.data", text("\t")),
        ("ratings.dat", text("::")),
        ("ratings.csv", text(",", ["userId", "movieId", "rating", "timestamp"])),
    ],
)
def test_movielens_layouts(tmp_path, member, content):
    folder = tmp_path / "ml"
    folder.mkdir()
    for name in ("README", "u1.base", "tags.csv", "movies.dat", "u.item"):
        written(folder / name, "x,y\n")
    path = written(folder / member, content)
    with zipfile.ZipFile(tmp_path / "ml.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.iterdir():
            archive.write(file, f"ml-x/{file.name}")
        archive.writestr(f"__MACOSX/ml-x/{member}", "rubbish")
    for source in (path, folder, tmp_path / "ml.zip"):
        pd.testing.assert_frame_equal(read_ratings(source), FULL)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ml", "ml.zip"]  # nothing unpacked


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n\n"])
@pytest.mark.parametrize("header", [None, ["user", "item", "rating", "timestamp"]])
@pytest.mark.parametrize("sep", [",", "::"])
def test_line_ends_byte_order_mark_and_blank_lines(tmp_path, newline, start, header, sep):
    content = text(sep, header).replace("\n", newline).encode()
    path = written(tmp_path / "r.txt", start + content + newline.encode())
    pd.testing.assert_frame_equal(read_ratings(path), FULL)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("three.csv", text(",", frame=FULL.iloc[:, :3]), FULL.iloc[:, :3]),
        ("plays.tsv", text("\t", ["user", "song"], FULL.iloc[:, :2]), FULL.iloc[:, :2]),
        (
            "r.csv",  # in another order, with others
            text(
                ",",
                ["rating", "movie_id", "user", "comment"],
                FULL.iloc[:, [2, 1, 0]].assign(comment="nice"),
            ),
            FULL.iloc[:, :3],
        ),
        ("none.txt", "user::item::rating\n", FULL.iloc[:0, :3]),
    ],
)
def test_fewer_and_other_columns(tmp_path, name, content, expected):
    written(tmp_path / "README.md", "hello")
    for source in (written(tmp_path / name, content), tmp_path):  # the only data file is taken
        pd.testing.assert_frame_equal(read_ratings(source), expected, check_dtype=len(expected) > 0)


def test_columns_by_dict_and_by_order(tmp_path):
    path = written(tmp_path / "r.csv", text(",", ["who", "movieId", "a", "b"]))
    read = read_ratings(path, columns={"user": "who", "rating": "a", "time": "b"})
    pd.testing.assert_frame_equal(read, FULL)
    bare = written(tmp_path / "bare.csv", text(",", frame=FULL.iloc[:, [1, 3, 0, 2]]))
    read = read_ratings(bare, columns=["item", "_", "user", "rating"])
    pd.testing.assert_frame_equal(read, FULL.iloc[:, :3])


def test_columns_settle_what_is_ambiguous(tmp_path):
    path = written(tmp_path / "r.csv", text(",", ["user", "movieId", "score", "stars"]))
    with pytest.raises(ValueError, match=r"several columns for the rating.*'score', 'stars'"):
        read_ratings(path)
    assert read_ratings(path, columns={"rating": "stars"})["rating"].tolist() == [9.0, 8.0, 7.0]
    exact = written(tmp_path / "e.csv", text(",", ["user", "movieId", "rating", "score"]))
    assert read_ratings(exact)["rating"].tolist() == [4.0, 2.5, 5.0]


@pytest.mark.parametrize("empty", ["", "NaN", "NULL"])
def test_empty_rating_is_unknown(tmp_path, empty):
    path = written(tmp_path / "r.csv", f"user,item,rating\n1,2,{empty}\n1,3,5\n")
    ratings = read_ratings(path)["rating"]
    assert ratings.isna().tolist() == [True, False]
    assert ratings.dtype == "float64"


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    frame = FULL.assign(extra="x").rename(columns={"item": "movieId", "rating": "score"})
    path = tmp_path / "ratings.parquet"
    frame.to_parquet(path)
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.write(path, "ratings.parquet")
    for source in (path, tmp_path / "z.zip"):
        pd.testing.assert_frame_equal(read_ratings(source), FULL)
    read = read_ratings(path, columns={"rating": "time", "time": "score"})
    assert read["rating"].tolist() == [9.0, 8.0, 7.0]
    with pytest.raises(ValueError, match=r"columns=.*must be a dict.*movieId"):
        read_ratings(path, columns=["user", "item"])
    frame.rename(columns={"user": "who"}).to_parquet(path)
    with pytest.raises(ValueError, match=r"no column for the user.*'who'"):
        read_ratings(path)
    broken = written(tmp_path / "broken.parquet", "not parquet")
    with pytest.raises(ValueError, match=r"broken\.parquet cannot be read as Parquet"):
        read_ratings(broken)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = written(tmp_path / "r.parquet", b"PAR1")
    with pytest.raises(MissingExtraError, match=r"pip install skdpmf\[parquet\]"):
        read_ratings(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.csv", "", r"e\.csv is empty"),
        ("r.csv", "user,film,rating\n1,2,3\n", r"no column for the item.*\['user', 'film'"),
        ("r.csv", "a,b,c\n1,2,3\n", r"fields \['a', 'b', 'c'\], and must be a header.*columns="),
        ("r.csv", "1,2,3,4,5\n", r"fields \['1', '2', '3', '4', '5'\], and must"),
        ("r.csv", "user,item,rating\n1,2,3\n1,4,good\n", r"data row 2 is 'good' and must be a num"),
        ("r.csv", "1,2,3\n,2,3\n", r"1 of 2 data rows have no user, the first of them data row 2"),
        ("r.csv", "1,2,3\n1,2,3,4\n", r"r\.csv cannot be read: .*A line must have 3 fields"),
        ("z.zip", b"PK\x03\x04 cut", r"z\.zip is a zip archive that cannot be read.*Get it anew"),
        ("u.csv", "a,b\n".encode("utf-32-le"), r"u\.csv holds NUL bytes.*UTF-8"),
        ("x.csv", b"\xd0\xcf\x11\xe0\0", r"x\.csv is an Excel workbook: save its sheet as CSV"),
        (
            "r.csv",
            "user,item,rating\n1,10,4,\n2,20,3,\n3,10,5,\n",
            "header or first line has fewer fields than other lines",
        ),
        (
            "r.csv",
            "user,item,rating\n1,10,4,99\n2,20,3,98\n",
            r"fewer fields than other lines \(line 2 has 4",
        ),
        ("r.csv", "1;10;4,5\n1;20;3,0\n", "rating in data row 1 is '4,5'.*decimal comma"),
        ("r.csv", "kunde,artikel\n1,2\n3,4\n", r"\['kunde', 'artikel'\], which seem to be names"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read_ratings(written(tmp_path / name, content))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["user", "item"], r"has 2 names, but the lines of .*r\.csv have 4 fields"),
        (["user", "x", "rating", "y"], r"no column for the item: its columns are \['user', 'x'"),
        ({"artist": "a"}, r"keys \['artist'\]: use keys among \['user'"),
        ({"user": "nobody"}, r"no column for the user.*must be nobody"),
    ],
)
def test_bad_columns_are_refused(tmp_path, columns, message):
    path = written(tmp_path / "r.csv", text(","))
    with pytest.raises(ValueError, match=message):
        read_ratings(path, columns=columns)


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none does not exist: pass"):
        read_ratings(tmp_path / "none")
    written(tmp_path / "a.csv", "1")
    written(tmp_path / "b.csv", "1")
    with pytest.raises(ValueError, match=r"must hold one of .* holds \['a\.csv', 'b\.csv'\]"):
        read_ratings(tmp_path)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("x/ratings.csv", "1,2,3")
        archive.writestr("y/ratings.csv", "1,2,3")
    with pytest.raises(ValueError, match=r"several files ratings\.csv: \['x/ratings"):
        read_ratings(tmp_path / "two.zip")


ITEMS = pd.DataFrame(
    {
        "item": [3, 10],
        "title": ['Léon: "The" Professional', "NA"],
        "genres": ["Crime|Drama", "Comedy"],
    }
)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
@pytest.mark.parametrize("name", ["movies.dat", "movies.csv", "items.tsv"])
def test_items_of_text_files(tmp_path, encoding, name):
    if name == "movies.dat":
        content = text("::", frame=ITEMS)
    else:
        quoted = ITEMS.assign(title=['"Léon: ""The"" Professional"', "NA"])
        header = ["movieId", "title", "genres"]
        content = text("," if name == "movies.csv" else "\t", header, quoted)
    path = written(tmp_path / name, content.encode(encoding))
    written(tmp_path / "ratings.csv", text(","))
    for source in (path, tmp_path):
        pd.testing.assert_frame_equal(read_items(source), ITEMS)


def test_items_with_genre_flags(tmp_path):
    def line(item, title, *on):
        flags = ["1" if k in on else "0" for k in range(19)]
        return "|".join([str(item), title, "01-Jan-1995", "", "http://x", *flags])

    lines = [line(1, "Émile, a (1990)", 1, 8), line(2, '"B', 0), line(9, "C")]
    written(tmp_path / "u.item", "\n".join(lines).encode("latin-1"))
    frame = read_items(tmp_path)
    assert frame["item"].tolist() == [1, 2, 9]
    assert frame["title"].tolist() == ["Émile, a (1990)", '"B', "C"]
    assert frame["genres"].tolist() == ["Action|Drama", "unknown", ""]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["7", "-3", "1700000000000000000"], [7, -3, 1700000000000000000]),
        *(
            (ids, ids)
            for ids in (
                ["007", "7", "0007"],
                ["1e3", "1000"],
                ["True", "true", "1"],
                ["9223372036854775808", "1"],
                [" 7", "7"],
                ["nan", "0"],
                ["\u0663", "3"],
                [*map(str, range(300)), "007"],  # the last of the file decides
            )
        ),
    ],
)
@pytest.mark.parametrize("role", ["user", "item"])
def test_ids_are_integers_only_if_all_are_written_so(ids, expected, role):
    other = "item" if role == "user" else "user"
    content = f"{role},{other},rating\n" + "".join(f"{label},a,3\n" for label in ids)
    assert read_ratings(io.StringIO(content))[role].tolist() == expected
    catalogue = "item,title\n" + "".join(f"{label},{label}\n" for label in ids)
    items = read_items(io.BytesIO(catalogue.encode()))
    assert items["item"].tolist() == expected
    assert items["title"].tolist() == ids


def in_tar(content, name="ratings.csv", mode="w"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        member = tarfile.TarInfo(f"a/{name}")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def in_zip(content, name="ratings.csv"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def by_zstd(content):
    return pytest.importorskip("pyarrow").compress(content, "zstd", asbytes=True)


PACKED = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": by_zstd,
    "zip": in_zip,
    "tar": in_tar,
    "tgz": lambda content: in_tar(content, mode="w:gz"),
    "gz.zip": lambda content: in_zip(gzip.compress(content), "ratings.csv.gz"),
    "plain.gz": bytes,
}


@pytest.mark.parametrize("suffix", PACKED)
def test_files_are_unpacked_whatever_their_names_are(tmp_path, suffix):
    content = ("user,item,rating,time\n" + text(",")).encode() + b"8,9,1.0,5\n" * 5000
    packed = PACKED[suffix](content)
    for name in (f"ratings.csv.{suffix}", "ratings.csv", "any"):
        frame = read_ratings(written(tmp_path / name, packed))
        pd.testing.assert_frame_equal(frame[:3], FULL)
        assert len(frame) == 5003
    with open(tmp_path / "any", "rb") as file:
        assert len(read_ratings(file)) == 5003
    if suffix != "plain.gz":
        cut = written(tmp_path / "cut.csv", packed[: len(packed) * 2 // 3])
        with pytest.raises(ValueError, match=r"cut\.csv is a .* cannot be read to its end"):
            read_ratings(cut)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
@pytest.mark.parametrize("first", ["", "user,item,rating\n"])
def test_encodings(encoding, first):
    content = f"{first}Zo\u00eb,10 \u20ac,3\n".encode(encoding)
    assert read_ratings(io.BytesIO(content)).values.tolist() == [["Zo\u00eb", "10 \u20ac", 3.0]]


def test_tables_are_read_as_files_are():
    frame = FULL.rename(columns={"item": "movieId", "time": "date"}).assign(other="x")
    pd.testing.assert_frame_equal(read_ratings(frame), FULL)
    lazy = pytest.importorskip("polars").DataFrame(frame.to_dict("list")).lazy()
    pd.testing.assert_frame_equal(read_ratings(lazy), FULL, check_dtype=False)
    with pytest.raises(ValueError, match="path=17 must be a path, an open file, or a table"):
        read_ratings(17)


# Sources that can be read once


LONG = "user,item,rating\n" + "".join(f"{i // 10},{i % 10},{1 + i % 5}\n" for i in range(30_000))


def piped(read, content):
    """Read what comes through a pipe, as a shell's <(...) passes it."""
    reader, writer = os.pipe()

    def write():
        with open(writer, "wb") as file:
            file.write(content)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        return read(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
        thread.join(timeout=60)


@needs_posix
@pytest.mark.parametrize("sep", [",", "::"])
def test_a_pipe_loses_no_rating(tmp_path, sep):
    content = LONG.replace(",", sep).encode()
    frame = piped(read_ratings, content)
    pd.testing.assert_frame_equal(frame, read_ratings(written(tmp_path / "file", content)))
    assert len(frame) == 30_000


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("7\n9\n", None),
        ("user\n7\n9\n", "user"),
        ("age,userId\n3,7\n4,9\n", "userId"),
        ("7::F::1\n9::M::2\n", None),
        ("Kunde\n7\n9\n", "Kunde"),  # no integer, as all others are
    ],
)
def test_users_are_the_first_column_or_the_named(tmp_path, text, header):
    users = loaders.read_users(written(tmp_path / "users", text))
    assert (users.tolist(), users.name) == ([7, 9], header)
