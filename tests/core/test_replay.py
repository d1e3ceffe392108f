"""Every release of every mechanism, on neighbouring data: within its plan and its sensitivity.

Contributions of rows add up exactly, bit by bit, so that all that one row does to a release is seen
where it is alone in the data.
"""

from functools import cache, partial
from itertools import combinations, product

import numpy as np
import pytest
from scipy import sparse

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.als import pooled as pooled_als
from skdpmf.mechanisms.gram import item_item as noisy_gram
from skdpmf.privacy import users
from skdpmf.privacy.accounting import gaussian_mu
from skdpmf.privacy.recording import ReleaseRecord
from skdpmf.privacy.sampler import noise, streams
from tests.core.audit import (
    HIGH,
    LOW,
    N_ITEMS,
    ROUNDING,
    SLOT,
    UNRATED,
    adversaries,
    alone,
    check_distances,
    check_noise_law,
    check_plan,
    fitted_state,
    with_row,
)
from tests.core.cases import CASES, NEIGHBORS

pytestmark = pytest.mark.every_case  # a bug of one mechanism shows in no other
every_case = pytest.mark.parametrize("name", CASES)


@every_case
@pytest.mark.parametrize("neighbors", NEIGHBORS)
def test_releases_are_planned_and_have_their_noise(name, neighbors):
    case = CASES[name]._replace(neighbors=neighbors)
    model, records = case.fit()
    check_plan(case.plan(), model.privacy_spent_, records)
    check_noise_law(records)
    assert model.privacy_spent_.seeded
    if hasattr(model, "n_iter_"):
        assert model.n_iter_ == model.max_iter


def test_cases_are_what_they_are_named():
    """Fits with factors or lists have some, those without none: noise chooses the rank."""
    for name, case in CASES.items():
        for neighbors in NEIGHBORS:
            model, records = case._replace(neighbors=neighbors).fit()
            shapes = {record.name: record.statistic.shape for record in records}
            for slot, nothing in ((noisy_gram.GRAM, N_ITEMS), (pooled_als.LISTS, N_ITEMS + 1)):
                if slot in shapes:
                    fell_back = name in ("als pooled, rank 0", "lists of clicks, none")
                    assert (shapes[slot] == (nothing,)) == fell_back, (name, neighbors)
            assert (pooled_als.LISTS in shapes) == ("als pooled" in name and "without" not in name)
            assert (noisy_gram.GRAM in shapes) == name.startswith("lists")
            slots = {r.statistic.shape for r in records if r.name == pooled_als.GRADIENTS}
            assert (len(slots) > 1) == name.endswith("later"), (name, neighbors)
            if name.startswith("clicks") and "public" in name:
                continue  # public people say which factors stay
            if hasattr(model, "components_") and name.startswith(("als", "clicks", "sampler")):
                assert np.any(model.components_) == ("rank 0" not in name), (name, neighbors)
            if name.startswith("covariance"):
                n_head = model.covariance_items_.size
                assert (n_head == 0) == name.endswith("none"), (name, neighbors)
                assert n_head < N_ITEMS or "auto" not in name, (name, neighbors)


@every_case
@pytest.mark.parametrize("neighbors", NEIGHBORS)
def test_no_neighbour_is_farther_than_its_sensitivity(name, neighbors):
    audit(CASES[name]._replace(neighbors=neighbors))


def audit(case):
    """Raise AssertionError where one unit of privacy moves a release too far, or anything else."""
    model, records = case.fit()
    state = fitted_state(model)

    @cache
    def own(row):
        fitted, made = case.replayed(alone(np.frombuffer(row)), records)
        assert fitted_state(fitted) == state, "the model follows from more than the releases"
        return made

    rows = adversaries(model)
    nobody = own(rows["nothing"].tobytes())
    for record in nobody:
        assert not record.statistic.any(), f"an empty row contributes to {record}"
    absent = case.replayed(with_row(case.ratings, None), records)[1]
    for name in ("spammer", "one of two tied items", "one unrated item"):
        present = case.replayed(with_row(case.ratings, rows[name]), records)[1]
        for a, b, c in zip(present, absent, own(rows[name].tobytes()), strict=True):
            np.testing.assert_array_equal(
                a.statistic - b.statistic, c.statistic, err_msg=f"others move with {name}: {a}"
            )
    edits = {name: (rows["nothing"], row) for name, row in rows.items()}
    if case.unit == "rating":
        edits = rating_edits(model)
    changes = {}
    for name, (before, after) in edits.items():
        one, two = own(after.tobytes()), own(before.tobytes())
        check_distances(one, two, name, share_of(case))
        changes[name] = [a.statistic - b.statistic for a, b in zip(one, two, strict=True)]
    if case.neighbors == "replace":
        for one, two in combinations(changes, 2):
            for record, a, b in zip(records, changes[one], changes[two], strict=True):
                found = size_of(record, a - b)
                most = share_of(case) * record.sensitivity
                assert found <= most * ROUNDING, f"{one} for {two}: distance {found}: {record}"
    check_trimming(case, own(rows["spammer"].tobytes()))


def rating_edits(model):
    """Users with none, one, two, many and all ratings get one more, of popular and rare items."""
    rng, everything = np.random.default_rng(2), np.arange(N_ITEMS)
    befores = {
        "nothing": np.full(N_ITEMS, np.nan),
        "one rating": np.where(everything == 1, HIGH, np.nan),
        "two ratings": np.where(everything == 1, HIGH, np.where(everything == 2, LOW, np.nan)),
        "many": np.where(rng.random(N_ITEMS) < 0.6, rng.uniform(LOW, HIGH, N_ITEMS), np.nan),
        "all high": np.full(N_ITEMS, HIGH),
        "all low": np.full(N_ITEMS, LOW),
        "far": adversaries(model).get("far from the means", np.full(N_ITEMS, LOW)),
    }
    edits = {}
    for (name, before), item, value in product(befores.items(), (0, UNRATED), (LOW, HIGH, 1e6)):
        without, after = before.copy(), before.copy()
        without[item], after[item] = np.nan, value
        edits[f"{name}, item {item} at {value:g}"] = without, after
    return edits


def size_of(record, change):
    """Size of a change of a release's statistic, in its norm."""
    parts = vars(record) | {"statistic": change}
    return ReleaseRecord(**parts).distance(ReleaseRecord(**(parts | {"statistic": 0.0 * change})))


def share_of(case):
    """Share of the sensitivities that the audited user has, by the own level."""
    if case.levels is None:
        return 1.0
    own, plan = case.levels[SLOT], case.plan()
    slack = plan.slack | {"largest": 1.0}
    if own == 0.0:
        return 0.0
    return gaussian_mu(own, 1e-5, **slack) / gaussian_mu(case.epsilon, 1e-5, **slack)


def check_trimming(case, records):
    """One user's contributions hold no more items than the cap."""
    cap = case.params.get("max_ratings_per_user", N_ITEMS)
    for record in records:
        if len(record.statistic) == N_ITEMS and cap < N_ITEMS and "weighting" not in case.params:
            held = np.count_nonzero(record.statistic.reshape(N_ITEMS, -1).any(axis=1))
            assert held <= cap, f"{held} items of a user, of at most {cap}: {record}"


# -- what else a release must not depend on --------------------------------------------------------

OF_RATINGS = [name for name in CASES if name.startswith(("als", "means", "cov", "sampler"))]


@pytest.mark.parametrize("name", OF_RATINGS)
def test_ratings_are_bounded_and_merged(name):
    """Those outside of the range count as its ends, repeated ones as their mean."""
    case = CASES[name]
    X, (_, records) = case.ratings, case.fit()
    signs = np.where(np.arange(N_ITEMS) % 3, 1.0, -1.0)
    rows, columns = np.nonzero(~np.isnan(with_row(X, None)))
    own = np.tile(np.arange(N_ITEMS), 3)
    values = np.concatenate((X[rows, columns], np.repeat([1.0, 3.0, 5.0], N_ITEMS)))
    places = np.append(rows, np.full(own.size, SLOT)), np.append(columns, own)
    repeated = sparse.coo_array((values, places), shape=X.shape)
    for one, two in (
        (with_row(X, 1e6 * signs), with_row(X, np.where(signs > 0, HIGH, LOW))),
        (repeated, with_row(X, 3.0)),
    ):
        pairs = zip(case.replayed(one, records)[1], case.replayed(two, records)[1], strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a.statistic, b.statistic, err_msg=str(a))


@every_case
def test_models_follow_from_the_releases_alone(name):
    case = CASES[name]
    model, records = case.fit()
    X = np.where(np.isnan(case.ratings), 1.0, np.nan)
    assert fitted_state(case.replayed(X, records)[0]) == fitted_state(model)
    assert fitted_state(case._replace(epsilon=case.epsilon * 1.01).fit()[0]) != fitted_state(model)


# -- what the replay sees --------------------------------------------------------------------------


def test_a_subset_by_one_random_stream_is_seen(monkeypatch):
    """Each user's subset moves when another user has more ratings."""

    def priorities(key, purpose, indptr, indices, **_):
        return np.random.default_rng(0).permutation(len(indices)).astype(np.uint64)

    monkeypatch.setattr(streams, "slot_priorities", priorities)
    with pytest.raises(PrivacyParameterError, match="other values among all rows"):
        CASES["als dpals, trimmed"].fit()
    monkeypatch.setattr(users, "refuse_unless_alike", lambda *_: None)
    with pytest.raises(AssertionError, match=r"others move|distance"):
        audit(CASES["als dpals, trimmed"])


def little_noise(real, flat, *args):
    real(flat, *args)
    start, stop, out = args[-3:]
    out[start:stop] = flat[start:stop] + (out[start:stop] - flat[start:stop]) / 2**0.5


def noise_where_rated(real, flat, *args):
    real(flat, *args)
    args[-1][flat == 0.0] = 0.0


def one_noise_of_an_index(real, key, purpose, name, index):
    return real(key, purpose, "", index)


def one_noise_of_a_name(real, key, purpose, name, index):
    return real(key, purpose, name, 0)


def other_triangles(real, *args, on=1.0, off=1.0, **terms):
    grid = real(*args, **terms)
    if terms["layout"] == "full":
        return grid
    return grid._replace(units=(on * grid.units[0], off * grid.units[1]))


@pytest.mark.parametrize(
    ("case", "replaced", "other", "message"),
    [
        ("als dpals", "add_grid_noise", little_noise, "variance"),
        ("als dpals", "add_grid_noise", noise_where_rated, "without noise"),
        ("als dpals", "stream_key", one_noise_of_an_index, "correlation"),
        ("als dpals", "stream_key", one_noise_of_a_name, "correlation"),
        ("covariance of users", "release_grid", partial(other_triangles, off=0.5**0.5), "variance"),
        ("covariance of users", "release_grid", partial(other_triangles, on=0.25), "variance"),
    ],
)
def test_noise_of_another_law_is_seen(monkeypatch, case, replaced, other, message):
    """In the sampler, where no plan and no curator sees it."""
    monkeypatch.setattr(noise, replaced, partial(other, getattr(noise, replaced)))
    with pytest.raises(AssertionError, match=message):
        check_noise_law(CASES[case].fit()[1])


LEFT = {
    "number of ratings": lambda R: R.nnz,
    "ratings of items": lambda R: np.bincount(R.indices, minlength=R.shape[1]),
    "ratings": lambda R: R,
}


@pytest.mark.parametrize("what", LEFT)
@pytest.mark.parametrize("name", ["als pooled", "sampler", "covariance of users"])
def test_what_a_fit_leaves_of_the_ratings_is_seen(monkeypatch, name, what):
    case = CASES[name]
    real = case.estimator._fit

    def fit(self, R, y, fit=None, **metadata):
        self.left_ = LEFT[what](R)
        return real(self, R, y, fit, **metadata)

    monkeypatch.setattr(case.estimator, "_fit", fit)
    with pytest.raises(AssertionError, match="follows from more than the releases"):
        audit(case)
