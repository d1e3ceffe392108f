"""Budget, accounting, sensitivities, sums, noise and statements: all a privacy reviewer reads."""

from skdpmf._moved import moved_to_the_top
from skdpmf.privacy.accounting import (
    GaussianEvent,
    PureEvent,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.composition import compose_statements, state_fits
from skdpmf.privacy.losses import PrivacyLoss, privacy_loss
from skdpmf.privacy.plan import PureRelease, Release, ReleasePlan
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.statement import PrivacyStatement

__all__ = [
    "GaussianEvent",
    "NoiseSource",
    "PrivacyBudget",
    "PrivacyLoss",
    "PrivacyStatement",
    "PureEvent",
    "PureRelease",
    "Release",
    "ReleasePlan",
    "compose_statements",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "privacy_loss",
    "state_fits",
]
__getattr__ = moved_to_the_top(__name__, ("PrivacyCard", "PrivacyLedger"))
