"""References of the diagnostics of chains: arrays that ArviZ judged, and a slow twin.

ArviZ's figures stand in tests/mechanisms/test_chain_diagnostics.py. To compute them again, with
ArviZ (0.23.4 was used) in an environment of its own: python tests/reference/chain_diagnostics.py
"""

import math
import sys

import numpy as np
from scipy import stats


def autoregressive(rng, shape, phi):
    """x_t = phi x_{t-1} + e_t along axis 1, stationary, of variance 1 / (1 - phi^2)."""
    x = rng.normal(size=shape)
    x[:, 0] /= math.sqrt(1.0 - phi**2)
    for t in range(1, shape[1]):
        x[:, t] += phi * x[:, t - 1]
    return x


def oracle_cases():
    """Arrays of shape (n_chains, n_draws) by name."""
    rng = np.random.default_rng(20210401)
    chain = np.arange(4.0)[:, None]
    return {
        "independent": rng.normal(size=(4, 250)),
        "slow": autoregressive(rng, (4, 250), 0.9),
        "antithetic": autoregressive(rng, (4, 250), -0.3),
        "odd number of draws": autoregressive(rng, (3, 101), 0.5),
        "shifted": rng.normal(size=(4, 200)) + chain,
        "scaled": rng.normal(size=(4, 200)) * (1.0 + chain),
        "trend": rng.normal(size=(4, 200)) + np.linspace(0.0, 2.0, 200),
        "heavy tails": np.exp(3.0 * autoregressive(rng, (4, 250), 0.6)),
        "ties": np.round(autoregressive(rng, (4, 150), 0.8)),
        "two values": (rng.random((4, 150)) < 0.3) * 1.0,
        "rare value": (rng.random((4, 150)) < 0.02) * 1.0,
        "one chain": autoregressive(rng, (1, 300), 0.7),
        "quantile on a draw": autoregressive(rng, (3, 187), 0.3),
        **{f"{n} draws": rng.normal(size=(2, n)) for n in range(4, 13)},
        "8 draws, antithetic": autoregressive(rng, (2, 8), -0.95),
        "12 draws, antithetic": autoregressive(rng, (2, 12), -0.95),
        # the draws end before the pairs do, at a negative even term
        "negative last term": np.random.default_rng(53).normal(size=(2, 12)),
        # folded, these are one value only
        "two balanced values": rng.permuted(np.tile([[0.0, 1.0]], (3, 40)), axis=1),
    }


def judge_by_arviz(x):
    """R-hat, bulk ESS and tail ESS by ArviZ."""
    import arviz

    # Its quantile is rounded, and where it falls upon a draw, may pass below it: so the two
    # indicators are formed here, by order statistics.
    ordered = np.sort(x, axis=None)
    n = x.size - 1
    tails = [
        arviz.ess((x <= ordered[rank]) * 1.0, method="mean") for rank in (n // 20, 19 * n // 20)
    ]
    if n % 20:
        assert min(tails) == arviz.ess(x, method="tail")
    return float(arviz.rhat(x)), float(arviz.ess(x, method="bulk")), float(min(tails))


def log_density(target, state):
    """Of the state, constant included."""
    total = 0.0
    R = target.R.toarray()
    for i, j in zip(*target.R.nonzero(), strict=True):
        p = state.U[i] @ state.V[j] + state.item_bias[j]
        p = min(max(p, -target.bound), target.bound)
        total -= target.inverse_temperature * target.weights[i] * (R[i, j] - p) ** 2
    for F, precision, std in (
        (state.U, state.user_precision, target.user_std),
        (state.V, state.item_precision, target.item_std),
    ):
        total += stats.norm.logpdf(F, scale=precision**-0.5).sum()
        if target.sample_precisions:
            total += stats.gamma.logpdf(precision, 1.0, scale=1.0 / std**2).sum()
    if target.bias_std > 0.0:
        total += stats.norm.logpdf(state.item_bias, scale=target.bias_std).sum()
    return total


if __name__ == "__main__":
    for name, x in oracle_cases().items():
        sys.stdout.write(f'    "{name}": ({", ".join(map(repr, judge_by_arviz(x)))}),\n')
