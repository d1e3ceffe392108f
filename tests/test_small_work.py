"""Small work needs no compiler, and no folder to write to."""

import os
import shutil
import subprocess
import sys

import pytest

PLAIN = """
import sys
import numpy as np
import skdpmf as sk
from skdpmf.data import item_features, make_ratings
from skdpmf.preprocessing import DPItemSelector

made_up = make_ratings(30, 15, density=0.4, random_state=0, as_frame=True)
R, features = made_up.matrix, item_features(made_up.catalogue)
clicks, few = {"feedback": "implicit"}, {"n_components": 2, "max_iter": 2}
for budget in (sk.PrivacyBudget(4.0, 1e-5), sk.PrivacyBudget.nonprivate()):
    models = [
        sk.AdaptiveWeightALS(budget, item_features=features, max_iter=2),
        sk.AdaptiveWeightALS(budget, max_iter=2, **clicks),
        *(sk.AdaptiveWeightALS(budget, solver="dpals", **few, **own) for own in ({}, clicks)),
        sk.DPCovarianceRecommender(budget),
        sk.DPCovarianceRecommender(budget, predictor="knn"),
        sk.DPCovarianceRecommender(budget, **clicks),
        sk.DPItemMeans(budget, item_features=features),
        sk.DPMFSampler(budget, max_iter=4),
        sk.LocalDPGDDR(budget.get_params()["delta"] and sk.PrivacyBudget(4.0) or budget),
    ]
    for model in models:
        model.fit(R)
        model.recommend(R, n=3)
        model.recommend({"m3": 5.0}, n=3)
        model.predict_entries(R, R)
        model.transform(R)
        model.score(R)
        if model.n_components_:
            model.similar_items(["m3"], n=3)
        if not isinstance(model, sk.LocalDPGDDR):
            model.explain({"m3": 5.0, "m4": 2.0}, ["m5"])
        assert "numba" not in sys.modules, model
DPItemSelector(sk.PrivacyBudget(4.0, 1e-5), n_items=5).fit(R)
sk.private_multi_task_ridge(
    np.ones((20, 2)), np.ones((20, 3)), sk.PrivacyBudget(4.0, 1e-5), max_norm=1.5, max_value=1.0
)
assert "numba" not in sys.modules
"""


def test_toy_fits_and_answers_import_no_compiler():
    subprocess.run([sys.executable, "-W", "ignore", "-c", PLAIN], check=True, timeout=300)


NOWHERE = """
import sys, warnings
import numpy as np
import skdpmf as sk
from skdpmf.commands.cli import main
from skdpmf.data import make_ratings
from skdpmf.kernels import jit_and_threads, rows, sums

assert main(["plan", "--epsilon", "1", "--items", "10"]) == 0
X = make_ratings(60, 30, density=0.3, random_state=0)
model = sk.DPItemMeans(sk.PrivacyBudget(4.0, 1e-5), random_state=0).fit(X)
assert model.recommend(X, n=3)[0].shape == (60, 3) and "numba" not in sys.modules
given = X.indptr, X.indices, X.data, X.data, np.ones(30), 1.0, 0, 60
found = np.empty((2, X.nnz))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rows.centred_residuals.compiled(*given, found[0])
    sums.row_norms.compiled(X.indptr, X.data, True, 0, 60, np.empty(60))
rows.centred_residuals.plain(*given, found[1])
assert np.allclose(*found, rtol=1e-12, atol=1e-14)
(warning,) = caught
assert "NUMBA_CACHE_DIR" in str(warning.message), warning
"""


AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def test_everything_works_where_no_folder_can_be_written():
    """Another user than the one who installed, without a home."""
    given = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    given.pop("SKDPMF_KERNELS", None)
    command = [sys.executable, "-c", NOWHERE]
    if os.getuid() == 0:
        command = AS_NOBODY + command
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and there is no setpriv")
    run = subprocess.run(
        command,
        cwd="/",
        env={**given, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("compiling for this machine") == 1
