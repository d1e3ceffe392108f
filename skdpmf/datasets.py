"""Public data sets for trials, fetched once and kept: `fetch_movielens`."""

import hashlib
import logging
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from sklearn.datasets import get_data_home
from sklearn.utils import Bunch

from skdpmf.data.files import replaced_file
from skdpmf.data.loaders import read_items, read_ratings
from skdpmf.data.matrix import ratings_to_matrix

__all__ = ["fetch_movielens"]

_SERVER = "https://files.grouplens.org/datasets/movielens/"
# MD5 of the archives, as GroupLens publishes them beside the files
_ARCHIVES = {
    "100k": "0e33842e24a9c977be4e0107933c0723",
    "1m": "c4d9eecfca2ab87c1945afe126590906",
    "10m": "ce571fd55effeba0271552578f2648bd",
    "20m": "cd245b17a1ae2cc31bb14903e1204af3",
    "25m": "6b51fb2759a8657d3bfcbfc42b592ada",
}
_PIECE = 1 << 20
_SECONDS = 60.0  # without a byte, until the server counts as gone
_LICENCE = (
    "MovieLens is a data set of GroupLens Research at the University of Minnesota, for research. "
    "It may neither be redistributed nor be used for profit without permission; its README, below, "
    'has the terms. Cite F. M. Harper and J. A. Konstan, "The MovieLens datasets: history and '
    'context", ACM Transactions on Interactive Intelligent Systems 5 (2015).'
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
        ``ratings``, a DataFrame with the columns user, item, rating and timestamp (seconds since
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
    if name not in _ARCHIVES:
        known = ", ".join(map(repr, _ARCHIVES))
        raise ValueError(f"name={name!r} must be one of {known}: pass one of them.")
    folder = Path(get_data_home(data_home)) / "skdpmf"
    path = folder / f"ml-{name}.zip"
    if path.exists():
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "md5").hexdigest()
        _require_published(found, name, path, "delete it, and it is downloaded anew")
    elif download_if_missing:
        folder.mkdir(parents=True, exist_ok=True)
        _download(name, path)
    else:
        raise OSError(
            f"{path} does not exist, and download_if_missing=False: pass True, or put "
            f"{_SERVER}{path.name} there."
        )
    ratings, catalogue = read_ratings(path), read_items(path)
    rating_range = (1.0, 5.0) if name in ("100k", "1m") else (0.5, 5.0)
    users = ratings["user"].drop_duplicates().sort_values()
    return Bunch(
        ratings=ratings,
        catalogue=catalogue,
        matrix=ratings_to_matrix(ratings, users=users, items=catalogue),
        rating_range=rating_range,
        DESCR=f"{_LICENCE}\n\n{_readme(path)}",
        path=path,
    )


def _download(name: str, path: Path) -> None:
    url = _SERVER + path.name
    _log.info("downloading %s to %s. %s", url, path, _LICENCE)
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, replaced_file(path) as file:
            while piece := answer.read(_PIECE):
                digest.update(piece)
                file.write(piece)
            _require_published(digest.hexdigest(), name, url, "try again later")
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise OSError(
            f"{url} cannot be downloaded ({error}): try again later, or put the file at {path} "
            "yourself."
        ) from error


def _require_published(found: str, name: str, where: Any, remedy: str) -> None:
    if found != _ARCHIVES[name]:
        raise ValueError(
            f"{where} has the MD5 hash {found}, and the published archive of MovieLens {name} has "
            f"{_ARCHIVES[name]}: {remedy}."
        )


def _readme(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if Path(member).stem.upper() == "README":
                return archive.read(member).decode("utf-8", errors="replace")
    return ""
