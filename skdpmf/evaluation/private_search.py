"""PrivateSearchCV: choose hyper-parameters on private ratings, within one budget.

A trial is a fit, its exact score and its noisy score. Scores are points of users, bounded so that
one user moves their sum little; see `skdpmf.books.search.score_sensitivity`.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial, wraps
from itertools import islice
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, TransformerMixin, clone
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skdpmf.books.search import SearchPlan, SearchStatement
from skdpmf.data.labelled_rows import RatingMatrix, labels_of
from skdpmf.data.matrix import keep_entries
from skdpmf.data.validation import check_rating_range, check_ratings
from skdpmf.estimators.contract import parameters as check
from skdpmf.estimators.contract.answers import kind_of
from skdpmf.estimators.contract.base import BaseRecommender
from skdpmf.estimators.contract.model_file import check_savable
from skdpmf.estimators.contract.parameters import warn_of_budget
from skdpmf.estimators.contract.progress import SpentDisplay
from skdpmf.estimators.contract.public import PUBLIC_ASSUMPTION, Public, public_of
from skdpmf.mechanisms.private_search import RandomTrials, stream_integer
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import BoundedSum
from skdpmf.privacy.other_sums import release_score, user_scalars
from skdpmf.privacy.sampler import noise as sampler
from skdpmf.privacy.sampler.grid import exact_grid, truncate_to_grid
from skdpmf.privacy.sampler.noise import noise_source, recorded_key
from skdpmf.privacy.sampler.streams import derived_key, slot_priorities
from skdpmf.privacy.users import Rows, Users, per_user

# the search's, or all candidates'
_OWN = ("budget", "random_state", "rating_range", "feedback", "public")
_CHECKED = 256  # combinations of a grid whose plans are checked before anything else


def _of_best(method: Callable[..., Any]) -> Any:
    """Return a recommender's method that asks the best estimator, before `fit` the template."""

    def has(search: Any) -> bool:
        return hasattr(getattr(search, "best_estimator_", search.estimator), method.__name__)

    @available_if(has)
    @wraps(method)
    def ask(self: Any, *args: Any, **options: Any) -> Any:
        check_is_fitted(self, "best_estimator_")
        return getattr(self.best_estimator_, method.__name__)(*args, **options)

    return ask


@dataclass(repr=False, eq=False)
class PrivateSearchCV(check.OptionParameters, SpentDisplay, MetaEstimatorMixin, BaseEstimator):
    """Random search whose winner is private as a whole, at the price of little more than one fit.

    A stock search selects on exact scores of private ratings, and spends a budget for every fit.
    Here fit and score are one private mechanism, a *trial*:

    1. a candidate is drawn from `param_distributions`, uniformly and independently of the data;
    2. a clone of `estimator` is fitted on the training part of all rows, with its share of noise;
    3. it is scored on the held-out part with noise: user u with held-out ratings H_u has the points

           B / 2 - mean over i in H_u of min(|r_ui - prediction|, b)^2,   B = b^2,

       others have 0, b is half the width of the estimator's ``rating_range``, and the score is
       (sum of all users' points + noise) / number of rows.

    A secret random number of trials is run, the one with the highest noisy score is released
    (of equal ones the first; the trials being alike, that is as good as drawing lots), and all
    else is forgotten. The whole search then costs what `plan` says, and that is calibrated to the
    budget (proofs: `skdpmf.mechanisms.private_search` and `skdpmf.books.search`).

    Parameters
    ----------
    estimator : estimator object
        A private recommender of this package, or one with its parameters ``budget`` and
        ``rating_range`` and methods ``plan``, ``fit`` and ``predict_entries``. Its own budget and
        random_state are replaced, and all that its ``nonprivate_*`` parameters ask for is refused,
        in candidates too. Its public people are beside all candidates, and cost nothing. Pass
        nothing that was chosen by looking at these ratings.
    param_distributions : dict or list of dicts
        As for scikit-learn's ``RandomizedSearchCV``: lists, or distributions with ``rvs``. Drawn
        with replacement.
    budget : PrivacyBudget
        Budget of the whole search. With delta > 0 candidates must have Gaussian noise, with
        delta = 0 a pure guarantee. A ledger is charged once for all trials, before X is looked at;
        with delta > 0 its rule must be "zcdp" or "basic".
    n_trials : float, default=10
        Mean of the number of trials; the number itself is secret, and its law geometric. 1 is one
        trial, no search.
    score_share : float, default=0.1
        Share of a trial's budget for its score (of mu^2; of epsilon for delta = 0).
    test_size : float, default=0.1
        Probability that a rating is held out, in (0, 1): a function of its user's slot, its item
        and public randomness, the same in all trials.
    random_state : int or None, default=None
        None: all randomness from fresh 256-bit keys of the operating system. An int makes the
        search repeatable on the same data, and voids the guarantee against anyone who can guess
        it.
    n_jobs : int or None, default=None
        Trials run at a time, as in joblib. Does not change the result.

    Attributes
    ----------
    best_estimator_ : estimator object
        The released model, that of the best trial, which was fitted on the training part. Its
        ``privacy_spent_`` is the search's; it adds nothing to a ledger. Its
        budget is that of one trial, with the search's ledger: fitting it again is another fit.
    best_params_ : dict
        Its candidate.
    best_score_ : float
        The best trial's noisy score, released with it. Being the best of several it is too high on
        average. In squared rating units, from -B / 2 to B / 2 but for the noise; 0 if no user had a
        held-out rating.
    privacy_spent_ : SearchStatement
        Cost of the whole search.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Item names, if X had string column names.

    See Also
    --------
    sklearn.model_selection.RandomizedSearchCV : Not private, whatever its candidates spend.

    Notes
    -----
    There is no ``cv_results_``: losing candidates, their scores and how many there were must stay
    unknown, and are not kept. Warnings of candidates are silenced, and templates with callbacks are
    refused, because they would reveal the number. The running time depends on it too: it is
    not covered. An exception of a trial is the curator's.

    There is one split, not several folds: each would have to be paid for.

    References
    ----------
    N. Papernot, T. Steinke, "Hyperparameter tuning with Renyi differential privacy", ICLR 2022.

    A. Koskela, R. Redberg, Y.-X. Wang, "Privacy profiles for private selection", ICML 2024.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.evaluation import PrivateSearchCV
    >>> X = make_ratings(500, 40, random_state=0)
    >>> budget = PrivacyBudget(8.0, 1e-5)
    >>> grid = {"n_components": [2, 4], "alpha": [0.5, 1.0, 2.0]}
    >>> search = PrivateSearchCV(
    ...     AdaptiveWeightALS(budget, max_iter=3), grid, budget, n_trials=2, random_state=0
    ... )
    >>> print(search.plan(n_items=40, n_rows=500))
    Planned search
    ...
    >>> search.fit(X).recommend(X[:3], n=5)[0].shape
    (3, 5)
    >>> round(search.privacy_spent_.epsilon, 2), search.transform(X).shape[0]
    (8.0, 500)
    """

    estimator: Any
    param_distributions: Any
    budget: PrivacyBudget
    _: KW_ONLY
    n_trials: float = 10
    score_share: float = 0.1
    test_size: float = 0.1
    random_state: int | None = None
    n_jobs: int | None = None

    def plan(self, n_items: int, n_rows: int | None = None) -> SearchPlan:
        """Tell what `fit` would release, and its price against a single trial.

        The plans of the template and of all candidates of a small grid are checked.

        Parameters
        ----------
        n_items : int
            Size of the catalogue, the columns of X.
        n_rows : int, default=None
            Number of rows of X, where the estimator's plan depends on it.

        Returns
        -------
        SearchPlan
            ``print`` it. No data is touched and no budget is spent.

        Raises
        ------
        ValueError
            If a parameter is invalid, or the budget cannot be met.
        """
        self._check_params()
        holds = check.is_count(n_items)
        check.require(holds, "n_items", n_items, "an integer >= 1", "pass X.shape[1]")
        trials, share = RandomTrials(self.n_trials), self.score_share
        plan = SearchPlan.make(self.budget, trials, self._half_bound(), share)
        spaces = _spaces(self.param_distributions)
        is_grid = not any(hasattr(values, "rvs") for one in spaces for values in one.values())
        known = [{}, *islice(ParameterGrid(spaces), _CHECKED if is_grid else 0)]
        conditions = {self._check_candidate(plan, params, (n_rows, n_items)) for params in known}
        return replace(plan, condition="; ".join(sorted(conditions - {""})))

    def fit(self, X: Any, y: Any = None) -> "PrivateSearchCV":
        """Search, and release the best model.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Ratings.
        y : None or array-like of shape (n_users,)
            Only its kind is used: fitted with column indices, `predict` gives each user's best
            unseen item. Its content goes nowhere.

        Returns
        -------
        PrivateSearchCV
            The fitted search.

        Raises
        ------
        ValueError
            If a parameter is invalid (checked before X is looked at), X is no matrix of real
            numbers, or a candidate's plan does not keep to its share.
        BudgetExceededError
            If the budget's ledger has too little left. X was not looked at.
        """
        self._check_params()
        bounds = self.estimator.rating_range
        R = check_ratings(self, X, reset=True, rating_range=bounds, warns=True)[0]
        kind_of(y, R.shape, self._catalogue_)
        check_savable(self._catalogue_)
        warn_of_budget(self.budget, R.shape[0])
        plan, ledger = self.plan(R.shape[1], R.shape[0]), self.budget.ledger
        public = public_of(self._candidate({}, plan.fit_budget, None), X, R.shape[1])
        template, seeded = self.estimator.get_params(deep=False), self.random_state is not None
        record = {
            "estimator": f"{type(self).__name__}({type(self.estimator).__name__})",
            "params": self.get_params(deep=False)
            | {f"estimator__{name}": value for name, value in template.items()},
            "shape": R.shape,
            "seeded": seeded,
        }
        reserved = nullcontext() if ledger is None else ledger.reserve(plan, **record)
        with reserved, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kinds: Any = np.asarray(y)
            kinds = np.zeros_like(kinds) if kinds.ndim == 1 else None  # y without its content
            if public is not None and public.others is not None:
                R = keep_entries(R, np.repeat(public.others, np.diff(R.indptr)))
            best, params, score = self._search(plan, R, kinds, public, labels_of(X)[0])
            spent = plan.check_fit(best.plan(R.shape[1], R.shape[0]))
        statement = SearchStatement.of_search(plan, spent, seeded=seeded)
        if public is not None:
            said = PUBLIC_ASSUMPTION.format(public.n_people)
            statement = replace(statement, assumptions=(*statement.assumptions, said))
        self._statement = statement.with_undeclared(getattr(X, "undeclared", ()))
        self.best_params_, self.best_score_ = params, score
        self.best_estimator_ = self._released(best)
        return self

    fit_transform = TransformerMixin.fit_transform
    predict = _of_best(BaseRecommender.predict)
    transform = _of_best(BaseRecommender.transform)
    decision_function = _of_best(BaseRecommender.decision_function)
    predict_entries = _of_best(BaseRecommender.predict_entries)
    recommend = _of_best(BaseRecommender.recommend)
    similar_items = _of_best(BaseRecommender.similar_items)
    similar_users = _of_best(BaseRecommender.similar_users)
    score = _of_best(BaseRecommender.score)
    save = _of_best(BaseRecommender.save)

    def _search(
        self, plan: SearchPlan, R: Any, y: Any, public: Public | None, users: Any
    ) -> tuple[Any, dict[str, Any], float]:
        """Run a secret number of trials; model, candidate and score of the best one leave."""
        train, test = self._split(R)
        key = self._key(R, public, "trials", plan)
        candidates = [self._draw(key, t) for t in range(plan.trials.draw(key))]
        for params in candidates:
            self._check_candidate(plan, params, R.shape)
        known, half = self._catalogue_, self._half_bound()
        # features are aligned by the names of the items, public people by the ids of the rows
        named = train if known is None else RatingMatrix(train, users, known.items, known.titles)
        noise = noise_source(self._key(R, public, "scores", candidates, plan))
        run, given = delayed(_run_trial), (named, test, y, half, plan)
        seeds = partial(self._seed, key)
        fits = (self._candidate(p, plan.fit_budget, seeds(t)) for t, p in enumerate(candidates))
        trials = Parallel(n_jobs=self.n_jobs, return_as="generator")(run(f, *given) for f in fits)
        best: tuple[Any, dict[str, Any], float] = (None, {}, -np.inf)
        relation = (plan.budget.unit, plan.budget.neighbors)
        for t, (model, points) in enumerate(trials):
            score = release_score(noise, plan.score, points, t, relation) / R.shape[0]
            if t == 0 or score > best[2]:
                best = model, candidates[t], score
        return best

    def _split(self, R: Any) -> tuple[Any, Any]:
        """Training and held-out ratings: a function of slot, item and public randomness."""
        seed, fresh = self.random_state, sampler.fresh_key
        key = recorded_key(fresh if seed is None else lambda: derived_key(seed, "split"))
        priorities = slot_priorities(key, "held out", R.indptr, R.indices)
        held_out = priorities < np.uint64(self.test_size * 2.0**64)
        return keep_entries(R, ~held_out), keep_entries(R, held_out)

    def _key(self, R: Any, public: Public | None, *words: Any) -> bytes:
        """Return a fresh key, or that of the seed, the words, the ratings and public people."""
        if self.random_state is None:
            return recorded_key(sampler.fresh_key)
        params = self.estimator.get_params(deep=False)
        params |= dict.fromkeys(params.keys() & {"public"})  # who they are is in the data
        template = type(self.estimator).__name__, params
        text = f"private search {template!r} {list(words)!r}"
        seed, data = int(self.random_state), (R.indptr, R.indices, R.data)
        data += () if public is None else public.arrays
        return recorded_key(lambda: derived_key(seed, text, *data))

    def _seed(self, key: bytes, index: int) -> int | None:
        """Return the random_state of a candidate: trials must not share noise."""
        return None if self.random_state is None else stream_integer(key, "seeds", index)

    def _draw(self, key: bytes, index: int) -> dict[str, Any]:
        """Draw a candidate, independently of the data and of the others."""
        seed = stream_integer(key, "candidates", index) % 2**32
        return next(iter(ParameterSampler(self.param_distributions, 1, random_state=seed)))

    def _candidate(self, params: dict[str, Any], budget: PrivacyBudget, seed: int | None) -> Any:
        candidate = clone(self.estimator).set_params(**params, budget=budget)
        if "random_state" in candidate.get_params():
            candidate.set_params(random_state=seed)
        return candidate

    def _check_candidate(self, plan: SearchPlan, params: Any, shape: tuple[Any, int]) -> str:
        """Check a candidate's plan, and return the condition of its guarantee."""
        candidate = self._candidate(params, plan.fit_budget, None)
        return plan.check_fit(candidate.plan(shape[1], shape[0])).condition

    def _released(self, best: Any) -> Any:
        """Return the best estimator without a trace of its trial, with the search's statement."""
        if "random_state" in best.get_params():
            best.set_params(random_state=self.estimator.get_params()["random_state"])
        best._catalogue_ = self._catalogue_
        if hasattr(self, "feature_names_in_"):
            best.feature_names_in_ = self.feature_names_in_
        if self.budget.ledger is not None:  # a later fit of it on these ratings must count
            best.set_params(budget=replace(best.budget, ledger=self.budget.ledger))
        name = "_statement" if isinstance(best, SpentDisplay) else "privacy_spent_"
        setattr(best, name, self.privacy_spent_)
        return best

    def _half_bound(self) -> float:
        """Return B / 2."""
        return float(np.ptp(self.estimator.rating_range)) ** 2 / 8.0

    def _check_params(self) -> None:
        """Check the parameters, before any data is touched or budget spent."""
        check.require_budget(self.budget)
        _check_template(self.estimator)
        _check_space(self.param_distributions, self.estimator.get_params())
        RandomTrials(self.n_trials)
        check.require_random_state(self.random_state)
        share = check.is_finite(self.test_size) and 0.0 < self.test_size < 1.0
        check.require(share, "test_size", self.test_size, "a share in (0, 1)", "use 0.1")
        check_rating_range(self.estimator.rating_range)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags, tags.transformer_tags = inner.input_tags, inner.transformer_tags
        return tags


def _run_trial(
    model: Any, train: Any, test: Any, y: Any, half: float, plan: SearchPlan
) -> tuple[Any, BoundedSum]:
    """Fit a candidate and return it with the sum of its users' points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train, y)
        predicted = model.predict_entries(train, test)
    slots, budget = max(test.shape[0], 1), plan.budget
    relation = {"unit": budget.unit, "neighbors": budget.neighbors}
    users = Users(test, n_slots=slots, private=budget.is_private, n_jobs=None, **relation)
    predicted = sparse.csr_array(predicted)
    if not predicted.has_sorted_indices:
        predicted = predicted.sorted_indices()
    if predicted.shape != test.shape or predicted.nnz != test.nnz:
        raise ValueError(
            "predict_entries of the estimator must give one prediction for each stored position of "
            "`where`: a private search cannot score it."
        )
    grid = exact_grid(slots, half, degree=1)
    points = users.map(user_points, per_user(users, predicted.data, False), half, grid)
    return model, user_scalars(users, points, clip=half, grid=grid, norm=plan.score.norm)


def user_points(rows: Rows, predicted: Any, half: float, grid: float) -> np.ndarray:
    """Return each user's points, B / 2 - mean of min(error^2, B) with B = 2 half.

    ``rows`` has the held-out ratings, canonical; ``predicted`` (n_ratings,) their predictions. The
    points, of shape (n_users,), are in [-half, half], on a grid on which their sum is exact; 0
    without held-out ratings. They are a function of the user's entries alone, to the bit. NaN
    counts as the largest error.
    """
    largest, counts = np.sqrt(2.0 * half), rows.n_ratings
    errors = np.clip(predicted - rows.data, -largest, largest)
    losses = np.square(np.where(np.isnan(errors), largest, errors))
    sums = np.bincount(rows.user, weights=losses, minlength=counts.size)  # in the order of entries
    points = np.where(counts > 0, half - sums / np.maximum(counts, 1), 0.0)
    return truncate_to_grid(np.clip(points, -half, half), grid)


def _check_template(estimator: Any) -> None:
    """Raise unless a search may fit clones of the estimator."""
    known = estimator.get_params() if hasattr(estimator, "get_params") else {}
    methods = ("plan", "fit", "predict_entries")
    holds = {"budget", "rating_range"} <= known.keys()
    holds = holds and all(hasattr(estimator, name) for name in methods)
    rule = f"a private recommender: with budget, rating_range and the methods {methods}"
    remedy = "pass for example AdaptiveWeightALS(budget)"
    check.require(holds, "estimator", estimator, rule, remedy)
    holds = known.get("feedback", "explicit") == "explicit"
    rule = "a recommender of ratings, as errors of ratings are compared"
    check.require(holds, "estimator", estimator, rule, "use feedback='explicit'")
    rule = "False, as the winner of a private search is private as a whole"
    for name in filter(_is_exact, known):
        remedy = "fit that estimator by itself for it"
        check.require(not known[name], f"estimator's {name}", known[name], rule, remedy)
    rule = "without callbacks, which would learn the number of trials, and this must stay secret"
    holds = not getattr(estimator, "_skl_callbacks", None)
    check.require(holds, "estimator", estimator, rule, "set none")


def _is_exact(name: str) -> bool:
    """Whether a parameter asks for something outside of the guarantee."""
    return name.split("__")[-1].startswith("nonprivate_")


def _spaces(space: Any) -> list[Mapping[str, Any]]:
    return [space] if isinstance(space, Mapping) else list(space)


def _check_space(space: Any, known: dict[str, Any]) -> None:
    """Check that candidates have parameters of the estimator, and none that the search sets."""
    try:
        names = [name for one in _spaces(space) for name in one]
        next(iter(ParameterSampler(space, 1, random_state=0)))
    except (TypeError, ValueError, AttributeError, StopIteration) as error:
        raise ValueError(
            f"param_distributions={space!r} must be a dict, or a list of dicts, from parameters "
            f'to lists or distributions ({error}): pass for example {{"n_components": [8, 16]}}.'
        ) from error
    for name in names:
        rule = ""
        if name.split("__")[0] in _OWN:
            rule = "left out: the search sets it, or scores would not be on one scale only"
        elif _is_exact(name):
            rule = "left out: it asks for exact statistics, and the winner is private as a whole"
        elif name not in known:
            rule = f"a parameter of the estimator: choose among {sorted(known)}"
        if rule:
            raise ValueError(f"param_distributions names {name!r}, which must be {rule}.")
