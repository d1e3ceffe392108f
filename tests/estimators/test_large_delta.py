"""A delta above one over the number of rows lets a mechanism publish whole rows: fits say so."""

import warnings

import numpy as np
import pytest

import skdpmf as sk
from skdpmf.data import make_ratings
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.preprocessing import DPItemSelector
from skdpmf.privacy.recording import record_releases

N_ROWS = 40
X = make_ratings(N_ROWS, 6, n_ratings=150, random_state=0)
WORDS = r"^delta=0\.03 is above 1 / 40, one over the number of rows: .* Pass .* such as 0\.003\.$"


def ridge(budget):
    Y = np.where(np.arange(N_ROWS)[:, None] % 2, [[1.0, np.nan]], [[0.5, 1.0]])
    settings = {"max_norm": 1.0, "max_value": 1.0}
    return sk.private_multi_task_ridge(np.ones((N_ROWS, 1)), Y, budget, **settings)


def search(budget):
    return PrivateSearchCV(sk.DPItemMeans(budget), {"user_damping": [1.0, 5.0]}, budget).fit(X)


FITS = {
    "AdaptiveWeightALS": lambda budget: sk.AdaptiveWeightALS(budget, n_components=2).fit(X),
    "DPCovarianceRecommender": lambda budget: sk.DPCovarianceRecommender(budget).fit(X),
    "DPItemMeans": lambda budget: sk.DPItemMeans(budget).fit(X),
    "dense": lambda budget: sk.DPItemMeans(budget).fit(np.where(X.toarray(), X.toarray(), np.nan)),
    "DPMFSampler": lambda budget: sk.DPMFSampler(budget, n_components=2).fit(X),
    "LocalDPGDDR": lambda budget: sk.LocalDPGDDR(budget, max_iter=1).fit(X),
    "DPItemSelector": lambda budget: DPItemSelector(budget, n_items=3).fit(X),
    "ridge": ridge,
    "search": search,
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_warns_once_of_a_delta_above_one_over_the_rows(name):
    with pytest.warns(UserWarning, match=WORDS) as caught:
        FITS[name](sk.PrivacyBudget(4.0, 0.03))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FITS[name](sk.PrivacyBudget(4.0, 1.0 / N_ROWS))


@pytest.mark.parametrize("name", [name for name in FITS if name != "dense"])
def test_the_warning_comes_before_anything_is_spent(name, tmp_path):
    ledger = sk.PrivacyLedger(tmp_path / "ledger", limit=sk.PrivacyBudget(50.0, 0.2))
    with pytest.raises(UserWarning, match=WORDS):  # warnings are errors here
        FITS[name](sk.PrivacyBudget(4.0, 0.03, ledger=ledger))
    assert ledger.verify() == 0


def test_no_warning_without_noise_and_none_of_predictions_and_replays():
    sk.DPItemMeans(sk.PrivacyBudget.nonprivate()).fit(X)
    with pytest.warns(UserWarning, match=WORDS):
        model = sk.DPItemMeans(sk.PrivacyBudget(4.0, 0.03)).fit(X)
    model.predict(X)
    model.score(X)
    model.plan(6, N_ROWS)
    with record_releases():
        sk.DPItemMeans(sk.PrivacyBudget(4.0, 0.03)).fit(X)
