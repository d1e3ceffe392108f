"""A black-box look at all that simulated devices send: no event tells two rows well apart.

Many devices hold one row, as many hold another one. Events are half spaces of what a device sends
in all rounds; they are found on one half of the devices and tested on the other half. Nothing is
fed back between the rounds (step_size=0), so that what devices are sent is the same for both rows.
"""

import math

import numpy as np
import pytest

from skdpmf import LocalDPGDDR, PrivacyBudget
from skdpmf.mechanisms.device_reports.gradient import initial_factors
from skdpmf.mechanisms.device_reports.privunit import PrivUnit, add_reports, unit_rows
from skdpmf.mechanisms.device_reports.randomizers import CoordinateSampling
from skdpmf.privacy.sampler.laws import normal_tables
from tests.built import built

EPSILON = 1.0
N_DEVICES = 4000
SIGMAS = 4.5  # one test each, of events chosen on other devices: false alarms 3e-6
RANGE = (-100.0, 100.0)  # so that gradients are clipped
LOW, HIGH, NONE = -100.0, 100.0, np.nan
COORDINATE = {"method": "gradient", "randomizer": "coordinate", "max_iter": 2}
FIXED = {"step_size": 0.0, "user_step": 1e-4, "n_components": 1, "center": False}
CASES = {
    "items, one item": ({"max_iter": 1}, [HIGH], [LOW]),
    "items, nothing": ({"max_iter": 1}, [HIGH, HIGH], [NONE, NONE]),
    "items, coordinate": ({"randomizer": "coordinate"}, [HIGH], [LOW]),
    "gradient": ({"method": "gradient", "max_iter": 2, **FIXED}, [HIGH], [LOW]),
    "coordinate, one item": ({**COORDINATE, **FIXED}, [HIGH], [LOW]),
    "projected": ({**COORDINATE, **FIXED, "projection_dim": 1}, [HIGH], [LOW]),
}


def whole_reports(self, keys, indptr, indices, values):
    """What PrivUnit adds up, device by device."""
    n, law = len(keys), self.parameters
    indptr, indices = np.asarray(indptr, np.int64), np.asarray(indices, np.int64)
    settings = np.uint64(law.coin), law.t * 2.0**law.bits, law.bits, normal_tables()
    out = np.zeros((n, self.dimension), np.int64)
    with np.errstate(over="ignore"):
        rows = unit_rows(indptr, indices, np.asarray(values), self.dimension)
        for i in range(n):
            add_reports(keys[i : i + 1], rows[0][i : i + 2], *rows[1:], *settings, out[i])
    return out


def transcripts(row, params, seed):
    """All that each of the devices sends, a row of numbers for each."""
    sent = []
    with pytest.MonkeyPatch.context() as patch:

        def keep(owner, name, single):
            original = getattr(owner, name)

            def spy(self, keys, *args, **kwargs):
                out = original(self, keys, *args, **kwargs)
                sent.append(single(self, keys, out, *args))
                return out

            patch.setattr(owner, name, spy)

        def whole(self, keys, out, *rows):
            reports = whole_reports(self, keys, *rows)
            np.testing.assert_array_equal(reports.sum(axis=0), out)
            return reports / 2.0**self.parameters.bits

        def sign(self, keys, out, _):
            return np.eye(self.n_coordinates)[self.coordinates(keys)] * out[:, None]

        keep(PrivUnit, "sum_reports", whole)
        keep(CoordinateSampling, "report", sign)
        budget = PrivacyBudget(EPSILON)
        model = built(LocalDPGDDR, budget, rating_range=RANGE, random_state=seed, **params)
        model.fit(np.tile(row, (N_DEVICES, 1)))
    if model.method == "items":  # one report each, simulated in parts
        return np.concatenate(sent)
    # a gradient is a multiple of the device's public start: its sign may be taken off
    U, _ = initial_factors(model._public_key(), N_DEVICES, len(row), 1, 1.0)
    return np.hstack((*sent, *(np.sign(U) * part for part in sent)))


def log_odds(a, b):
    """Log-ratio of an event's frequencies, and its standard error."""
    p, q = ((part.sum() + 0.5) / (part.size + 1.0) for part in (a, b))
    return math.log(p / q), math.sqrt(((1 - p) / p + (1 - q) / q) / a.size)


def worst_event(A, B):
    """The half space that seems to tell A from B best, by the least that its odds may be."""
    pooled = np.vstack((A, B))
    pooled -= pooled.mean(axis=0)
    far = np.linalg.lstsq(pooled, np.repeat([1.0, -1.0], len(A)), rcond=None)[0]
    best = -math.inf, None
    for direction in (far, A.mean(axis=0) - B.mean(axis=0), *np.eye(A.shape[1])):
        for sign in (1.0, -1.0):
            a, b = (sign * (part @ direction) for part in (A, B))
            for t in np.unique(np.quantile(np.concatenate((a, b)), np.linspace(0.02, 0.95, 60))):
                found, error = log_odds(a >= t, b >= t)
                if found - 2 * error > best[0]:
                    best = found - 2 * error, (sign * direction, t)
    return best[1]


def check_odds(A, B, most=EPSILON, least=EPSILON / 2):
    """On the second halves, whichever of the two rows an event speaks for."""
    half, found = N_DEVICES // 2, []
    for one, two in ((A, B), (B, A)):
        direction, t = worst_event(one[:half], two[:half])
        odds, error = log_odds(*(part[half:] @ direction >= t for part in (one, two)))
        assert odds <= most + SIGMAS * error
        found.append(odds)
    assert max(found) > least


@pytest.mark.parametrize("case", CASES)
def test_no_event_tells_more_than_epsilon(case):
    params, a, b = CASES[case]
    check_odds(*(transcripts(row, params, seed) for seed, row in enumerate((a, b))))


@pytest.mark.parametrize("case", ["items, one item", "coordinate, one item"])
def test_twice_the_epsilon_is_seen(case, monkeypatch):
    """Planted: what a randomiser is told is twice what the budget says."""
    monkeypatch.setattr(f"{__name__}.EPSILON", 2.0)
    params, a, b = CASES[case]
    A, B = (transcripts(row, params, seed) for seed, row in enumerate((a, b)))
    with pytest.raises(AssertionError, match=r"assert [12]\.\d+ <= \(1\.0 "):
        check_odds(A, B, most=1.0)
