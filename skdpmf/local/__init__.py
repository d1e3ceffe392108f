"""Recommendations without a trusted server: devices that report, and the server that adds up.

`LocalDevice` holds one user's ratings and never gives them away, `LocalAggregator` makes a model
from randomised reports. They share nothing but small messages: `Announcement` (server to devices,
one a round), a report of each device and `ReleasedModel`, as JSON or as bytes.
"""

from skdpmf.local.aggregator import LocalAggregator
from skdpmf.local.device import LocalDevice
from skdpmf.local.messages import Announcement, ReleasedModel

__all__ = ["Announcement", "LocalAggregator", "LocalDevice", "ReleasedModel"]
