"""Data sets that are fetched, against a server on this machine: nothing is downloaded in tests."""

import hashlib
import io
import zipfile
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget, datasets
from skdpmf.datasets import fetch_lastfm, fetch_movielens
from tests.systems import served


def archive():
    """Return a small archive in the format of MovieLens 1M."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("ml-1m/README", "Terms of use.")
        file.writestr("ml-1m/ratings.dat", "1::7::5::978300760\n2::7::3::978302109\n2::9::1::1\n")
        file.writestr(
            "ml-1m/movies.dat", "7::Heat (1995)::Action|Crime\n8::Up::Comedy\n9::M::Drama\n"
        )
    return stream.getvalue()


@pytest.fixture
def serve(monkeypatch):
    """A function that serves bytes at every path, and notes what is asked for."""
    servers = ExitStack()

    def start(content, published=None, status=200, short=0):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) - short])

            def log_message(self, *args):
                pass

        url = servers.enter_context(served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)))
        monkeypatch.setattr(datasets, "_SERVER", url)
        known = published or content
        own = datasets._MOVIELENS["1m"]._replace(digest=hashlib.md5(known).hexdigest())
        monkeypatch.setitem(datasets._MOVIELENS, "1m", own)
        own = datasets._LASTFM._replace(digest=hashlib.sha256(known).hexdigest())
        monkeypatch.setattr(datasets, "_LASTFM", own)
        return SimpleNamespace(url=url, asked=asked, stop=servers.close)

    with servers:
        yield start


def test_is_fetched_once_and_kept(serve, tmp_path, caplog):
    server = serve(archive())
    for _ in range(2):
        data = fetch_movielens("1m", data_home=tmp_path)
        assert data.ratings["rating"].tolist() == [5.0, 3.0, 1.0]
        assert list(data.ratings) == ["user", "item", "rating", "time"]
        assert data.catalogue["title"].tolist() == ["Heat (1995)", "Up", "M"]
        np.testing.assert_array_equal(data.matrix.X.toarray(), [[5, 0, 0], [3, 0, 1]])
        assert data.matrix.titles == ["Heat (1995)", "Up", "M"]
        assert data.matrix.undeclared == ()
        assert data.rating_range == (1.0, 5.0)
        assert "Terms of use." in data.DESCR
        assert "may neither be redistributed" in data.DESCR
        assert data.path == tmp_path / "skdpmf" / "ml-1m.zip"
    assert server.asked == ["/movielens/ml-1m.zip"]
    (shown,) = caplog.messages  # without any setting of the log
    assert shown.startswith(f"downloading {server.url}")
    assert "may neither be redistributed" in shown
    model = DPItemMeans(PrivacyBudget.nonprivate()).set_output(recommend="pandas").fit(data.matrix)
    assert model.recommend({7: 5.0})["title"].tolist() == ["M", "Up"]  # which somebody rated


def test_an_archive_that_is_there_serves(serve, tmp_path):
    server = serve(archive())
    (tmp_path / "skdpmf").mkdir()
    (tmp_path / "skdpmf" / "ml-1m.zip").write_bytes(archive())
    assert fetch_movielens(data_home=tmp_path, download_if_missing=False).matrix.shape == (2, 3)
    assert server.asked == []


def test_what_is_not_the_published_archive_is_refused(serve, tmp_path):
    serve(archive(), published=b"another")
    with pytest.raises(ValueError, match=r"ml-1m\.zip has the MD5 hash .* try again later"):
        fetch_movielens("1m", data_home=tmp_path)
    assert list((tmp_path / "skdpmf").iterdir()) == []
    (tmp_path / "skdpmf" / "ml-1m.zip").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="delete it, so that it is downloaded anew"):
        fetch_movielens("1m", data_home=tmp_path)


@pytest.mark.parametrize("trouble", [{"status": 404}, {"short": 9}, None])
def test_a_download_that_fails_leaves_nothing(trouble, serve, tmp_path):
    server = serve(archive(), **(trouble or {}))
    if trouble is None:
        server.stop()
    kind, words = OSError, r"cannot be downloaded .* put the file at"
    if trouble == {"short": 9}:  # the connection ended early
        kind, words = (OSError, ValueError), r"cannot be downloaded|MD5 hash"
    with pytest.raises(kind, match=words):
        fetch_movielens("1m", data_home=tmp_path)
    assert list((tmp_path / "skdpmf").iterdir()) == []


def test_missing_and_not_to_be_downloaded(tmp_path):
    with pytest.raises(OSError, match="download_if_missing=False: pass True, or put https://"):
        fetch_movielens("100k", data_home=tmp_path, download_if_missing=False)
    assert not (tmp_path / "skdpmf").exists()
    with pytest.raises(ValueError, match="name='2m' must be one of '100k', '1m'"):
        fetch_movielens("2m", data_home=tmp_path)


def plays():
    """Return a small archive in the format of the set of Last.fm."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("readme.txt", "Non-commercial use.")
        file.writestr("user_artists.dat", "userID\tartistID\tweight\n2\t52\t13883\n7\t51\t1\n")
        artists = 'id\tname\turl\tpictureURL\n51\tDuran "D\thttp://x\t\n52\tSigur R\u00f3s\ty\tz\n'
        file.writestr("artists.dat", artists)
    return stream.getvalue()


def test_plays_are_fetched_once_and_fit(serve, tmp_path):
    server = serve(plays())
    for _ in range(2):
        data = fetch_lastfm(data_home=tmp_path)
        assert data.ratings.to_numpy().tolist() == [[2.0, 52.0, 13883.0], [7.0, 51.0, 1.0]]
        assert data.catalogue["title"].tolist() == ['Duran "D', "Sigur R\u00f3s"]
        np.testing.assert_array_equal(data.matrix.X.toarray(), [[0, 13883], [1, 0]])
        assert "Non-commercial use." in data.DESCR
    assert server.asked == ["/hetrec2011/hetrec2011-lastfm-2k.zip"]
    model = AdaptiveWeightALS(PrivacyBudget.nonprivate(), feedback="implicit").fit(data.matrix)
    assert model.catalogue_["item"].tolist() == [51, 52]
    data.path.write_bytes(b"damaged")
    with pytest.raises(
        ValueError, match=r"has the SHA256 hash .* delete it, so that it is downloaded"
    ):
        fetch_lastfm(data_home=tmp_path)
