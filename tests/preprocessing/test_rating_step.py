"""Containers of the steps' results under scikit-learn's output settings, alone and in pipelines."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from skdpmf import DPItemMeans, PrivacyBudget, PrivacyLedger
from skdpmf.data import make_ratings
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.preprocessing import ContributionBounder, DPItemSelector

M = make_ratings(60, 12, density=0.4, random_state=0, as_frame=True).matrix
DENSE = np.where(M.X.toarray() == 0, np.nan, M.X.toarray())
NAMES = list(M.items)
SPARSE = {
    "RatingMatrix": M,
    "csr_array": M.X,
    "csr_matrix": sparse.csr_matrix(M.X),
    "coo_array": sparse.coo_array(M.X),
}
FRAMES = {
    "pandas": pd.DataFrame(DENSE, columns=NAMES, index=M.users),
    "integer names": pd.DataFrame(DENSE, columns=np.arange(12) + 100),
    "sparse columns": pd.DataFrame.sparse.from_spmatrix(M.X, columns=NAMES),
    "polars": pl.DataFrame(DENSE, schema=NAMES),
    "polars with null": pl.from_pandas(pd.DataFrame(DENSE, columns=NAMES)),
}
INPUTS = {**SPARSE, **FRAMES, "array": DENSE, "list": DENSE.tolist()}
OUTPUTS = {"pandas": pd.DataFrame, "polars": pl.DataFrame}
STEPS = [
    ContributionBounder(5, random_state=0),
    DPItemSelector(PrivacyBudget.nonprivate(), n_items=7),
]


def cells(X):
    """Known cells of any container, by row and place."""
    if isinstance(X, RatingMatrix):
        X = X.X
    if not sparse.issparse(X):
        X = np.asarray(X, dtype=float)
        return X[~np.isnan(X)]
    return sparse.csr_array(X).data


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@pytest.mark.parametrize("output", ["default", *OUTPUTS])
@pytest.mark.parametrize("name", INPUTS)
def test_results_keep_or_get_their_container(name, output, step):
    X = INPUTS[name]
    expected = cells(clone(step).fit_transform(M.X))
    own = clone(step).set_output(transform=output).fit(X).transform(X)
    with sklearn.config_context(transform_output=output):
        made = clone(step).fit(X).transform(X)
        also = clone(step).fit_transform(X)
        if name not in SPARSE:
            kept = clone(step).set_output(transform="default").fit_transform(X)
            assert isinstance(kept, type(X) if name in FRAMES else np.ndarray)
    kind = type(X) if output == "default" else OUTPUTS[output]
    if name in SPARSE:
        kind = RatingMatrix if name == "RatingMatrix" else (sparse.csr_array, sparse.csr_matrix)
    elif name not in FRAMES and output == "default":
        kind = np.ndarray
    for result in (own, made, also):
        assert isinstance(result, kind)
        if name != "sparse columns" or output == "polars":
            np.testing.assert_array_equal(cells(result), expected)
    if name in FRAMES:
        shown = [str(column) for column in made.columns]
        assert set(shown) <= {str(column) for column in X.columns}
    if name == "pandas" and output != "polars":
        assert made.index.equals(X.index)


@pytest.mark.parametrize("output", ["default", *OUTPUTS])
@pytest.mark.parametrize("name", INPUTS)
def test_pipelines_answer_alike(name, output, tmp_path):
    """What a step gives is what the next one takes, and each fit is charged for what it makes."""
    ledger = PrivacyLedger(tmp_path / "ratings.ledger", PrivacyBudget(4.0, 1e-5))
    budget = PrivacyBudget(1.0, 1e-5, ledger=ledger)
    last = DPItemMeans(PrivacyBudget.nonprivate())
    X, selector = INPUTS[name], DPItemSelector(budget, n_items=12)
    plain = make_pipeline(clone(STEPS[0]), last).fit(M.X).predict(M.X)
    if name == "list":  # a ledger is charged by the shape
        X = np.asarray(X)
    for set_ in (False, True):
        model = make_pipeline(clone(STEPS[0]), clone(selector), clone(last))
        if set_:
            model.set_output(transform=output)
        with sklearn.config_context(transform_output="default" if set_ else output):
            np.testing.assert_allclose(model.fit(X).predict(X), plain)
    assert len(ledger.report().entries) == 2


def test_bad_outputs_cost_nothing(tmp_path, monkeypatch):
    ledger = PrivacyLedger(tmp_path / "ratings.ledger", PrivacyBudget(4.0, 1e-5))
    selector = DPItemSelector(PrivacyBudget(1.0, 1e-5, ledger=ledger))
    with pytest.raises(ValueError, match=r"transform='table' must be 'default', 'pandas' or 'pol"):
        selector.set_output(transform="table")
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(ImportError):
        selector.set_output(transform="polars").fit(DENSE)
    assert not ledger.report().entries
