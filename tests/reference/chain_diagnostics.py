"""References of the diagnostics of chains: arrays that ArviZ judged, and a slow twin.

ArviZ's figures stand in tests/mechanisms/test_chain_diagnostics.py. To compute them again, with
ArviZ (0.23.4 was used) in an environment of its own: python tests/reference/chain_diagnostics.py
"""

import math
import sys

import numpy as np


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
    }


def judge_by_arviz(x):
    """R-hat and bulk ESS by ArviZ."""
    import arviz

    return float(arviz.rhat(x)), float(arviz.ess(x, method="bulk"))


if __name__ == "__main__":
    for name, x in oracle_cases().items():
        sys.stdout.write(f'    "{name}": ({", ".join(map(repr, judge_by_arviz(x)))}),\n')
