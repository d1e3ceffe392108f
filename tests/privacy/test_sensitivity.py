"""Every sensitivity is searched for by adversarial users: attained, and never exceeded."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import sensitivity as sens

N_ITEMS, K = 4, 2
BETA, G, Y = 1.7, 0.6, 1.3


def project(vector, radius):
    """The vector, or the nearest one within the radius."""
    norm = np.linalg.norm(vector)
    return vector * min(1.0, radius / norm) if norm > 0 else vector


# A user from free numbers: weights >= 0 with sum w^2 <= beta, values |y| <= Y, |u| <= G. Values and
# norms are sines, so that the bounds are reached inside, where an optimiser finds them.
def decode(free, beta=BETA):
    weights, values, vector = np.split(free, [N_ITEMS, 2 * N_ITEMS])
    direction = vector[:K] / max(np.linalg.norm(vector[:K]), 1e-12)
    return (
        project(np.abs(weights), math.sqrt(beta)),
        Y * np.sin(values),
        (G * np.sin(vector[K]) * direction),
    )


def counts(free):
    return decode(free)[0]


def sums(free):
    w, y, _ = decode(free)
    return w * y


def gram(free):
    w, _, u = decode(free)
    return np.multiply.outer(w, np.outer(u, u)).ravel()


def rhs(free):
    w, y, u = decode(free)
    return np.multiply.outer(w * y, u).ravel()


def item_means(s, kappa, beta):
    def contribution(free):
        w, y, _ = decode(free, beta)
        p = w * y / Y * min(kappa, 50.0)
        return np.concatenate([s * w, project(p, 1.0)])

    return contribution


N_FREE = 2 * N_ITEMS + K + 1


def search(contribution, neighbors, goal):
    """Largest norm, or distance of two users: random users, local search, hops until the goal."""

    def distance(free):
        a = contribution(free[:N_FREE])
        b = contribution(free[N_FREE:]) if neighbors == "replace" else 0.0
        return np.linalg.norm(a - b)

    def climb(start):
        result = minimize(lambda free: -distance(free), start, method="SLSQP", tol=1e-14)
        return distance(result.x), result.x

    rng = np.random.default_rng(1)
    users = 2 * rng.normal(size=(1000, 2 if neighbors == "replace" else 1, N_FREE))
    # Many bounds are attained by users who share some items and disagree on them.
    users[..., :N_ITEMS] *= rng.integers(0, 2, size=(*users.shape[:2], N_ITEMS))
    users[::2, -1, N_ITEMS : 2 * N_ITEMS] = -users[::2, 0, N_ITEMS : 2 * N_ITEMS]
    starts = users.reshape(len(users), -1)
    values = np.array([distance(free) for free in starts])
    best, where = values.max(), starts[values.argmax()]
    for start in starts[np.argsort(-values)[:4]]:
        if best < goal:
            best, where = max((best, where), climb(start), key=lambda found: found[0])
    for _ in range(40):
        if best >= goal:
            break
        hop = 10.0 ** rng.uniform(-2.0, 0.3) * rng.normal(size=where.size)
        value, place = climb(where + hop * (rng.random(where.size) < 0.3))
        if value > best:
            best, where = value, place
    return best


CASES = {
    "counts": (counts, sens.count_sensitivity, (BETA,), {}),
    "sums": (sums, sens.sum_sensitivity, (BETA, Y), {}),
    "gram": (gram, sens.gram_sensitivity, (BETA, G), {}),
    "rhs": (rhs, sens.sum_sensitivity, (BETA, G * Y), {}),
}
# weight of the counts, largest abs(e) / C, and weight budget
ITEM_MEANS = {
    "item means, e within C": (0.5, 1.0, 1.0),
    "item means, counts heavy": (2.0, 1.5, 1.0),
    "item means, clipped": (0.6, 3.0, 1.4),
    "item means, never clipped": (0.6, 0.8, 0.9),
}
for _name, (_s, _kappa, _beta) in ITEM_MEANS.items():
    _bounds = {"max_ratio": _kappa, "weight_budget": _beta}
    CASES[_name] = item_means(_s, _kappa, _beta), sens.item_mean_sensitivity, (_s,), _bounds


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("case", CASES)
def test_attained_and_never_exceeded(case, neighbors):
    contribution, function, args, kwargs = CASES[case]
    bound = function(*args, **kwargs, neighbors=neighbors)
    goal = bound * (1 - 1e-6)
    worst = search(contribution, neighbors, goal)
    assert goal <= worst <= bound * (1 + 1e-9)


def test_the_clipped_joint_vector_needs_more_than_two():
    """A user pair beyond max(2, sqrt(2 (1 + s^2))), the value for residuals below the clip."""
    s, kappa = 0.5, 4.0
    a = 1 / kappa  # weight on the one common item
    own = math.sqrt(1 - a * a)
    first = np.array([s * a, s * own, 0.0, kappa * a, 0.0, 0.0])
    second = np.array([s * a, 0.0, s * own, -kappa * a, 0.0, 0.0])
    distance = np.linalg.norm(first - second)
    assert distance > max(2.0, math.sqrt(2 * (1 + s * s))) + 0.1
    bound = sens.item_mean_sensitivity(s, max_ratio=kappa, neighbors="replace")
    assert distance == pytest.approx(bound, rel=1e-12)
    assert bound < sens.item_mean_sensitivity(s, neighbors="replace")


def test_a_huge_ratio_is_none():
    huge = sens.item_mean_sensitivity(1.0, max_ratio=1e200, neighbors="replace")
    assert huge == pytest.approx(math.sqrt(6.0))
    assert huge == sens.item_mean_sensitivity(1.0, neighbors="replace")
    with pytest.raises(PrivacyParameterError, match="max_ratio=0"):
        sens.item_mean_sensitivity(1.0, max_ratio=0)


positive = st.floats(min_value=1e-3, max_value=1e3)


@given(positive, positive, st.floats(min_value=0.01, max_value=100.0))
def test_replace_is_between_one_and_two_times_add_remove(s, beta, kappa):
    one = sens.item_mean_sensitivity(s, weight_budget=beta, max_ratio=kappa)
    two = sens.item_mean_sensitivity(s, weight_budget=beta, max_ratio=kappa, neighbors="replace")
    assert math.sqrt(2) * one * (1 - 1e-12) <= two <= 2 * one * (1 + 1e-12)


FUNCTIONS = [
    (sens.count_sensitivity, 1),
    (sens.sum_sensitivity, 2),
    (sens.gram_sensitivity, 2),
    (sens.item_mean_sensitivity, 1),
]


@pytest.mark.parametrize(("function", "n_args"), FUNCTIONS)
def test_bad_parameters(function, n_args):
    for position in range(n_args):
        for bad in (0.0, -1.0, math.inf, math.nan, "2x", None):
            args = [1.0] * n_args
            args[position] = bad
            with pytest.raises(PrivacyParameterError, match="must be a finite number > 0"):
                function(*args)
    with pytest.raises(PrivacyParameterError, match="unit='rating' must be 'user'"):
        function(*[1.0] * n_args, unit="rating")
    with pytest.raises(PrivacyParameterError, match="unit='row'"):
        function(*[1.0] * n_args, unit="row")
    with pytest.raises(PrivacyParameterError, match="neighbors='swap'"):
        function(*[1.0] * n_args, neighbors="swap")
