"""The local model: randomisers of devices, and models that are made of their reports."""
