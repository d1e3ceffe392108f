"""What importing costs: nothing is imported before it is wanted."""

import subprocess
import sys

import pytest

from skdpmf import cli
from skdpmf.estimators.contract.model_file import CLASSES
from skdpmf.privacy.budget import NEIGHBORS, UNITS


def test_choices_are_those_of_the_package():
    assert tuple(CLASSES) == cli._ESTIMATORS
    assert (cli._UNITS, cli._NEIGHBORS) == (UNITS, NEIGHBORS)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["fit", "--help"], ["plan"]])
def test_words_alone_import_little(words):
    code = (
        "import atexit, sys\n"
        "heavy = {'numba', 'numpy', 'pandas', 'scipy', 'sklearn'}\n"
        "atexit.register(lambda: print('heavy:', sorted(heavy & sys.modules.keys())))\n"
        f"from skdpmf.cli import main\nmain({words})"
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
