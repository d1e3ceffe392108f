"""The rules of the house, each with a planted violation that its reader must notice."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from . import house

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "skdpmf"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
FOLDERS = {
    "baselines",
    "books",
    "commands",
    "data",
    "distributed",
    "estimators",
    "evaluation",
    "kernels",
    "local",
    "mechanisms",
    "preprocessing",
    "privacy",
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


def test_imports_go_one_way():
    assert_none(scan(house.import_violations))


def test_no_imports_go_in_circles():
    sources = {path: file.read_text(encoding="utf-8") for path, file in MODULES.items()}
    assert house.import_circle(sources) == []
    sources["privacy/budget.py"] += "\nfrom skdpmf.books.ledger import PrivacyLedger\n"
    assert "books/ledger.py" in house.import_circle(sources)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/als.py", "from skdpmf.privacy import noise"),
        ("kernels/als.py", "import skdpmf.data.matrix as m"),
        ("kernels/als.py", "from sklearn.base import clone"),
        ("kernels/als.py", "import scipy"),
        ("privacy/sampler/noise.py", "from ...kernels.jit_and_threads import jit"),
        ("privacy/sampler/laws.py", "from ...kernels.sums import accumulate_rhs"),
        ("privacy/sampler/noise.py", "from ... import data"),
        ("privacy/sampler/noise.py", "import skdpmf"),
        ("privacy/sampler/noise.py", "import dp_accounting"),
        ("privacy/sampler/noise.py", "def f():\n    import matplotlib"),
        ("privacy/sampler/noise.py", "import pandas"),
        ("privacy/sampler/noise.py", "import importlib\nimportlib.import_module('sklearn')"),
        ("privacy/sampler/noise.py", "def f(name):\n    __import__(name)"),
        ("data/matrix.py", "import pandas as pd"),
        ("data/matrix.py", "def f():\n    from skdpmf.estimators import AdaptiveWeightALS"),
        ("mechanisms/als.py", "if TYPE_CHECKING:\n    from skdpmf.estimators import _base"),
        ("mechanisms/als.py", "from sklearn.utils import check_array"),
        ("estimators/als.py", "from skdpmf.evaluation import rmse"),
        ("estimators/als.py", "from skdpmf import evaluation"),
        ("evaluation/metrics.py", "from skdpmf.kernels import als"),
        ("exceptions.py", "import numpy"),
        ("privacy/curator.py", "from skdpmf.kernels import als"),
        ("kernels/als.py", "import joblib"),
    ],
)
def test_planted_import_is_noticed(path, source):
    assert len(house.import_violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "privacy/sampler/noise.py",
            "import sqlite3\nfrom . import _chacha\nfrom scipy import stats",
        ),
        ("privacy/budget.py", "def f():\n    from dp_accounting import pld"),
        ("privacy/sums.py", "from skdpmf.kernels.als import accumulate_items"),
        ("privacy/sampler/laws.py", "from skdpmf.kernels.jit_and_threads import jit"),
        ("kernels/jit_and_threads.py", "from joblib import Parallel"),
        ("data/matrix.py", "from ..exceptions import MissingExtraError\nfrom .x import y"),
        ("data/matrix.py", "if TYPE_CHECKING:\n    import pandas as pd"),
        (
            "estimators/als.py",
            "from skdpmf.mechanisms import als\nfrom skdpmf.privacy import noise",
        ),
        ("evaluation/search.py", "from skdpmf.estimators import AdaptiveWeightALS"),
        ("__init__.py", "from .estimators import AdaptiveWeightALS\nfrom .data import x"),
    ],
)
def test_allowed_import_passes(path, source):
    assert house.import_violations(path, source) == []


def test_private_values_stay_with_the_curator():
    assert_none(scan(house.reach_violations))
    assert set(MODULES) >= house.HOLDING


@pytest.mark.parametrize(
    "source",
    [
        "from skdpmf.privacy.users import reveal",
        "from skdpmf.privacy import users\nrows = users.reveal(curator.users)",
        "exact = total.private_values",
        "exact = getattr(total, 'private_values')",
        "exact = replace(total, private_values=x)",
        "exact = vars(phi)['_PerUser__values']",
        "rows = self.users._Users__rows",
        "slot = curator._Curator__slots",
        "total = BoundedSum(x, 1.0, 'l2', 'full', 'user', 'replace', 9, True, sums._MADE_HERE)",
        "values = _values_of(phi)",
        "users = Users(R, n_slots=9)",
        "phi = PerUser(x)",
        "rows = users.Rows(R, None)",
        "curator = Curator(R, plan, noise, None)",
    ],
)
@pytest.mark.parametrize(
    "path", ["mechanisms/als.py", "local/server.py", "privacy/sampler/noise.py"]
)
def test_planted_reach_is_noticed(path, source):
    assert house.reach_violations(path, source)


def test_allowed_reach_passes():
    for path in house.HOLDING:
        assert house.reach_violations(path, "x = reveal(users).R, total.private_values") == []
    source = "curator = Curator(R, plan, noise, None)\nclass A:\n    def __init__(self): ..."
    assert house.reach_violations("estimators/als.py", source) == []
    assert (
        house.reach_violations("mechanisms/als.py", "from x import Users\nu: Users = c.users") == []
    )


def test_maps_are_functions_of_modules():
    assert_none(scan(house.map_violations))


@pytest.mark.parametrize(
    "source",
    [
        "users.map(lambda rows: rows.data)",
        "self.users.map(self._residuals, b)",
        "def f(users):\n    def g(rows): ...\n    return users.keep(g)",
        "self.users.map(partial(f, b))",
        "users.map(function=lambda rows: rows.data)",
        "sums.products(users, lambda rows, start, stop: rows.data, clip=1.0)",
        "products(users, self.vectors, clip=1.0)",
        "sums.products(*(users, self.vectors, head), clip=1.0)",
        "from skdpmf import x\nusers.map(x.y.z)",
    ],
)
def test_planted_map_is_noticed(source):
    assert len(house.map_violations("mechanisms/als.py", source)) == 1


def test_allowed_map_passes():
    source = "def f(rows): ...\nfrom a import g, h\n" + "\n".join(
        ("users.map(f, b)", "users.keep(g)", "users.map(h.k)", "sums.products(users, f)", "map(z)")
    )
    assert house.map_violations("mechanisms/als.py", source) == []


def test_compiler_flags_come_from_one_place():
    assert_none(scan(house.compiler_violations))


@pytest.mark.parametrize(
    "source",
    [
        "from numba import njit",
        "import numba\nf = numba.jit(g)",
        "f = jit(g, parallel=True)",
        "f = compiled(g, fastmath=True)",
        "OPTIONS = {'fastmath': True}",
    ],
)
@pytest.mark.parametrize(
    "path", ["kernels/als.py", "privacy/sampler/noise.py", "mechanisms/als.py"]
)
def test_planted_compiler_flag_is_noticed(path, source):
    assert house.compiler_violations(path, source)


def test_privacy_compiles_without_fastmath():
    assert house.compiler_violations("privacy/sampler/cipher.py", "from numba import njit\nnjit()")
    assert house.compiler_violations("privacy/sampler/cipher.py", "jit(fastmath=True)")


def test_noise_and_formulas_are_in_privacy():
    assert_none(scan(house.noise_violations))


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import secrets",
        "from os import urandom",
        "rng = np.random.default_rng(0)",
        "from numpy.random import default_rng",
        "noise = stats.norm.rvs(3)",
        "from sklearn.utils import check_random_state",
        "sigma = sqrt(2 * log(1.25 / self.budget.delta))",
        "keep = math.expm1(user_epsilon)",
        "scale = sensitivity / budget.epsilon",
        "epsilon_means = 0.1 * epsilon",
    ],
)
@pytest.mark.parametrize("path", ["mechanisms/als.py", "estimators/als.py", "kernels/als.py"])
def test_planted_noise_or_formula_is_noticed(path, source):
    assert house.noise_violations(path, source)


def test_allowed_randomness_passes():
    draw = "from sklearn.utils import check_random_state\nrng = check_random_state(0)"
    for path in house.DRAWING_MODULES:
        assert path in MODULES
        assert house.noise_violations(path, draw) == []
    assert house.noise_violations("privacy/sampler/noise.py", "import secrets") == []
    assert house.noise_violations("estimators/als.py", "if budget.epsilon > 1: log(x)") == []


def test_sentences_name_their_subject():
    assert_none(scan(house.prose_violations))
    planted = "# Of what is left\n\n    What it costs.\n# What is it?\n"
    assert len(house.prose_violations("", planted)) == 2


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


@pytest.mark.parametrize(
    "text",
    [
        "It is done.\nWhat it costs\nis said below.",
        "- Of ten users one is private.",
        "> Who reads it\n> signs.",
        "**Costs.** What it takes is time.",
        "A noise tells nothing.",
        "```python\nx\n```\nThose of users differ.",
    ],
)
def test_planted_sentence_is_noticed(text):
    assert len(house.page_violations(text)) == 1


def test_allowed_sentence_passes():
    page = "# What it costs\n\n**What was wrong.** A fit.\n\nWhat does it cost? `tell`.\n"
    page += "| What | told |\n\n```\nWhat it prints.\n```\n\nThe costs\n=========\n\n    Of code\n"
    assert house.page_violations(page) == []


def test_kernels_are_short():
    assert_none(scan(house.function_violations))
    planted = "def f():\n    '''One.\n\n    Two.\n    '''\n" + "    x = 1\n" * 41
    assert house.function_violations("kernels/als.py", planted)
    assert not house.function_violations("kernels/als.py", planted.removesuffix("    x = 1\n"))


TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".ini", ".rst", ".csv", ""}
SKIPPED_FOLDERS = re.compile(
    r"^(\.(?!ci$|github$).*|__pycache__|.*\.egg-info|build|_build|dist|htmlcov)$"
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


@pytest.mark.parametrize(
    "text", ["see /home/me/x", "shared/data/x.csv", "(review C3)", "DESIGN.md"]
)
def test_planted_path_is_noticed(text):
    assert house.path_violations("README.md", text)


def test_published_folder_passes():
    assert house.path_violations("tests/conftest.py", "../shared/data") == []
    assert house.path_violations("skdpmf/demo.py", "../shared/data")
    assert house.path_violations("docs/x.md", "https://host/work/x, a/home/b, peer-review") == []


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
