"""What is published: the sdist is the checkout, and the wheel is the package with its page."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]  # the first build changes sys.argv
build_meta.build_sdist(folder)
build_meta.build_wheel(folder)
"""
MADE = {"PKG-INFO", "setup.cfg"}  # by the build


def sources():
    """Return the paths of all source files: git's, or those that an unpacked sdist names."""
    if (CHECKOUT / ".git").exists():
        command = ["git", "-C", CHECKOUT, "ls-files", "-z"]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        # one that is deleted and not yet committed is no file any more
        return {name for name in run.stdout.split("\0") if name and (CHECKOUT / name).exists()}
    (listed,) = CHECKOUT.glob("*.egg-info/SOURCES.txt")
    names = listed.read_text(encoding="utf-8").split("\n")
    return {name for name in names if name and ".egg-info/" not in name} - MADE


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build both from a copy of the sources, without a network: names in sdist and wheel."""
    copy, dist = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in sources():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CHECKOUT / name, copy / name)
    # what a build must leave out
    for name in ("docs/_build/x.html", "docs/auto_examples/x.py", "tests/__pycache__/x.pyc"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).touch()
    command = [sys.executable, "-c", BUILD, dist]
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
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
    assert "skdpmf/browser/index.html" in inside


def test_the_wheel_is_the_package(built):
    _, inside = built
    package = {name for name in sources() if name.startswith("skdpmf/")}
    assert {name for name in inside if ".dist-info/" not in name} == package
    assert {"skdpmf/browser/page.js", "skdpmf/py.typed"} <= package
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)
