"""Kept kernels are found by another clone, and never after a source has changed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.systems import needs_posix

CHECKOUT = Path(__file__).resolve().parents[1]

INNER = """from numba import njit

@njit(cache=True)
def inner(x):
    return x + 1
"""

OUTER = """from numba import njit
from skdpmf.inner import inner

@njit(cache=True)
def outer(x):
    return inner(x)
"""

# prints the result and the number of kernels that were found
PROGRAM = """import sys
sys.path.append(sys.argv[1])
import tests.kernel_cache
from skdpmf.outer import outer
print(outer(0), sum(outer.stats.cache_hits.values()))
"""


def clone(folder, inner=INNER):
    package = folder / "skdpmf"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner.py").write_text(inner)
    (package / "outer.py").write_text(OUTER)
    return folder


# the same in a process that a test starts
CHILD = PROGRAM.replace("import tests.kernel_cache\n", "")
PARENT = f"""import subprocess, sys
sys.path.append(sys.argv[1])
import tests.kernel_cache
subprocess.run([sys.executable, "-c", {CHILD!r}, *sys.argv[1:]], check=True)
"""


def result(folder, kernels, program=PROGRAM, *paths):
    paths = os.pathsep.join(map(str, [folder, *paths]))
    environment = {**os.environ, "SKDPMF_KERNELS": str(kernels), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", program, str(CHECKOUT)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
@needs_posix
def test_other_clone_and_child_find_kernels_and_a_changed_callee_compiles(tmp_path):
    kernels, hidden = tmp_path / "kernels", tmp_path / "hidden"
    first, second = clone(tmp_path / "first"), clone(tmp_path / "second")
    os.utime(second / "skdpmf" / "outer.py", (1, 1))
    assert result(first, kernels) == ["1", "0"]
    # a process that a process of the other clone starts
    assert result(second, kernels, PARENT) == ["1", "1"]
    # outer.py stays as it is; the function that it calls does not
    changed = clone(tmp_path / "changed", INNER.replace("x + 1", "x + 100"))
    assert result(changed, kernels) == ["100", "0"]
    assert sum(path.is_dir() for path in kernels.iterdir()) == 2
    # by a sitecustomize, which does not hide another one; the first kernels are still there
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("print('hidden')")
    site = CHECKOUT / "tests" / "site"
    assert result(first, kernels, CHILD, site, hidden) == ["hidden", "1", "1"]
    assert result(first, "", CHILD, site, hidden) == ["hidden", "1", "0"]
    light = "import sys; print('numba' in sys.modules)"
    assert result(first, kernels, light, site) == ["False"]
