"""What several statements say together: exact where all is Gaussian, never too little."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.accounting import gaussian_delta, gaussian_epsilon
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.composition import compose_statements, state_fits
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.statement import PrivacyStatement

WHOLE = PrivacyBudget(1.0, 1e-5)


def planned(budget, n_values=9, count=1, **fields):
    """Plan that spends a budget on one release, with Gaussian noise if it has a delta."""
    release = Release("sums", "sums", (n_values,), 1.0, count=count)
    if budget.delta == 0.0:
        release = PureRelease("sums", "sums", (9,), 0.0, "laplace", 1.0, "l1", count)
    plan = ReleasePlan.from_shares(budget, [release], {"sums": 1.0})
    return replace(plan, **fields)


def stated(budget, **fields):
    return PrivacyStatement.from_plan(planned(budget, **fields))


def composed(budgets, **fields):
    return compose_statements({f"step {i}": stated(b, **fields) for i, b in enumerate(budgets)})


shares = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6).map(
    lambda raw: [x / math.fsum(raw) for x in raw]
)


@given(st.floats(0.05, 50.0), st.floats(1e-9, 1e-3), shares, st.floats(0.0, 1.0))
def test_parts_make_up_the_whole_and_never_more(epsilon, delta, parts, size):
    whole = PrivacyBudget(epsilon, delta)
    most = min(3e7 * epsilon, 6e7, 1e18 * delta) / len(parts)  # noised values of each
    fields = {"n_values": max(1, int(4.0 * size * most))}
    try:
        budgets = whole.split(parts)
    except PrivacyParameterError:  # the least share is worth no epsilon at this delta
        return
    spent = composed(budgets, **fields)
    assert spent.delta == delta
    assert spent.epsilon <= epsilon
    if epsilon <= 10.0 and delta >= 1e-7:
        assert spent.epsilon > (1.0 - 3e-6) * epsilon
    # the definition, in the plain formula: no accountant
    mu = math.sqrt(sum(release.mu**2 for release in spent.releases))
    assert gaussian_delta(mu, epsilon) <= delta


@given(st.floats(1e-3, 100.0), shares)
def test_pure_parts_make_up_the_whole_and_never_more(epsilon, parts):
    spent = composed(PrivacyBudget(epsilon).split(parts))
    assert spent.delta == 0.0
    assert (1.0 - 1e-12) * epsilon < spent.epsilon <= epsilon
    assert sum(Fraction(r.epsilon) for r in spent.releases) <= Fraction(epsilon)


@pytest.mark.parametrize(
    ("whole", "n_values"),
    [(WHOLE, 2 * 10**7), (PrivacyBudget(19.0, 1e-3), 2)],  # by their number, by the tail
    ids=repr,
)
def test_a_split_without_room_for_the_sampler_would_overspend(whole, n_values):
    """A planted bug: parts of sqrt(share) mu, whose slacks are less than that of all values."""
    fields = {"n_values": n_values}
    part = gaussian_epsilon(whole.mu * math.sqrt(0.5), whole.delta)
    naive = [PrivacyBudget(part, whole.delta)] * 2
    assert composed(naive, **fields).epsilon > whole.epsilon
    assert composed(whole.split([0.5, 0.5]), **fields).epsilon <= whole.epsilon


@given(st.floats(1e-10, 1e-3), st.floats(1e-10, 1e-3), st.floats(0.1, 10.0))
def test_different_deltas_add_up(one, two, epsilon):
    spent = composed([PrivacyBudget(epsilon, one), PrivacyBudget(epsilon, two)])
    if one == two:
        assert spent.delta == one
        return
    assert Fraction(spent.delta) >= Fraction(one) + Fraction(two)
    assert spent.delta == pytest.approx(one + two)
    assert spent.epsilon <= 2.0 * epsilon
    assert any("different deltas" in note for note in spent.notes)


def test_pure_and_gaussian_parts_add_up():
    spent = composed([WHOLE, PrivacyBudget(0.5), PrivacyBudget(0.25)])
    assert spent.epsilon == pytest.approx(1.75, rel=1e-7)
    assert spent.delta == 1e-5
    assert "they add up" in str(spent)


def test_what_releases_do_not_explain_is_composed_basically():
    """A statement without releases, or of more than they spend, must not count as nothing."""
    base = stated(WHOLE)
    for other in (
        replace(base, releases=(), epsilon=0.7, delta=1e-6),
        replace(base, epsilon=1.5),
        replace(stated(PrivacyBudget(0.7)), delta=1e-6),
    ):
        spent = compose_statements({"a": base, "b": other})
        assert spent.epsilon >= base.epsilon + other.epsilon
        assert spent.delta >= base.delta + other.delta
        assert any("basic composition: not every part" in note for note in spent.notes)
    nothing = replace(base, releases=(), epsilon=math.inf, delta=0.0)
    for parts in ({"a": base, "b": nothing}, {"a": nothing, "b": nothing}):
        assert not compose_statements(parts).is_private
    exact = stated(PrivacyBudget.nonprivate(), n_values=3)
    assert not compose_statements({"a": base, "b": exact}).is_private


def test_a_single_statement_stays_as_it_is():
    single = replace(stated(WHOLE), personal=True)
    assert compose_statements({"only": single}) is single


def test_everything_said_is_kept():
    one = replace(stated(WHOLE), notes=("n1",), condition="c1", assumptions=("a", "b"))
    two = replace(
        stated(WHOLE), notes=("n2",), condition="c2", assumptions=("b", "d"), seeded=True,
        personal=True, local=True,
    )  # fmt: skip
    spent = compose_statements({"x": one, "y": two})
    assert [release.name for release in spent.releases] == ["x: sums", "y: sums"]
    assert spent.assumptions == ("a", "b", "d")
    assert spent.condition == "c1; and c2"
    assert {"x: n1", "y: n2"} <= set(spent.notes)
    assert (spent.seeded, spent.local, spent.personal) == (True, False, False)
    assert any("y: personal levels" in note for note in spent.notes)
    assert spent == PrivacyStatement.from_json(spent.to_json())
    again = compose_statements({"x": spent, "z": one})  # compositions compose
    assert len(again.releases) == 3


@pytest.mark.parametrize("field", ["unit", "neighbors"])
def test_other_relations_do_not_add_up(field):
    other = replace(stated(WHOLE), **{field: {"unit": "rating", "neighbors": "replace"}[field]})
    with pytest.raises(
        PrivacyParameterError, match=rf"{field}='r.*' must be .* in 'sel' too, .* 'als'"
    ):
        compose_statements({"als": stated(WHOLE), "sel": other})


def exact_epsilon(mu, delta):
    """Of an ideal sampler, by dp-accounting where it is installed, else by bisection."""
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
    except ImportError:
        return gaussian_epsilon(mu, delta)
    law = pld.from_gaussian_mechanism(1.0 / mu, value_discretization_interval=1e-3)
    return law.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("n_fits", [1, 3, 6, 12])
def test_many_weak_fits_have_a_finite_epsilon(n_fits):
    """The sampler's tails are due by release: those of a single one of mu 5.8 would be delta."""
    fit = stated(PrivacyBudget(16.0, 1e-5), n_values=500)
    spent = compose_statements({str(i): fit for i in range(n_fits)})
    mu = math.sqrt(n_fits) * fit.mu
    exact = gaussian_epsilon(mu, 1e-5)
    assert exact <= spent.epsilon <= exact * (1.0 + 1e-5)
    assert spent.epsilon == pytest.approx(exact_epsilon(mu, 1e-5), rel=1e-4)
    assert spent.epsilon <= n_fits * 16.0
    kept = state_fits(planned(PrivacyBudget(16.0, 1e-5), n_values=500), n_fits)
    assert spent.epsilon <= kept.epsilon <= spent.epsilon * (1.0 + 1e-6)
    assert spent == PrivacyStatement.from_json(spent.to_json())
    assert spent.follows_from_releases


def test_one_strong_release_has_no_finite_epsilon():
    """A release of mu 7 may show a value that the neighbour's sampler is not proved to draw."""
    strong = Release("sums", "sums", (9,), 1.0, 1.0 / 7.0)
    many = Release("sums", "sums", (9,), 1.0, 5.0 / 7.0, count=25)
    budget = PrivacyBudget(math.inf, 1e-5)
    assert ReleasePlan(budget, (strong,)).epsilon == math.inf
    assert ReleasePlan(budget, (many,)).epsilon < 54.0


def test_nothing_and_too_much():
    with pytest.raises(PrivacyParameterError, match="must be a PrivacyStatement"):
        compose_statements({})
    with pytest.raises(PrivacyParameterError, match="less than 1"):
        composed([PrivacyBudget(1.0, 0.6), PrivacyBudget(1.0, 0.5)])


# --- fits that were not kept --------------------------------------------------------------------


@pytest.mark.parametrize("n_fits", [1, 7])
def test_fits_are_charged_at_least_what_they_spend(n_fits):
    plan = planned(WHOLE, n_values=100)
    spent = state_fits(plan, n_fits)
    for n_values in (1, 50, 100):  # rows and items of a fold may be fewer
        fit = stated(WHOLE, n_values=n_values)
        kept = compose_statements({str(i): fit for i in range(n_fits)})
        assert kept.epsilon <= spent.epsilon <= kept.epsilon * (1.0 + 1e-6)
    assert spent.delta == 1e-5
    assert (spent.releases[0].shape, spent.releases[0].count) == ((100,), n_fits)


def test_pure_and_mixed_fits():
    pure = state_fits(planned(PrivacyBudget(0.5)), 3)
    assert (pure.epsilon, pure.delta) == (1.5, 0.0)
    plan = planned(WHOLE)
    draw = PureRelease("draw", "V", (3,), 0.25, "posterior sample", 1.0, "loss of a user")
    mixed = state_fits(replace(plan, releases=(*plan.releases, draw), condition="luck"), 4)
    mu = 2.0 * plan.mu
    assert mixed.epsilon == pytest.approx(1.0 + gaussian_epsilon(mu, 1e-5), rel=1e-7)
    assert mixed.condition == "luck"
    assert state_fits(plan, 2, seeded=True).seeded
    assert not state_fits(planned(PrivacyBudget.nonprivate(), n_values=3), 2).is_private
