"""LocalDPGDDR: recommendations from what users' devices report, without a trusted server."""

from typing import Any

import numpy as np
from scipy import sparse

from skdpmf.data.validation import as_they_are, in_rating_units, middle_and_quarter
from skdpmf.estimators.contract import filled
from skdpmf.estimators.contract.base import ItemModel
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.estimators.planners.local_dpgddr import LocalDPGDDRPlanner
from skdpmf.mechanisms.device_reports import gradient
from skdpmf.mechanisms.device_reports import item_means as items
from skdpmf.mechanisms.device_reports.protocol import Protocol, Settings, protocol_name, simulate
from skdpmf.mechanisms.device_reports.randomizers import DeviceStreams, shuffle_note
from skdpmf.mechanisms.gram.covariance import RIDGE
from skdpmf.mechanisms.item_means.baseline import averages_of_rows
from skdpmf.privacy.sampler.noise import fresh_key, recorded_key
from skdpmf.privacy.sampler.streams import derived_key

_START = {True: 0.1, False: 0.3}  # deviation of the factors' start, by `center`


@filled
class LocalDPGDDR(LocalDPGDDRPlanner, PrivateRecommender):
    """Local differential privacy: every user's device randomises what it sends.

    `fit` simulates the whole protocol over the rows of X, each of which stands for one device. The
    budget is the user's, over all that the device ever sends: any two rows are distinguished by no
    more than epsilon, by anybody, and no server is trusted. To run it with real devices, see
    `skdpmf.local`; for the same random bits both give the same model.

    - ``method="items"``: every device sends one report in all, of length-bounded sums about the
      items it knows and how its ratings deviate from its own mean; later rounds, of other
      devices, measure what is left. Ratings are modelled as r_ij ~ m_j + o_i. What does not
      rise above the noise is left out: then a user's own mean o_i predicts.
      The first report counts choices as well: lists are by popularity, and by predicted rating.
      The fewer devices there are for so many items, the more of the report is counts.
    - ``method="gradient"``: every device reports in each of `max_iter` rounds, with epsilon /
      max_iter, on the gradient of sum_j (r_ij - u_i . v_j)^2 for all v_j, and follows its own u_i
      at home. With ``randomizer="coordinate"`` the published algorithms: Algorithm 1, or
      Algorithm 2 with `projection_dim`.

    The latter is a baseline: with the number of users that there are, its noise hides nearly
    everything.

    Parameters
    ----------
    budget : PrivacyBudget
        Budget of a user over all reports: pure epsilon, at most 16 a report (one of PrivUnitG takes
        time in proportion to its exponential: milliseconds at 8). Its unit is "user"; the guarantee
        is for neighbors="replace", any two rows, whatever the budget says. Nothing of its delta is
        spent; if it is > 0 the statement also says what a trusted shuffler would give.
        ``PrivacyBudget.nonprivate()`` randomises nothing.
    {rating_range}
    {item_features}
        A device gives its user tastes for them, from its own ratings; reports do not change.
    random_state : int or None, default=None
        None: every device draws from a fresh 256-bit key of the operating system. An int makes a
        fit on the same data with the same parameters repeatable, and voids the guarantee against
        anyone who can guess it.
    {n_jobs}
    {public}
        For method "items" alone. A server that knows them combines them with the first reports;
        later devices start from both, as with `skdpmf.local.LocalAggregator`.
    method : {"items", "gradient"} or `GradientReports`, default="items"
        See above. A string stands for the options' defaults.
    randomizer : {"privunit", "coordinate"}, default="privunit"
        "privunit": PrivUnitG, a whole vector in one report; the error of each value does not
        depend on how many there are. "coordinate": the sign of one of them, drawn beforehand;
        the error grows with their number.
    n_components : int, default=8
        Rank of the factors that gradients learn; "items" has none.
    max_iter : int or None, default=None
        Rounds. For "items" devices are divided among them; None: 3 where they are many for epsilon
        and the items, else 1.
        For the others every device reports in each of them; None: 5.
    user_damping : float, default=10.0
        Fictitious ratings in a user's own mean, in [1e-6, 1e6]; in predictions at most 1.

    Attributes
    ----------
    {components_}
        Zero for "items".
    {n_components_}
    {item_means_}
    privacy_spent_ : PrivacyStatement
        Reports of every device, their cost and their assumptions.
    n_iter_ : int
        Rounds.
    {n_features_in_, feature_names_in_}

    See Also
    --------
    skdpmf.local : The devices and the server, one by one.
    AdaptiveWeightALS : Far more accurate where a trusted server holds the ratings.

    Notes
    -----
    X has a public catalogue of columns. Users without ratings report too. `plan` says what a
    device sends without touching data.

    The published accuracy is that of a constant prediction: at the published settings the noise
    of a mean gradient is hundreds of times its range.

    References
    ----------
    H. Shin, S. Kim, J. Shin, X. Xiao, "Privacy enhanced matrix factorization for recommendation
    with local differential privacy", IEEE TKDE 30 (2018).

    H. Asi, V. Feldman, K. Talwar, "Optimal algorithms for mean estimation under local differential
    privacy", ICML 2022.

    Examples
    --------
    >>> from skdpmf import LocalDPGDDR, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(2000, 30, random_state=0)
    >>> model = LocalDPGDDR(PrivacyBudget(4.0), random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:3], n=5)
    >>> items.shape
    (3, 5)
    >>> spent = model.privacy_spent_
    >>> spent.epsilon, spent.delta, spent.neighbors, spent.local
    (4.0, 0.0, 'replace', True)
    """

    _reports = "key"

    def _preparation(self) -> tuple[Any, ...]:
        is_raw = self._gradients is not None and not self._gradients.center
        return (as_they_are,) if is_raw else super()._preparation()

    def _settings_of(self, n_items: int) -> str:
        return self._text("devices")

    def _release_rows(
        self, R: Any, secret: Any, settings: Any, levels: Any, people: Any = None
    ) -> Any:
        if self._gradients is not None:
            return self._run_gradient(R, secret)
        shown = None
        if people is not None:
            shown = averages_of_rows(people, float(self.user_damping), self.n_jobs)
        return self._run_items(R, secret, shown)

    def _publish(self, released: Any) -> None:
        model, _, self.n_iter_ = released
        self.item_means_, self.components_, self._item_model_, popularity = model
        if popularity is not None:
            self._set_ranking(None, np.log(popularity))

    def _terms(self, released: Any) -> dict[str, Any]:
        delta = float(self.budget.delta)
        if not self.budget.is_private or delta == 0.0:
            return {}
        each, count = float(self.budget.epsilon), 1
        if self._gradients is not None:
            each, count = gradient.report_epsilon(each, self._gradient_settings()), self.n_iter_
        return {"notes": (shuffle_note(each, released[1], delta, count),)}

    def _run_items(self, R: Any, secret: bytes, shown: Any) -> tuple[Any, int, int]:
        """Return the model of method "items", reports of the smallest round, and rounds."""
        n_devices, n_items = R.shape
        damping, none = float(self.user_damping), np.zeros((n_items, 0))
        if self._is_by_vectors:
            fractions = self._fractions(n_items, n_devices)
            terms = protocol_name(secret), float(self.budget.epsilon), n_items, self.rating_range
            run = Protocol(Settings(*terms, damping, fractions, n_devices), shown)
            of: Any = {"n_parts": self._n_rounds() // len(fractions), "n_jobs": self.n_jobs}
            released = simulate(run, R, secret, steps=self._rounds(), **of)
            smallest = min((n for n in run.n_reports if n), default=1)
            found = released.item_means, none, released.user_damping, 0.0, released.popularity
            return self._released(*found), smallest, len(fractions)
        for _ in self._rounds():
            if self.budget.is_private:
                streams = DeviceStreams(secret)
                model = items.sampled_model(R, damping, float(self.budget.epsilon), streams, shown)
            else:
                model = items.exact_model(R, damping)
        means = in_rating_units(model.item_means, self.rating_range)
        return self._released(means, none, model.user_damping, 0.0, model.popularity), n_devices, 1

    def _run_gradient(self, R: Any, secret: bytes) -> tuple[Any, int, int]:
        """Return the model of the other methods, the reports of a round, and how many rounds."""
        (n_devices, n_items), settings = R.shape, self._gradient_settings()
        centers = self._chosen("method").center
        public = self._public_key()
        sizes = n_devices, n_items, settings.n_components
        start = gradient.initial_factors(public, *sizes, _START[bool(centers)])
        middle, unit = middle_and_quarter(self.rating_range)
        if centers:
            centred = items.deviations(R, np.zeros(n_items), float(self.user_damping))
            R = sparse.csr_array((centred, R.indices, R.indptr), shape=R.shape)
        else:
            start = np.abs(start[0]), np.abs(start[1])
        projection = None
        if settings.projection_dim is not None:
            way_back, size = settings.back_projection, (settings.projection_dim, n_items)
            projection = gradient.Projection(public, *size, way_back, self.n_jobs)
        epsilon, streams = float(self.budget.epsilon), DeviceStreams(secret)
        how: Any = {"initial": start, "projection": projection, "n_jobs": self.n_jobs}
        model = gradient.fit(R, settings, epsilon, streams, rounds=self._rounds(), **how)
        if centers:
            means = np.full(n_items, middle)
            damping = float(self.user_damping)
            released = self._released(means, unit * model.factors, damping, unit**2 * RIDGE, None)
            return released, int(n_devices), self._n_reports()
        means = np.zeros(n_items)
        tiny = np.finfo(np.float64).eps * np.eye(settings.n_components)
        items_ = ItemModel(means, model.factors, tiny, model.rating_ridge)
        return (means, model.factors.T, items_, None), int(n_devices), self._n_reports()

    def _released(
        self, means: np.ndarray, factors: np.ndarray, damping: float, ridge: float, popularity: Any
    ) -> tuple[Any, ...]:
        """Return means, components and the model r ~ m_j + o_i + z_i . v_j, in rating units."""
        n_items, k = len(means), int(self.n_components)
        means, components = np.array(means), np.zeros((k, n_items))
        components[: factors.shape[1]] = factors.T
        columns = np.column_stack((np.ones(n_items), components.T))
        # any penalty will do where all factors are zero
        penalty = np.diag([damping, *[ridge or 1.0] * k])
        return means, components, ItemModel(means, columns, penalty), popularity

    def _text(self, name: str) -> str:
        """Return all that a seeded key depends on beside seed and data."""
        apart = ("n_jobs", "item_features", "public")  # no report depends on them
        params = {k: v for k, v in self.get_params(deep=False).items() if k not in apart}
        params["budget"] = self.budget.without_ledger()
        return f"{type(self).__name__} {name} {params!r}"

    def _public_key(self) -> bytes:
        """Return the key of what everybody knows: starting values and projections."""
        seed = self.random_state
        if seed is None:
            return recorded_key(fresh_key)
        return recorded_key(lambda: derived_key(int(seed), self._text("public")))
