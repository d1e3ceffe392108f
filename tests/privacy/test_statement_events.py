"""Statements of what other libraries have released, from their events."""

import math

import pytest

from skdpmf import PrivacyCard
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import PrivacyBudget, PrivacyStatement, ReleasePlan
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.composition import compose_statements
from skdpmf.privacy.plan import PureRelease, Release

dp = pytest.importorskip("dp_accounting")

RELATION = {"unit": "user", "neighbors": "add-remove"}
DRAW = PureRelease("draw", "factors", (3,), 0.25, "posterior sample", 1.0, "loss of a user")


def statement(budget, *more, noise="gaussian"):
    """Two releases of 900 values that spend the budget, and more beside them."""
    some = [Release("sums", "item sums", (9, 50), 1.5, count=2)]
    if noise == "laplace":
        some = [PureRelease("sums", "item sums", (9, 50), 0.0, "laplace", 1.5, "l1", count=2)]
    plan = ReleasePlan.from_shares(budget, some, {"sums": 1.0})
    return PrivacyStatement.from_plan(ReleasePlan(budget, (*plan.releases, *more)))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("more", [(), (DRAW,), (DRAW, Release("a", "b", (), 1.0, 7.0))])
def test_there_and_back_nothing_is_lost(epsilon, delta, more):
    budget = PrivacyBudget(epsilon, delta, unit="rating", neighbors="replace")
    said = statement(budget, *more)
    back = PrivacyStatement.from_dp_events(
        said.to_dp_events(), delta, unit="rating", neighbors="replace"
    )
    assert back.epsilon == pytest.approx(said.epsilon, rel=1e-9)
    assert back.epsilon <= said.epsilon  # which counts the sampler, too
    assert back.mu == pytest.approx(said.mu, rel=1e-15)
    assert (back.delta, back.unit, back.neighbors) == (delta, "rating", "replace")
    assert back.to_dp_events() == said.to_dp_events()
    assert back.follows_from_releases
    assert PrivacyStatement.from_json(back.to_json()) == back


def test_pure_events_state_no_delta():
    said = statement(PrivacyBudget(0.5), DRAW, noise="laplace")
    back = PrivacyStatement.from_dp_events(said.to_dp_events(), 1e-5, **RELATION)
    assert back.epsilon == pytest.approx(0.75, rel=1e-12)
    assert (back.delta, back.mu) == (0.0, 0.0)
    assert back.to_dp_events()[0] == said.to_dp_events()[0]


def test_it_composes_with_a_fit():
    """Exactly, where both are Gaussian; and an accountant that knows nothing of ours agrees."""
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
    steps = dp.SelfComposedDpEvent(dp.GaussianDpEvent(40.0), 100)
    theirs = PrivacyStatement.from_dp_events([steps, dp.LaplaceDpEvent(10.0)], 1e-5, **RELATION)
    ours = statement(PrivacyBudget(1.0, 1e-5))
    both = compose_statements({"embeddings": theirs, "recommender": ours})
    assert theirs.mu == pytest.approx(0.25)
    assert both.mu == pytest.approx(math.hypot(0.25, ours.mu), rel=1e-12)
    expected = gaussian_epsilon(both.mu, 1e-5) + 0.1
    assert both.epsilon == pytest.approx(expected, rel=1e-9)
    assert both.delta == 1e-5
    assert set(theirs.assumptions) | set(ours.assumptions) == set(both.assumptions)
    accountant = pld.PLDAccountant()
    accountant.compose(dp.ComposedDpEvent(both.to_dp_events()))
    assert 0.9 * both.epsilon < accountant.get_epsilon(1e-5) <= both.epsilon * (1 + 1e-3)
    card = PrivacyCard.of(both, model="a shop's recommender")
    assert PrivacyCard.from_json(card.to_json()) == card
    curve = {pair["delta"]: pair["epsilon"] for pair in card.curve()}
    assert curve[1e-5] == pytest.approx(both.epsilon)


def test_no_noise_and_nothing():
    for events in (dp.NonPrivateDpEvent(), [dp.GaussianDpEvent(0.0)], [dp.LaplaceDpEvent(0.0)]):
        assert not PrivacyStatement.from_dp_events(events, 0.0, **RELATION).is_private
    for events in ([], dp.NoOpDpEvent(), dp.ComposedDpEvent([])):
        assert PrivacyStatement.from_dp_events(events, 1e-5, **RELATION).epsilon == 0.0


def test_what_cannot_be_told_by_releases_is_refused_and_its_epsilon_is_not():
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
    step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
    training = dp.SelfComposedDpEvent(step, 100)
    with pytest.raises(PrivacyParameterError, match=r"PoissonSampled.*state the epsilon at delta"):
        PrivacyStatement.from_dp_events(training, 1e-5, **RELATION)
    epsilon = pld.PLDAccountant().compose(training).get_epsilon(1e-5)  # as the error says
    theirs, ours = (
        PrivacyStatement(epsilon, 1e-5, "user", "add-remove", ()),
        statement(PrivacyBudget(1.0, 1e-5)),
    )
    both = compose_statements({"theirs": theirs, "ours": ours})
    assert both.epsilon == pytest.approx(epsilon + ours.epsilon, rel=1e-12)
    assert both.delta == 2e-5


def test_a_search_does_not_become_a_composition():
    """The best of ten runs on average, as the statement of a private search names it."""
    search = dp.dp_event.RepeatAndSelectDpEvent(dp.GaussianDpEvent(5.0), 10.0, 1.0)
    with pytest.raises(PrivacyParameterError, match="RepeatAndSelect"):
        PrivacyStatement.from_dp_events([search, dp.GaussianDpEvent(9.0)], 1e-5, **RELATION)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, r"delta=0.0 must be > 0 for Gaussian events"),
        ({"delta": 1.0}, r"delta=1.0 must be a number in \[0, 1\)"),
        ({"unit": "person"}, "unit='person'"),
        ({"neighbors": "swap"}, "neighbors='swap'"),
        ({"events": "ab"}, "event='a' must be Gaussian"),
        ({"events": 3}, "event=3 must be Gaussian"),
    ],
)
def test_arguments_are_checked(change, message):
    settings = {"events": dp.GaussianDpEvent(1.0), "delta": 1e-5, **RELATION, **change}
    with pytest.raises(PrivacyParameterError, match=message):
        PrivacyStatement.from_dp_events(**settings)
