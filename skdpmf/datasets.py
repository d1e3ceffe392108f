"""Public data sets for trials, fetched once and kept: `fetch_movielens`, `fetch_lastfm`."""

import csv
import hashlib
import logging
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sklearn.datasets import get_data_home
from sklearn.utils import Bunch

from skdpmf.data.files import replaced_file
from skdpmf.data.loaders import read_items, read_ratings
from skdpmf.data.matrix import ratings_to_matrix
from skdpmf.data.validation import require

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["fetch_lastfm", "fetch_movielens"]

_SERVER = "https://files.grouplens.org/datasets/"


class _Archive(NamedTuple):
    """A published archive: its place on the server, and its hash."""

    place: str
    algorithm: str
    digest: str


# MD5 as GroupLens publishes it beside the files; SHA-256 as several projects have found it
_MOVIELENS = {
    name: _Archive(f"movielens/ml-{name}.zip", "md5", digest)
    for name, digest in {
        "100k": "0e33842e24a9c977be4e0107933c0723",
        "1m": "c4d9eecfca2ab87c1945afe126590906",
        "10m": "ce571fd55effeba0271552578f2648bd",
        "20m": "cd245b17a1ae2cc31bb14903e1204af3",
        "25m": "6b51fb2759a8657d3bfcbfc42b592ada",
    }.items()
}
_LASTFM = _Archive(
    "hetrec2011/hetrec2011-lastfm-2k.zip",
    "sha256",
    "6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c",
)
_PIECE = 1 << 20
_SECONDS = 60.0  # without a byte, until the server counts as gone
_MOVIELENS_LICENCE = (
    "MovieLens is a data set of GroupLens Research at the University of Minnesota, for research. "
    "It may neither be redistributed nor be used for profit without permission; its README, below, "
    'has the terms. Cite F. M. Harper and J. A. Konstan, "The MovieLens datasets: history and '
    'context", ACM Transactions on Interactive Intelligent Systems 5 (2015).'
)
_LASTFM_LICENCE = (
    "Listening counts of users of Last.fm, published by GroupLens Research for non-commercial use; "
    "its readme, below, has the terms. Cite I. Cantador, P. Brusilovsky and T. Kuflik, "
    '"2nd workshop on information heterogeneity and fusion in recommender systems (HetRec 2011)", '
    "RecSys 2011."
)
_log = logging.getLogger(__name__)


def fetch_movielens(
    name: str = "1m", *, data_home: Any = None, download_if_missing: bool = True
) -> Bunch:
    """Load a MovieLens data set; download it if it is not there yet.

    Parameters
    ----------
    name : {"100k", "1m", "10m", "20m", "25m"}, default="1m"
        Which: by its number of ratings.
    data_home : str or path-like, default=None
        Folder of data sets. None: scikit-learn's (``SCIKIT_LEARN_DATA``, or scikit_learn_data in
        the home folder). The archive is kept in ``skdpmf`` below it, as it was published; one that
        you put there yourself serves as well.
    download_if_missing : bool, default=True
        False: an OSError where the archive is missing.

    Returns
    -------
    data : sklearn.utils.Bunch
        ``ratings``, a DataFrame with the columns user, item, rating and time (seconds since
        1970); ``catalogue``, one with item, title and genres; ``matrix``, the `RatingMatrix` of
        both, which `fit` takes; ``rating_range``; ``DESCR``, licence and README; ``path``, the
        archive.

    Raises
    ------
    ValueError
        If `name` is none of these, or the archive is not the published one, to the byte: by its
        MD5 hash. Then nothing is kept.
    OSError
        If the archive is missing and not to be downloaded, or cannot be.

    Examples
    --------
    >>> from skdpmf.datasets import fetch_movielens
    >>> data = fetch_movielens("1m")  # doctest: +SKIP
    >>> model.fit(data.matrix).recommend({260: 5.0, 1: 4.0})  # doctest: +SKIP
    """
    known = ", ".join(map(repr, _MOVIELENS))
    require(name in _MOVIELENS, "name", name, f"one of {known}", "pass one of them")
    path = _fetched(_MOVIELENS[name], data_home, download_if_missing, _MOVIELENS_LICENCE)
    ratings, catalogue = read_ratings(path), read_items(path)
    data = _bunch(ratings, catalogue, path, _MOVIELENS_LICENCE)
    data.rating_range = (1.0, 5.0) if name in ("100k", "1m") else (0.5, 5.0)
    return data


def fetch_lastfm(*, data_home: Any = None, download_if_missing: bool = True) -> Bunch:
    """Load how often users of Last.fm have played artists; download it if it is not there yet.

    1,892 users, 17,632 artists, 92,834 counts: at most 50 artists a user. A set for
    ``feedback="implicit"``: the counts are weights of choices, not ratings.

    Parameters
    ----------
    data_home, download_if_missing
        As for `fetch_movielens`.

    Returns
    -------
    data : sklearn.utils.Bunch
        ``ratings``, a DataFrame with the columns user, item and rating (the number of plays);
        ``catalogue``, one with item and title (the artist's name); ``matrix``, the `RatingMatrix`
        of both, which `fit` takes; ``DESCR``, licence and readme; ``path``, the archive.

    Raises
    ------
    ValueError
        If the archive is not the published one, to the byte: by its SHA-256 hash. Then nothing is
        kept.
    OSError
        If the archive is missing and not to be downloaded, or cannot be.

    Examples
    --------
    >>> from skdpmf.datasets import fetch_lastfm
    >>> data = fetch_lastfm()  # doctest: +SKIP
    >>> AdaptiveWeightALS(budget, feedback="implicit").fit(data.matrix)  # doctest: +SKIP
    """
    path = _fetched(_LASTFM, data_home, download_if_missing, _LASTFM_LICENCE)
    ratings = _table(path, "user_artists.dat", ["user", "item", "rating"])
    ratings["rating"] = ratings["rating"].astype(float)
    return _bunch(ratings, _table(path, "artists.dat", ["item", "title"]), path, _LASTFM_LICENCE)


def _bunch(ratings: "pd.DataFrame", catalogue: "pd.DataFrame", path: Path, licence: str) -> Bunch:
    """Return tables of ratings and of items with their matrix and their terms."""
    users = ratings["user"].drop_duplicates().sort_values()
    return Bunch(
        ratings=ratings,
        catalogue=catalogue,
        matrix=ratings_to_matrix(ratings, users=users, items=catalogue),
        DESCR=f"{licence}\n\n{_readme(path)}",
        path=path,
    )


def _fetched(archive: _Archive, data_home: Any, download_if_missing: bool, licence: str) -> Path:
    """Return the path of an archive that is the published one."""
    folder = Path(get_data_home(data_home)) / "skdpmf"
    path = folder / Path(archive.place).name
    if path.exists():
        with path.open("rb") as file:
            found = hashlib.file_digest(file, archive.algorithm).hexdigest()
        _require_published(found, archive, path, "delete it, so that it is downloaded anew")
    elif download_if_missing:
        folder.mkdir(parents=True, exist_ok=True)
        _download(archive, path, licence)
    else:
        raise OSError(
            f"{path} does not exist, and download_if_missing=False: pass True, or put "
            f"{_SERVER}{archive.place} there."
        )
    return path


def _download(archive: _Archive, path: Path, licence: str) -> None:
    url = _SERVER + archive.place
    # a warning, because the licence has to be seen where nobody has set up a log
    _log.warning("downloading %s to %s. %s", url, path, licence)
    digest = hashlib.new(archive.algorithm, usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, replaced_file(path) as file:
            while piece := answer.read(_PIECE):
                digest.update(piece)
                file.write(piece)
            _require_published(digest.hexdigest(), archive, url, "try again later")
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise OSError(
            f"{url} cannot be downloaded ({error}): try again later, or put the file at {path} "
            "yourself."
        ) from error


def _require_published(found: str, archive: _Archive, where: Any, remedy: str) -> None:
    if found != archive.digest:
        raise ValueError(
            f"{where} has the {archive.algorithm.upper()} hash {found}, and the published archive "
            f"has {archive.digest}: {remedy}."
        )


def _table(path: Path, member: str, names: list[str]) -> "pd.DataFrame":
    """Return the first columns of a table with tabs and a header, under these names."""
    import pandas as pd

    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        table = pd.read_csv(file, sep="\t", usecols=list(range(len(names))), quoting=csv.QUOTE_NONE)
    table.columns = pd.Index(names)
    return table


def _readme(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        found = [name for name in archive.namelist() if Path(name).stem.upper() == "README"]
        return archive.read(found[0]).decode("utf-8", errors="replace") if found else ""
