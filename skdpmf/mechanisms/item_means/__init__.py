"""Item counts and means: from one joint release, or from counts and rounds of residuals."""
