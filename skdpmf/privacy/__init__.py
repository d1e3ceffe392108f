"""Budget, accounting, calibration, sensitivity and noise: all a privacy reviewer has to read."""

from skdpmf.privacy.accounting import (
    GaussianEvent,
    PureEvent,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.card import PrivacyCard
from skdpmf.privacy.composition import compose_statements, state_fits
from skdpmf.privacy.ledger import PrivacyLedger
from skdpmf.privacy.losses import PrivacyLoss, privacy_loss
from skdpmf.privacy.noise import NoiseSource
from skdpmf.privacy.plan import PureRelease, Release, ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement

__all__ = [
    "GaussianEvent",
    "NoiseSource",
    "PrivacyBudget",
    "PrivacyCard",
    "PrivacyLedger",
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
