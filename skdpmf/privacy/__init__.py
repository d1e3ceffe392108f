"""Budget, accounting, sensitivities, sums, noise and statements: all a privacy reviewer reads."""

from skdpmf._moved import names_of_before
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement

__all__ = ["PrivacyBudget", "PrivacyStatement", "ReleasePlan"]
__getattr__ = names_of_before(
    __name__,
    {
        "PrivacyCard": "skdpmf",
        "PrivacyLedger": "skdpmf",
        "GaussianEvent": "skdpmf.privacy.accounting",
        "PureEvent": "skdpmf.privacy.accounting",
        "gaussian_delta": "skdpmf.privacy.accounting",
        "gaussian_epsilon": "skdpmf.privacy.accounting",
        "gaussian_mu": "skdpmf.privacy.accounting",
        "PrivacyLoss": "skdpmf.privacy.losses",
        "privacy_loss": "skdpmf.privacy.losses",
        "PureRelease": "skdpmf.privacy.plan",
        "Release": "skdpmf.privacy.plan",
        "NoiseSource": "skdpmf.privacy.sampler.noise",
        "compose_statements": "skdpmf.privacy.composition",
        "state_fits": "skdpmf.privacy.composition",
    },
)
