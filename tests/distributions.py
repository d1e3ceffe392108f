"""The distributions, built without a network; as a program, the sdist's own tests elsewhere.

`python -m tests.distributions ARGUMENTS` unpacks the sdist and runs pytest there.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.systems import with_path

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


def build(folder):
    """Build both from a copy of the sources; return their paths."""
    copy, dist = folder / "copy", folder / "dist"
    dist.mkdir()
    for name in sources():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, copy / name)
    # files that a build must leave out
    for name in ("docs/_build/x.html", "docs/auto_examples/x.py", "tests/__pycache__/x.pyc"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).touch()
    command = [sys.executable, "-c", BUILD, dist]
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return sdist, wheel


def main(arguments):
    """Run pytest in the unpacked sdist, where there is neither git nor this checkout."""
    with tempfile.TemporaryDirectory() as scratch:
        sdist, _ = build(Path(scratch))
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        inside = Path(scratch, sdist.name.removesuffix(".tar.gz"))
        command = [sys.executable, "-m", "pytest", *arguments]
        return subprocess.run(command, cwd=inside, env=with_path(inside), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
