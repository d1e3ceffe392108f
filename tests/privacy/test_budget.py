"""PrivacyBudget as a value, as a scikit-learn parameter, and split."""

import copy
import math
import pickle
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import skdpmf as sk
from skdpmf.evaluation import PrivateSearchCV, RatingRegressor
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.preprocessing import DPItemSelector
from skdpmf.privacy.accounting import (
    compose_gaussian,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from skdpmf.privacy.budget import PrivacyBudget, check_shares, public_rows
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU
from tests.books.ledgers import calibrated_plan, pure_plan

epsilons = st.floats(min_value=0.01, max_value=50.0)
deltas = st.floats(min_value=-12.0, max_value=-1.0).map(lambda x: 10.0**x)
shares = st.lists(st.floats(min_value=0.01, max_value=1.0), min_size=1, max_size=6).map(
    lambda raw: [x / math.fsum(raw) for x in raw]
)


class Model(BaseEstimator):
    def __init__(self, budget):
        self.budget = budget


def test_the_constructor_stores_and_validate_complains():
    budget = PrivacyBudget(-1, "many", unit="planet", neighbors=None, ledger=3)
    assert budget.get_params() == {
        "epsilon": -1,
        "delta": "many",
        "unit": "planet",
        "neighbors": None,
        "ledger": 3,
    }
    repr(budget)
    valid = PrivacyBudget(1.0, 1e-5, unit="rating", neighbors="replace")
    assert valid.validate() is valid


@pytest.mark.parametrize("epsilon", [1e-300, 1e-5, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-5, 0.999])
def test_numbers_of_any_size_are_used_or_refused_in_words(epsilon, delta):
    budget = PrivacyBudget(epsilon, delta)
    assert 0.0 <= budget.mu < math.inf
    assert pure_plan(epsilon).epsilon == epsilon
    calibrated = PrivacyBudget(epsilon, delta or 1e-5)
    for use in (lambda: budget.split([0.3, 0.7])[0], lambda: calibrated_plan(calibrated)):
        with suppress(PrivacyParameterError):  # the slack of the sampler, or a share worth nothing
            assert use().epsilon <= epsilon


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"epsilon": 0.0}, r"epsilon=0\.0 must be a number > 0, .*: pass for example 1\.0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"epsilon": "1"}, "epsilon='1'"),
        ({"epsilon": np.True_}, r"epsilon=(np\.)?True"),
        ({"epsilon": 1e20}, r"epsilon=1e\+20 must be a number > 0, from 1e-300 to 1e\+15 or inf"),
        ({"epsilon": Decimal("1e400")}, r"epsilon=Decimal\('1E\+400'\)"),  # not infinite
        ({"epsilon": 5e-324}, "epsilon=5e-324"),
        ({"delta": Decimal("1e-400")}, r"delta=Decimal\('1E-400'\) .* at least 1e-300"),  # not 0
        ({"delta": Fraction(1)}, r"delta=1\.0 must be"),
        ({"epsilon": np.array([1.0])}, r"epsilon=array\(\[1\.\]\)"),
        ({"delta": 1.0}, r"delta=1\.0 must be a number in \[0, 1\)"),
        ({"delta": -1e-9}, "delta=-1e-09"),
        ({"unit": "item"}, r"unit='item' must be one of \('user', 'rating'\)"),
        ({"neighbors": "add"}, "neighbors='add'"),
        ({"ledger": "x.ledger"}, "ledger='x.ledger' must be None"),
    ],
)
def test_validate_names_parameter_value_rule_and_remedy(params, message):
    budget = PrivacyBudget(**{"epsilon": 1.0, "delta": 1e-5, **params})
    for use in (budget.validate, lambda: budget.mu, lambda: budget.split([1.0])):
        with pytest.raises(PrivacyParameterError, match=message):
            use()


def test_nonprivate():
    budget = PrivacyBudget.nonprivate(neighbors="replace")
    assert not budget.is_private
    assert budget.mu == math.inf
    assert budget.neighbors == "replace"
    assert [part.epsilon for part in budget.split([0.5, 0.5])] == [math.inf] * 2
    assert PrivacyBudget(1.0).is_private


def test_public_rows_have_two_binary_digits():
    assert [public_rows(n) for n in (1, 5, 1999, 2000, 6040)] == [1, 6, 2048, 2048, 6144]


def test_repr_shows_what_differs():
    assert repr(PrivacyBudget(1.0, 1e-5)) == "PrivacyBudget(epsilon=1.0, delta=1e-05)"
    assert repr(PrivacyBudget(np.float64(0.5))) == "PrivacyBudget(epsilon=0.5, delta=0.0)"
    text = repr(PrivacyBudget(1, 0.1, unit="rating", neighbors="replace"))
    assert text == "PrivacyBudget(epsilon=1, delta=0.1, unit='rating', neighbors='replace')"
    assert eval(text) == PrivacyBudget(1, 0.1, unit="rating", neighbors="replace")


def test_equality_hash_copies():
    budget = PrivacyBudget(1.0, 1e-5, neighbors="replace")
    for other in (
        copy.copy(budget),
        copy.deepcopy(budget),
        pickle.loads(pickle.dumps(budget)),
        clone(budget),
    ):
        assert other is not budget
        assert other == budget
        assert hash(other) == hash(budget)
    assert budget != PrivacyBudget(1.0, 1e-5)
    assert budget != "budget"
    assert hash(PrivacyBudget(1, 0)) == hash(PrivacyBudget(1.0, 0.0))


def test_params_follow_scikit_learn():
    budget = PrivacyBudget(1.0)
    assert budget.set_params(epsilon=3.0, delta=0.1) is budget
    assert budget == PrivacyBudget(3.0, 0.1)
    with pytest.raises(PrivacyParameterError, match="color='red'"):
        budget.set_params(epsilon=4.0, color="red")
    assert budget.epsilon == 3.0  # all or nothing
    model = Model(budget)
    assert model.get_params()["budget__epsilon"] == 3.0
    copied = clone(model)
    assert copied.budget == budget
    assert copied.budget is not budget
    copied.set_params(budget__epsilon=9.0)
    assert budget.epsilon == 3.0
    assert "epsilon=3.0" in repr(model)
    assert "PrivacyBudget" in model._repr_html_() or "budget" in model._repr_html_()


@pytest.mark.parametrize(
    "make",
    [
        sk.DPItemMeans,
        sk.AdaptiveWeightALS,
        sk.DPCovarianceRecommender,
        sk.DPMFSampler,
        sk.LocalDPGDDR,
        DPItemSelector,
        lambda budget: PrivateSearchCV(sk.DPItemMeans(PrivacyBudget(1.0)), {}, budget),
        lambda budget: make_pipeline(sk.DPItemMeans(budget)),
        lambda budget: RatingRegressor(sk.DPItemMeans(budget)),
        lambda budget: GridSearchCV(sk.DPItemMeans(budget), {}),
        lambda budget: PrivateSearchCV(sk.DPItemMeans(budget), {}, PrivacyBudget(1.0)),
    ],
)
def test_a_budget_is_a_value_of_each_estimator(make):
    budget = PrivacyBudget(1.0, 1e-5)
    loose, strict = make(budget), make(budget)
    (name,) = (
        key
        for key in loose.get_params()
        if key.endswith("budget__epsilon")
        and loose.get_params()[key.removesuffix("__epsilon")] is budget
    )
    loose.set_params(**{name: 77.0, name.replace("epsilon", "delta"): 1e-3})
    assert strict.get_params()[name] == budget.epsilon == 1.0
    assert budget.delta == 1e-5
    assert loose.get_params()[name] == 77.0
    assert loose.get_params()[name.replace("epsilon", "delta")] == 1e-3
    assert strict.get_params()[name.removesuffix("__epsilon")] is budget
    both = make(budget).set_params(**{name.removesuffix("__epsilon"): budget, name: 5.0})
    assert (both.get_params()[name], budget.epsilon) == (5.0, 1.0)


def test_options_are_values_too():
    solver = sk.DPALS()
    one, two = (sk.AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5), solver=solver) for _ in range(2))
    one.set_params(solver__weight_exponent=0.25)
    assert two.solver is solver
    assert (one.solver.weight_exponent, solver) == (0.25, sk.DPALS())


# --- split --------------------------------------------------------------------------------------


@given(epsilons, deltas, shares)
def test_split_recomposes_to_the_whole_and_never_above(epsilon, delta, parts):
    whole = PrivacyBudget(epsilon, delta, neighbors="replace")
    try:
        split = whole.split(parts)
    except PrivacyParameterError:
        # only where the least share is worth no epsilon at this delta
        assert gaussian_delta(whole.mu * math.sqrt(min(parts)), 0.0) <= delta * (1 + 1e-8)
        return
    squares = [part.mu**2 for part in split]
    # with room for the sampler
    n_values = int(min(epsilon * 2.0**25, 2.0**26, delta * 2.0**60))
    slack = {"n_values": n_values, "eta": 4.0 * SAMPLER_ETA, "tau": 4.0 * SAMPLER_TAU}
    room = gaussian_mu(epsilon, delta, **slack) if len(parts) > 1 else whole.mu
    assert room > (1 - 1e-6) * whole.mu or epsilon > 10.0 or delta < 1e-7
    for share, square in zip(parts, squares, strict=True):
        assert square <= share * whole.mu**2 * (1 + 1e-15)
        assert square >= share * room**2 * (1 - 1e-6)
    composed = compose_gaussian(1.0 / part.mu for part in split)
    assert composed <= whole.mu * (1 + 1e-15)
    assert gaussian_epsilon(composed, delta) <= epsilon
    assert all(part.delta == delta and part.neighbors == "replace" for part in split)


@given(st.floats(min_value=1e-6, max_value=1e3), shares)
def test_pure_split_is_exact(epsilon, parts):
    split = PrivacyBudget(epsilon).split(parts)
    exact = sum(Fraction(part.epsilon) for part in split)
    assert exact <= Fraction(epsilon)
    assert float(exact) == pytest.approx(epsilon, rel=1e-8)


def test_split_by_name_and_of_parts():
    whole = PrivacyBudget(2.0, 1e-5)
    named = whole.split({"means": 0.25, "factors": 0.75})
    assert list(named) == ["means", "factors"]
    assert list(named.values()) == whole.split([0.25, 0.75])
    again = named["factors"].split([0.5, 0.5])
    mu2 = sum(part.mu**2 for part in (*again, named["means"]))
    assert (1 - 1e-6) * whole.mu**2 <= mu2 <= whole.mu**2
    # epsilons of parts do not add up as numbers: that is what the docstring warns of
    assert sum(part.epsilon for part in named.values()) > 2.0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([0.5, 0.4], r"of sum 1, and their sum is 0\.9"),
        ([1.5, -0.5], r"share=-0\.5"),
        ([math.nan], "share=nan"),
        (["1"], "share='1'"),
        ([], r"of sum 1, and their sum is 0\.0"),
        ({"a": 0.5}, "of sum 1"),
    ],
)
def test_bad_shares(parts, message):
    for delta in (0.0, 1e-5):
        with pytest.raises(PrivacyParameterError, match=message):
            PrivacyBudget(1.0, delta).split(parts)


def test_a_share_too_small_to_be_written():
    with pytest.raises(PrivacyParameterError, match="raise the share, or lower delta"):
        PrivacyBudget(0.01, 0.01).split([1e-6, 1 - 1e-6])


def test_shares_within_the_tolerance_do_not_overspend():
    over = [0.5, 0.5 + 9e-10]
    assert sum(map(Fraction, check_shares(over))) <= 1 + Fraction(1, 10**15)
    whole = PrivacyBudget(1.0, 1e-5)
    assert sum(part.mu**2 for part in whole.split(over)) <= whole.mu**2
