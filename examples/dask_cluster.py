"""
A fit over a dask cluster
=========================

A private fit over the processes of a dask cluster, in ten lines.

The workers open the ratings on disk; only noisy models go down to them and sums come up. For a
cluster of machines pass its address to `Client`. The example needs
`pip install "skdpmf[dask,parquet]"`.

    python examples/dask_cluster.py
"""

import tempfile

from dask.distributed import Client
from joblib import parallel_config

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import ParquetRatings, make_ratings

if __name__ == "__main__":  # the workers import this file
    with tempfile.TemporaryDirectory() as folder:
        ratings = ParquetRatings.write(f"{folder}/ratings", make_ratings(5000, 200, random_state=0))
        with Client(n_workers=2, threads_per_worker=1), parallel_config(backend="dask"):
            model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5)).fit(ratings)
    print(model.privacy_spent_)
