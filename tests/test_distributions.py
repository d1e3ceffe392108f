"""What is published: the sdist is the checkout, and the wheel is the package with its page."""

import tarfile
import zipfile
from pathlib import PurePosixPath

import pytest

from tests.distributions import MADE, build, sources

pytest.importorskip("packaging.licenses", reason="setuptools builds with packaging >= 24.2")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the names of the files in the sdist and in the wheel."""
    sdist, wheel = build(tmp_path_factory.mktemp("built"))
    with tarfile.open(sdist) as archive:
        inside = {
            PurePosixPath(member.name).relative_to(sdist.name.removesuffix(".tar.gz")).as_posix()
            for member in archive
            if member.isfile()
        }
    with zipfile.ZipFile(wheel) as archive:
        return inside, set(archive.namelist())


def test_the_sdist_is_the_checkout(built):
    inside, _ = built
    made = MADE | {name for name in inside if name.startswith("skdpmf.egg-info/")}
    assert inside - made == sources()
    for name in ("CHANGELOG.md", "Makefile", "requirements/oldest.txt", ".ci/run"):
        assert name in inside
    assert "skdpmf/commands/browser/index.html" in inside


def test_the_wheel_is_the_package(built):
    _, inside = built
    package = {name for name in sources() if name.startswith("skdpmf/")}
    assert {name for name in inside if ".dist-info/" not in name} == package
    assert {"skdpmf/commands/browser/page.js", "skdpmf/py.typed"} <= package
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)
