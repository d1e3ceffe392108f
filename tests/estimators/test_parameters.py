"""Parameters that are refused: name, value, rule and remedy, before the data are touched."""

import inspect
import math

import numpy as np
import pytest

import skdpmf as sk
import skdpmf.estimators
from skdpmf.estimators.contract.model_file import CLASSES
from skdpmf.estimators.planners import planner_of
from tests.built import nested
from tests.estimators.common import is_private, public_estimators
from tests.estimators.test_adaptive_weight_als import Untouchable

BUDGET = sk.PrivacyBudget(8.0, 1e-5)
# Options whose parameters are among those below
MODELS = {
    "als": lambda: sk.AdaptiveWeightALS(BUDGET, solver="dpals"),
    "clicks": lambda: sk.AdaptiveWeightALS(BUDGET, solver="dpals", feedback="implicit"),
    "covariance": lambda: sk.DPCovarianceRecommender(BUDGET, predictor="knn"),
    "means": lambda: sk.DPItemMeans(BUDGET),
    "sampler": lambda: sk.DPMFSampler(BUDGET, guarantee="posterior"),
    "local": lambda: sk.LocalDPGDDR(
        sk.PrivacyBudget(4.0), method=sk.GradientReports(), randomizer="coordinate"
    ),
    "sgd": lambda: sk.CacheSGDFactorizer(snapshots=sk.Snapshots("s")),
}
COUNTS, NUMBERS = (0, -1, 2.0, True, "3"), (0.0, -1.0, math.inf, math.nan, None, "1", True)
WEIGHTINGS = "'adaptive', 'tail' or 'uniform'"
GUARANTEE = "'every-step', 'posterior' or PosteriorDraw(...)"
FEEDBACK = "'explicit', 'implicit' or Clicks(...)"
SHARES = [
    *((0.1, 0.9), (0.1, 0.4, 0.4), (0.5, 0.0, 0.5), (-0.1, 0.5, 0.6), (0.1, math.nan, 0.9)),
    *((math.inf, 0.5, 0.5), ("a", "b", "c"), "automatic", 0.5, None),
]
# Parameter, values, rule and remedy
EVERY = [
    ("budget", (None, 1.0), "must be a PrivacyBudget", "pass PrivacyBudget"),
    ("n_components", COUNTS, "integer >= 1", "use"),
    ("rating_range", ((5.0, 1.0), (1.0, math.inf), 5.0), "", ""),
    ("random_state", (-1, np.random.RandomState(0), True), "integer", ""),
    ("n_jobs", (0, 1.5), "other than 0", ""),
]
OWN = {
    "als": [
        ("solver", ("sgd", None), "'pooled', 'dpals'", "default"),
        ("weighting", ("popular", None), WEIGHTINGS, "use"),
        ("weight_exponent", (-0.5, math.nan, "0.5"), ">= 0", "use"),
        ("max_ratings_per_user", (0, 2.5), "integer >= 1", "use"),
        ("max_iter", (0, "10"), "integer >= 1", "use"),
        ("alpha", (0.0, math.inf, False), "finite number > 0", "use"),
        ("user_damping", (0.0, -1.0), "> 0", "use"),
        ("item_means", ("yes", None, 1.5), "", ""),
    ],
    "clicks": [
        ("feedback", ("clicks", None), FEEDBACK, "default"),
        ("unobserved_weight", (0.0, -1.0, math.inf, True), "finite number > 0", "use the default"),
    ],
    "covariance": [
        ("noise", ("normal", None, 1), "'gaussian' or 'laplace'", "default"),
        ("predictor", ("als", None), "'svd', 'knn' or NearestItems(...)", "default"),
        ("n_neighbors", (*COUNTS, None), "integer", "use"),
        *(
            (name, (*NUMBERS, 1e-7, 2e6), "between 1e-6 and 1e6", "use")
            for name in ("item_damping", "user_damping", "clamp")
        ),
        ("clean", (1, "yes", None), "True or False", "use True"),
        ("shares", SHARES, "three numbers >= 0 of sum 1", "use 'auto'"),
    ],
    "means": [
        ("user_damping", (0.0, math.nan, "1", True, 1e-7, 2e6), "between 1e-6 and 1e6", "use")
    ],
    "sampler": [
        ("guarantee", ("each-step", None), GUARANTEE, "default"),
        ("sampler", ("hmc",), "'gibbs' or 'sgld'", "default"),
        ("calibration", ("loose",), "'tight' or 'paper'", "default"),
        ("noise", ("none",), "'exact' or 'table'", "default"),
        *((name, COUNTS, "integer >= 1", "use") for name in ("max_iter", "max_ratings_per_user")),
        *((name, (*COUNTS, None), "integer", "use") for name in ("n_draws", "table_size")),
        *(
            (name, NUMBERS, "> 0", "use")
            for name in ("alpha", "user_std", "item_std", "bias_std", "rating_std")
        ),
        ("user_damping", (0.0, -1.0, math.nan, "1"), "> 0", "use"),
        ("step_size", NUMBERS, "> 0", "use"),
        ("kappa", (-0.1, math.inf, math.nan), "finite number >= 0", "use"),
        ("weight_cap", (0.0, -math.inf, math.nan, "1"), "> 0", "inf"),
        ("item_bias", (1,), "True, False or None", "use"),
        ("sample_precisions", ("no",), "True or False", "use"),
        ("nonprivate_diagnostics", (None,), "True or False", "use"),
    ],
    "local": [
        ("method", ("als", None, 1), "GradientReports(...)", "default"),
        ("randomizer", ("laplace", None), "'privunit' or", "default"),
        ("back_projection", ("none", None), "'unbiased' or", "default"),
        *((name, COUNTS, "integer >= 1", "use") for name in ("max_iter", "projection_dim")),
        *(
            (name, (-1e-9, 2e6, *NUMBERS[2:]), "between 0 and 1e6", "use")
            for name in ("step_size", "user_step", "alpha")
        ),
        ("user_damping", (0.0, 1e-7, 2e6, math.nan, None), "between 1e-6 and 1e6", "use"),
        ("center", (1, "yes", None), "True or False", "use True"),
    ],
    "sgd": [
        ("max_iter", (0, "15"), "integer >= 1", "use the default"),
        ("learning_rate", (0.0, math.inf, None), "finite number > 0", "use the default"),
        ("learning_rate_decay", (0.0, 1.01, math.nan), "(0, 1]", "use 1 to keep the rate"),
        ("alpha", (-0.1, math.nan, False), "finite number >= 0", "use the default"),
        ("fit_bias", (1,), "True or False", "use the default"),
        ("warm_start", (None,), "True or False", "use the default"),
        ("snapshot_every", (0, 1.5), "None or an integer >= 1", "use the default"),
        ("snapshot_path", (3,), "a path", "pass that of a file"),
    ],
}
ROWS = [(model, *row) for model in MODELS for row in [*EVERY, *OWN[model]]]
ROWS = [row for row in ROWS if row[:2] not in (("sgd", "budget"), ("means", "n_components"))]


def check_refused(model, *words, methods=("fit",)):
    """With an error that has the words, before the data are touched."""
    calls = [lambda name=name: getattr(model, name)(Untouchable()) for name in methods]
    if is_private(model) and not isinstance(model, sk.CacheSGDFactorizer):
        calls.append(lambda: model.plan(10))
    for call in calls:
        with pytest.raises((ValueError, TypeError)) as error:
            call()
        for word in words:
            assert word in str(error.value)
    assert not [key for key in vars(model) if key.endswith("_")]


@pytest.mark.parametrize("weighting", ["sqrt", True])
def test_weightings_that_there_are_not(weighting):
    model = sk.AdaptiveWeightALS(BUDGET, feedback=sk.Clicks(weighting=weighting))
    check_refused(model, f"weighting={weighting!r}", "None or 'log'", "alike")


@pytest.mark.parametrize(
    ("kind", "name", "values", "rule", "remedy"), ROWS, ids=[f"{r[0]}-{r[1]}" for r in ROWS]
)
def test_bad_parameters(kind, name, values, rule, remedy):
    methods = ("fit", "partial_fit") if kind == "sgd" else ("fit",)
    for value in values:
        model = MODELS[kind]()
        model.set_params(**nested(type(model), {name: value}))
        text = f"{name.removeprefix('snapshot_')}={value!r}"
        words = "must" if rule or remedy else "", text if rule else name
        check_refused(model, *words, rule, remedy, methods=methods)


def test_data_that_may_not_be_touched_would_be():
    for make in MODELS.values():
        with pytest.raises(RuntimeError, match="data touched"):
            make().fit(Untouchable())


PRIVATE = [model for model in public_estimators() if "budget" in model.get_params()]
every_private = pytest.mark.parametrize(
    "estimator", PRIVATE, ids=lambda estimator: type(estimator).__name__
)


@every_private
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epsilon", value) for value in (0.0, -1.0, math.nan)),
        *(("delta", value) for value in (1.0, 2.0)),
        ("unit", "item"),
        ("neighbors", "one"),
    ],
)
def test_bad_budgets(estimator, name, value):
    budget = sk.PrivacyBudget(1.0, 1e-5).set_params(**{name: value})
    model = type(estimator)(budget)
    check_refused(model, f"{name}={value!r} must be")


@pytest.mark.parametrize("kind", [sk.AdaptiveWeightALS, sk.DPMFSampler])
@pytest.mark.parametrize(("name", "value"), [("delta", 0.0), ("unit", "rating")])
def test_budgets_that_cannot_be_spent(kind, name, value):
    model = kind(sk.PrivacyBudget(1.0, 1e-5).set_params(**{name: value}))
    check_refused(model, f"{name}={value!r} must be")


@every_private
def test_bad_catalogues_and_numbers_of_rows(estimator):
    for value in (0, -1, 2.0, None, True, "3"):
        with pytest.raises(ValueError, match=r"n_items=.*must be an integer >= 1: pass"):
            estimator.plan(value)
        if value is not None:
            with pytest.raises(ValueError, match=r"n_rows=.*must be an integer >= 1: pass"):
                estimator.plan(10, value)


def test_every_parameter_of_the_baseline_is_checked():
    # features are checked against the items, as test_item_features.py has it
    checked = {"snapshots", "item_features"} | {row[1] for row in ROWS if row[0] == "sgd"}
    checked -= {"snapshot_path", "snapshot_every"}
    assert checked == set(sk.CacheSGDFactorizer().get_params())


@pytest.mark.parametrize("name", CLASSES)
def test_a_planner_has_the_parameters_of_its_estimator(name):
    alone, estimator = planner_of(name), getattr(skdpmf.estimators, name)
    assert inspect.signature(alone) == inspect.signature(estimator)
    budget = [] if name == "CacheSGDFactorizer" else [sk.PrivacyBudget(1.0, 1e-5)]
    planner, model = alone(*budget), estimator(*budget)
    assert planner.get_params(deep=False) == model.get_params(deep=False)
    home = next((home for home, kinds in alone._options.items() if any(kinds.values())), None)
    more = {}
    if home is not None:
        key, kind = next((key, kind) for key, kind in alone._options[home].items() if kind)
        more = {home: key, f"{home}__{min(kind().get_params())}": 0.25}
    for length in range(
        0, 120, 5
    ):  # among them are lines that just fit, and what does not fit in one
        own = {"rating_range": (0, 10**length), "random_state": "x" * (length // 3), **more}
        assert repr(planner.set_params(**own)) == repr(model.set_params(**own))


@pytest.mark.parametrize("cls", [*map(type, public_estimators())])
def test_a_call_that_lacks_something_says_what_to_pass(cls):
    """The estimator, and not the base that has its parameters, is named; so is a subclass."""
    own = type(cls)("Own", (cls,), {})
    for kind in (cls, own):
        words = rf"^{kind.__name__}\(\) got an unexpected .*'epsilon': pass .*n_jobs"
        with pytest.raises(TypeError, match=words):
            kind(epsilon=1.0)
        if "budget" in inspect.signature(cls).parameters:
            words = r"\(\) missing .* 'budget': pass PrivacyBudget\(1.0, 1e-5\)"
            with pytest.raises(TypeError, match=f"^{kind.__name__}{words}"):
                kind()
    assert list(inspect.signature(own).parameters) == list(inspect.signature(cls).parameters)
