"""The rules of the house, each with a planted violation that its reader must notice."""

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from . import house

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "skdpmf"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
FOLDERS = {
    *("books", "commands", "data", "estimators", "evaluation"),
    *("kernels", "local", "mechanisms", "preprocessing", "privacy"),
}


def scan(reader: Callable[[str, str], list[str]]) -> list[str]:
    """Run a reader over all modules of the package."""
    return [
        f"skdpmf/{path}:{text}"
        for path, file in MODULES.items()
        for text in reader(path, file.read_text(encoding="utf-8"))
    ]


def assert_none(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(found)


def test_folders_are_the_known_ones():
    assert {path.split("/")[0] for path in MODULES if "/" in path} == FOLDERS
    assert set(house.LAYERS) == {*FOLDERS, "exceptions", ""}


RULES = [
    *(house.import_violations, house.reach_violations, house.map_violations),
    *(house.frame_violations, house.around_violations),
    *(house.compiler_violations, house.noise_violations, house.prose_violations),
    house.function_violations,
    house.number_violations,
]
# Literals of each kind in the constants of mechanisms, at most
NUMBERS = {"Fixed": 38, "Guard": 67, "Tuned": 57, "Hidden": 11}


@pytest.mark.every_case
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule):
    assert_none(scan(rule))
    assert set(MODULES) >= house.HOLDING | set(house.DRAWING_MODULES)


def test_no_imports_go_in_circles():
    sources = {path: file.read_text(encoding="utf-8") for path, file in MODULES.items()}
    assert house.import_circle(sources) == []
    sources["privacy/budget.py"] += "\nfrom skdpmf.books.ledger import PrivacyLedger\n"
    assert "books/ledger.py" in house.import_circle(sources)


def test_mechanisms_have_few_numbers():
    found = Counter()
    for path, file in MODULES.items():
        if path.startswith("mechanisms/"):
            for _, kind, count in house.numbers(file.read_text(encoding="utf-8")):
                found[kind] += count
    assert found <= Counter(NUMBERS)
    source = "# Tuned: x against y\nA = 1, -2.0\n# of these\nB: int = 3\n\nC = 4 * [True]\nD = 'e'"
    source += "\ndef f(x=0.3): return 0.5 * x + 1e-9"
    found = [(2, "Tuned", 2), (4, "Tuned", 1), (6, "", 1), (8, "Hidden", 1)]
    assert list(house.numbers(source)) == found


ANYWHERE = ("kernels/als.py", "privacy/sampler/noise.py", "mechanisms/als.py")
OUTSIDE = ("mechanisms/als.py", "estimators/als.py", "kernels/als.py")
USERS = ("mechanisms/als.py", "local/server.py", "privacy/sampler/noise.py")
MAPPED = "def f(rows): ...\nfrom a import g, h\n"
LONG = "def f():\n    '''One.\n\n    Two.\n    '''\n" + "    x = 1\n" * 41
FITS = """class A(PrivateRecommender):
    def fit(self, X, y=None, levels=None):
        'Fit.'
        return self._fit_rows(X, y, levels=levels)

    def _release(self, curator, settings): ...
"""
# For each reader: paths, and sources that it must notice in each of them
PLANTED = {
    house.import_violations: {
        ("kernels/als.py",): (
            "from skdpmf.privacy import noise",
            "from sklearn.base import clone",
            "import joblib",
        ),
        ("privacy/sampler/noise.py", "privacy/sampler/laws.py"): (
            "from ...kernels.sums import accumulate_rhs",
            "from ... import data",
            "import skdpmf",
            "import dp_accounting",
            "def f():\n    import matplotlib",
            "def f(name):\n    __import__(name)",
        ),
        ("data/matrix.py",): (
            "import pandas as pd",
            "def f():\n    from skdpmf.estimators import AdaptiveWeightALS",
        ),
        ("mechanisms/als.py",): ("if TYPE_CHECKING:\n    from skdpmf.estimators import _base",),
        ("estimators/als.py",): ("from skdpmf import evaluation",),
        ("exceptions.py",): ("import numpy",),
    },
    house.reach_violations: {
        USERS: (
            "from skdpmf.privacy.users import reveal",
            "from skdpmf.privacy import users\nrows = users.reveal(curator.users)",
            "exact = users.handle_entry(total).values",
            "exact = getattr(users, '_HANDLES')[total]",
            "plan = self.curator._Curator__plan",
            "total = make_handle(BoundedSum, fit, bound, values)",
            "values = handle_values(users, phi)",
            "users = Users(R, n_slots=9)",
            "phi = PerUser(x)",
            "rows = users.Rows(R, None)",
            "curator = Curator(R, plan, noise, None)",
            "with framed(budget, plan, None) as frame: ...",
            "with record_releases(exact): ...",
            "class Mine(Recorder): ...\nx = Recorder(None)",
        )
    },
    house.frame_violations: {
        ("mechanisms/als.py", "estimators/als.py", "evaluation/metrics.py"): (
            "from skdpmf.privacy.sampler.noise import fresh_key",
            "noise = sampler.NoiseSource(bytes(32))",
            "key = noise.derived_key(0)",
            "self._statement = replace(self._statement, epsilon=0.5)",
        ),
        ("estimators/als.py",): (
            "class A(P, PrivateRecommender):\n    def _fit(self, R, y, fit): ...",
            "class A(PrivateRecommender):\n    def _release_rows(self, R): ...",
            "class A(PrivateRecommender):\n    def fit(self, X, y=None):\n"
            "        self.n_ = X.size\n        return self._fit_rows(X, y)",
            "class A(PrivateRecommender):\n    privacy_spent_ = None\n\n    def _framed(self): ...",
        ),
    },
    house.around_violations: {
        ("mechanisms/als/loop.py", "estimators/dp_means.py"): (
            "exact = next(iter(vars(total).values()))",
            "import pickle",
            "from warnings import warn",
            "from dataclasses import astuple",
            "def f(rows):\n    global kept\n    kept = rows.data",
            "globals()['kept'] = rows.data",
            "try:\n    users.map(f)\nexcept ValueError:\n    there = True",
            "object.__setattr__(release, 'noise_multiplier', 0.1)",
            "open('ratings', 'w')",
            "rows.data.tofile('ratings')",
            "rows.data.setflags(write=True)",
        )
    },
    house.map_violations: {
        ("mechanisms/als.py",): (
            "users.map(lambda rows: rows.data)",
            "self.users.map(self._residuals, b)",
            "def f(users):\n    def g(rows): ...\n    return users.keep(g)",
            "self.users.map(partial(f, b))",
            "sums.products(users, lambda rows, start, stop: rows.data, clip=1.0)",
            "sums.products(*(users, self.vectors, head), clip=1.0)",
            "from skdpmf import x\nusers.map(x.y.z)",
            "def f(rows):\n    global seen\n    seen = rows.data",
            "def f(rows):\n    SEEN.append(rows.data)",
            "def f(rows, total):\n    total += rows.data.sum()",
            "def f(rows, out):\n    out[:] = rows.data\n    return out",
            "def f(rows):\n    rows.data[:] = 0.0",
            "def f(rows):\n    warnings.warn('a rating')",
            "def f(rows):\n    rows.data.tofile('x')",
            "def f(rows):\n    with open('x') as file:\n        return rows.data",
            "def f(rows):\n    if rows.nnz > 9:\n        raise ValueError",
        )
    },
    house.compiler_violations: {
        ("privacy/sampler/cipher.py",): ("from numba import njit\nnjit()", "jit(fastmath=True)"),
        ANYWHERE: (
            "from numba import njit",
            "import numba\nf = numba.jit(g)",
            "f = compiled(g, fastmath=True)",
        ),
    },
    house.noise_violations: {
        OUTSIDE: (
            "import random",
            "from os import urandom",
            "rng = np.random.default_rng(0)",
            "sigma = sqrt(2 * log(1.25 / self.budget.delta))",
            "keep = math.expm1(user_epsilon)",
            "scale = sensitivity / budget.epsilon",
        )
    },
    house.path_violations: {
        ("README.md",): ("see /home/me/x", "shared/data/x.csv", "(review C3)", "DESIGN.md"),
        ("skdpmf/demo.py",): ("../shared/data",),
    },
    house.prose_violations: {("",): ("# Of what is left", "    What it costs.")},
    house.function_violations: {("kernels/als.py",): (LONG,)},
    house.number_violations: {
        ("mechanisms/als.py",): ("A = 0.5", "# Tuned:\nA = 1", "# Guard: x\n\nA = {'b': 3}")
    },
    lambda _, text: house.page_violations(text): {
        ("",): (
            "It is done.\nWhat it costs\nis said below.",
            "- Of ten users one is private.",
            "> Who reads it\n> signs.",
            "A noise tells nothing.",
            "```python\nx\n```\nThose of users differ.",
        )
    },
}
PAGE = "# What it costs\n\n**What was wrong.** A fit.\n\nWhat does it cost? `tell`.\n"
PAGE += "| What | told |\n\n```\nWhat it prints.\n```\n\nThe costs\n=========\n\n    Of code\n"
ALLOWED = [
    *(
        (house.import_violations, path, source)
        for path, source in {
            "privacy/sampler/noise.py": "import sqlite3\nfrom . import x\nfrom scipy import stats",
            "privacy/budget.py": "def f():\n    from dp_accounting import pld",
            "privacy/clipped_sums.py": "from skdpmf.kernels.als import accumulate_items",
            "privacy/sampler/laws.py": "from skdpmf.kernels.jit_and_threads import jit",
            "kernels/jit_and_threads.py": "from joblib import Parallel",
            "data/matrix.py": "if TYPE_CHECKING:\n    import pandas as pd",
            "estimators/als.py": "from skdpmf.mechanisms import als",
            "__init__.py": "from .estimators import AdaptiveWeightALS\nfrom .data import x",
        }.items()
    ),
    *((house.reach_violations, path, "x = reveal(users).R") for path in house.HOLDING),
    (house.reach_violations, "privacy/frame.py", "curator = Curator(R, plan, noise, None)"),
    (house.frame_violations, "privacy/frame.py", "from x import fresh_key\nkey = fresh_key()"),
    (house.frame_violations, "estimators/als.py", FITS),
    (house.around_violations, "mechanisms/als.py", "import math\nx = vars(settings)"),
    (house.around_violations, "evaluation/audit.py", "import pickle\nx = vars(record)"),
    (house.reach_violations, "mechanisms/als.py", "from x import Users\nu: Users = c.users"),
    *(
        (house.map_violations, "mechanisms/als.py", MAPPED + call)
        for call in (
            "def g(rows):\n    x = 1\n    x[0] = 2",
            "users.map(f, b)",
            "users.map(h.k)",
            "sums.products(users, f)",
            "map(z)",
        )
    ),
    *((house.noise_violations, path, "x = default_rng(0)") for path in house.DRAWING_MODULES),
    (house.noise_violations, "privacy/sampler/noise.py", "import secrets"),
    (house.noise_violations, "estimators/als.py", "if budget.epsilon > 1: log(x)"),
    (house.prose_violations, "", "# What is it?"),
    (house.number_violations, "kernels/als.py", "A = 0.5"),
    (house.function_violations, "kernels/als.py", LONG.removesuffix("    x = 1\n")),
    (lambda _, text: house.page_violations(text), "", PAGE),
    (house.path_violations, "tests/conftest.py", "../shared/data"),
    (house.path_violations, "docs/x.md", "https://host/work/x, a/home/b, peer-review"),
]


@pytest.mark.every_case
@pytest.mark.parametrize("reader", PLANTED)
def test_planted_violations_are_noticed(reader):
    for paths, sources in PLANTED[reader].items():
        for path, source in product(paths, sources):
            assert len(reader(path, source)) >= 1, (path, source)


def test_allowed_sources_pass():
    for reader, path, source in ALLOWED:
        assert reader(path, source) == [], (path, source)


def test_sentences_of_pages_name_their_subject():
    pages = [path for path in project_files() if path.suffix in {".md", ".rst"}]
    assert len(pages) > 70
    assert_none(
        [
            f"{path.relative_to(CHECKOUT)}:{text}"
            for path in pages
            for text in house.page_violations(path.read_text(encoding="utf-8"))
        ]
    )


TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".ini", ".rst", ".csv", ""}
SKIPPED_FOLDERS = re.compile(
    r"^(\.(?!ci$|github$).*|__pycache__|.*\.egg-info|auto_examples|build|_build|dist|htmlcov)$"
)


def project_files() -> Iterator[Path]:
    """Yield the text files of the checkout without those that git ignores."""
    for folder, folders, files in os.walk(CHECKOUT):
        folders[:] = [name for name in folders if not SKIPPED_FOLDERS.match(name)]
        for name in files:
            path = Path(folder, name)
            if path.suffix in TEXT_SUFFIXES and not name.startswith("."):
                yield path


def test_nothing_points_to_one_machine_or_to_unpublished_notes():
    # The two files of the rule itself must spell out what they look for.
    own = {"tests/house.py", "tests/test_house.py"}
    files = {path.relative_to(CHECKOUT).as_posix(): path for path in project_files()}
    assert own | {"Makefile", "LICENSE", "pyproject.toml", ".ci/run"} <= set(files)
    found = [
        f"{name}:{text}"
        for name, path in files.items()
        if name not in own
        for text in house.path_violations(name, path.read_text(encoding="utf-8"))
    ]
    assert_none(found)


def test_no_ratings_are_stored():
    data = [p for s in ("parquet", "dat", "zip", "npz") for p in PACKAGE.rglob(f"*.{s}")]
    assert data == []


IMPORT_EVERYTHING = """
import pkgutil, sys
from importlib import import_module
from numba.core import event

opened = []
def audit(name, args):
    if name in ("socket.connect", "socket.getaddrinfo"):
        opened.append(str(args))
    if name == "open" and str(args[0]).lower().endswith((".csv", ".dat", ".parquet")):
        opened.append(str(args[0]))
sys.addaudithook(audit)

with event.install_recorder("numba:compile") as compiled:
    skdpmf = import_module("skdpmf")
    names = [m.name for m in pkgutil.walk_packages(skdpmf.__path__, "skdpmf.")]
    for name in names:
        import_module(name)
assert len(names) > 20, names
assert not compiled.buffer, compiled.buffer
assert not opened, opened

# the recorder does see a compilation
import numba
with event.install_recorder("numba:compile") as compiled:
    numba.njit("int64(int64)")(lambda x: x)
assert compiled.buffer
"""


def test_importing_compiles_nothing_and_reads_no_data(tmp_path):
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "SKDPMF_KERNELS": "",
        "NUMBA_DISABLE_JIT": "0",
    }
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_EVERYTHING],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert list(tmp_path.rglob("*.nb?")) == []


def test_oldest_constraints_are_the_lower_bounds():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = (CHECKOUT / "requirements" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    oldest = {pin.name: next(iter(pin.specifier)) for pin in pins}
    tested = ("plot", "parquet", "accounting", "dask")
    floors = [*project["dependencies"], *(line for name in tested for line in extras[name])]
    assert {Requirement(floor).name for floor in floors} <= set(oldest)
    for requirement in map(Requirement, floors):
        (floor,) = requirement.specifier
        assert floor.operator == ">="
        assert oldest[requirement.name].operator == "=="
        assert Version(floor.version) == Version(oldest[requirement.name].version), requirement.name
