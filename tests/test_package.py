"""What importing costs, and the public names."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skdpmf
from skdpmf import exceptions
from skdpmf.commands import cli
from skdpmf.data import make_ratings
from skdpmf.estimators.contract.model_file import CLASSES
from skdpmf.privacy.budget import NEIGHBORS, UNITS

CHECKOUT = Path(__file__).resolve().parents[1]
PARTS = ("data", "estimators", "evaluation", "local", "preprocessing", "privacy")


def test_choices_are_those_of_the_package():
    assert CLASSES == cli._ESTIMATORS
    assert (cli._UNITS, cli._NEIGHBORS) == (UNITS, NEIGHBORS)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["fit", "--help"], ["plan"]])
def test_words_alone_import_little(words):
    code = (
        "import atexit, sys\n"
        "heavy = {'numba', 'numpy', 'pandas', 'scipy', 'sklearn'}\n"
        "atexit.register(lambda: print('heavy:', sorted(heavy & sys.modules.keys())))\n"
        f"from skdpmf.commands.cli import main\nmain({words})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "heavy: []"


def test_the_package_names_what_it_has():
    code = (
        "import sys, skdpmf\n"
        "assert set(skdpmf.__all__) <= set(dir(skdpmf)), dir(skdpmf)\n"
        "assert not {'numpy', 'sklearn'} & sys.modules.keys()\n"
        "assert skdpmf.privacy.PrivacyBudget is skdpmf.PrivacyBudget\n"
        "from skdpmf import *\n"
        "assert all(globals()[name] is getattr(skdpmf, name) for name in skdpmf.__all__)\n"
        "assert not hasattr(skdpmf, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


PACKAGES = ["skdpmf", "skdpmf.datasets", *(f"skdpmf.{part}" for part in PARTS)]


def test_public_names_are_few_and_all_on_the_page():
    names = {
        name: importlib.import_module(package)
        for package in reversed(PACKAGES)
        for name in importlib.import_module(package).__all__
    }
    names |= {"BudgetExceededError": exceptions}
    assert len(names) <= 65
    page = (CHECKOUT / "docs" / "api.rst").read_text(encoding="utf-8")
    assert set(re.findall(r"^   (\w+)$", page, re.MULTILINE)) == names.keys()
    for name, place in names.items():
        assert (getattr(place, name).__doc__ or "").strip()


# They look at single steps of the methods, or explain the core.
INSIDERS = {"docs/mechanism.md"}


def private_imports(text):
    """Return what a page imports of the package and is no public name."""
    found = []
    for module, names in re.findall(r"^ *from (skdpmf[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
        public = [] if module not in PACKAGES else importlib.import_module(module).__all__
        public = ["BudgetExceededError"] if module == "skdpmf.exceptions" else public
        found += [
            f"{module}.{name}" for name in re.split(r", *", names.strip()) if name not in public
        ]
    return found


def test_teaching_pages_use_public_names():
    pages = [*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/*.md"), *CHECKOUT.glob("docs/guide/*.md")]
    pages += CHECKOUT.glob("examples/*.py")
    found = {
        name: private
        for page in pages
        if (private := private_imports(page.read_text(encoding="utf-8")))
        and (name := page.relative_to(CHECKOUT).as_posix()) not in INSIDERS
    }
    assert len(pages) > 30
    assert not found
    planted = "from skdpmf import x, PrivacyBudget\nfrom skdpmf.privacy.clipped_sums import items\n"
    assert private_imports(planted) == ["skdpmf.x", "skdpmf.privacy.clipped_sums.items"]


HEAVY = {"joblib", "numba", "pandas", "scipy.stats", "sklearn", "sqlite3"}
RUN = "from skdpmf.commands.cli import main\nmain({})"


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """A model file and a ledger, in a folder."""
    folder, budget = tmp_path_factory.mktemp("books"), skdpmf.PrivacyBudget(4.0, 1e-5)
    model = skdpmf.DPItemMeans(budget, user_damping=3.0)
    model.fit(make_ratings(200, 12, random_state=0)).save(folder / "model")
    skdpmf.PrivacyLedger(folder / "ledger", budget)
    return folder


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("from skdpmf import PrivacyBudget", set()),
        ("import skdpmf.data, skdpmf.estimators, skdpmf.privacy", set()),
        ("from skdpmf import DPALS, Clicks, PosteriorDraw, Snapshots, load_model", set()),
        ("from skdpmf.local import LocalDevice", set()),
        (RUN.format(["ledger", "ledger"]), {"sqlite3"}),
        (RUN.format(["show", "model"]), set()),
        (RUN.format(["plan", "--items", "30", "--epsilon", "1"]), set()),
        (RUN.format(["plan", "--items", "30", "--estimator", "CacheSGDFactorizer"]), set()),
        ("from skdpmf import load_model\nload_model('model')", HEAVY - {"numba", "sqlite3"}),
    ],
)
def test_names_and_commands_import_what_they_need(code, needed, books):
    code += f"\nimport sys\nprint('heavy:', sorted({HEAVY - needed} & sys.modules.keys()))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=books, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == "heavy: []"
