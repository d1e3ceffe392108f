import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels.local_gradient import gradient_values, projected_gradient_values, step_users
from tests.kernels import _problems as problems
from tests.reference import local_gradient as twin

LIMIT = 1e50


class Problem:
    def __init__(self, seed, k, index_type=np.int64, n_users=11, n_items=7):
        self.rng = rng = np.random.default_rng(seed)
        pattern = problems.random_pattern(rng, n_users, n_items, index_type)
        ratings = rng.standard_normal(len(pattern.indices))
        self.U, self.V = rng.standard_normal((n_users, k)), rng.standard_normal((n_items, k))
        self.dense = np.full((n_users, n_items), np.nan)
        self.dense[np.repeat(np.arange(n_users), np.diff(pattern.indptr)), pattern.indices] = (
            ratings
        )
        self.csr = problems.read_only("compiled", pattern.indptr, pattern.indices, ratings)

    def gradients(self):
        pairs = zip(self.dense, self.U, strict=True)
        return np.array([twin.gradient(y, u, self.V) for y, u in pairs])

    def draws(self, n_rows):
        n_users, k = self.U.shape
        return self.rng.integers(0, n_rows, n_users), self.rng.integers(0, k, n_users)


seeds, widths = st.integers(0, 2**16), st.integers(1, 20)
ranges = st.sampled_from([(0, 11), (3, 6), (0, 2), (7, 11), (4, 4)])


def assert_within(part, out, expected, tolerance, before=None):
    """The values in the range are as expected, the others as before."""
    wanted = np.full_like(out, np.nan) if before is None else before.copy()
    own = slice(*part)
    wanted[own] = np.asarray(expected)[own]
    np.testing.assert_allclose(out, wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(np.delete(out, own, axis=0), np.delete(wanted, own, axis=0))


@problems.forms
@problems.examples
@given(seed=seeds, k=widths, index_type=problems.index_types, part=ranges)
def test_values_are_those_of_the_twins_gradient(form, seed, k, index_type, part):
    p = Problem(seed, k, problems.types_of(form, index_type)[0])
    items, components = p.draws(7)
    out = np.full(11, np.nan)
    getattr(gradient_values, form)(
        *p.csr, *problems.read_only(form, p.U, p.V, items, components), *part, out
    )
    assert_within(part, out, p.gradients()[np.arange(11), items, components], 1e-12)


@problems.forms
@problems.examples
@given(seed=seeds, k=widths, index_type=problems.index_types, part=ranges)
def test_projected_values_are_those_of_the_twins_gradient(form, seed, k, index_type, part):
    p = Problem(seed, k, problems.types_of(form, index_type)[0])
    Phi = p.rng.standard_normal((4, 7)).astype(np.float32)  # as estimators have it
    rows, components = p.draws(4)
    out = np.full(11, np.nan)
    arrays = problems.read_only(form, p.U, p.V, Phi, rows, components)
    getattr(projected_gradient_values, form)(*p.csr, *arrays, *part, out)
    projected = np.einsum("sj,ijl->isl", Phi.astype(np.float64), p.gradients())
    assert_within(part, out, projected[np.arange(11), rows, components], 1e-11)


@problems.forms
@problems.examples
@given(seed=seeds, k=widths, index_type=problems.index_types, part=ranges)
def test_users_step_as_the_twins_do(form, seed, k, index_type, part):
    p = Problem(seed, k, problems.types_of(form, index_type)[0])
    U = p.U.copy()
    getattr(step_users, form)(*p.csr, *problems.read_only(form, p.V), 0.3, 0.2, LIMIT, *part, U)
    pairs = zip(p.dense, p.U, strict=True)
    expected = [twin.stepped_user(y, u, p.V, 0.3, 0.2) for y, u in pairs]
    assert_within(part, U, expected, 1e-11, before=p.U)


@problems.forms
def test_a_user_s_values_depend_on_nobody_else(form):
    """Alone, with other users' rows left out, each has the same bits."""
    p = Problem(5, 17)
    (items, components), (rows, _) = p.draws(7), p.draws(4)
    Phi, (indptr, indices, ratings) = p.rng.standard_normal((4, 7)).astype("f"), p.csr

    def run(i, csr, U, *draws):
        out, stepped, n = np.empty((2, len(U))), U.copy(), len(U)
        getattr(gradient_values, form)(*csr, U, p.V, draws[0], draws[2], 0, n, out[0])
        projected = getattr(projected_gradient_values, form)
        projected(*csr, U, p.V, Phi, draws[1], draws[2], 0, n, out[1])
        getattr(step_users, form)(*csr, p.V, 0.3, 0.2, LIMIT, 0, n, stepped)
        return out[:, i].tolist() + stepped[i].tolist()

    for i in range(11):
        own, one = slice(indptr[i], indptr[i + 1]), slice(i, i + 1)
        csr = np.array([0, own.stop - own.start]), indices[own], ratings[own]
        alone = run(0, csr, p.U[one], items[one], rows[one], components[one])
        assert alone == run(i, p.csr, p.U, items, rows, components)
