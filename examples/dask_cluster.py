"""
A fit over a dask cluster
=========================

There may be more ratings than one machine should read. Can a cluster make a private fit? Yes, and
the fit itself stays as it is: workers read the ratings where they lie, noisy models go down to
them, sums come up, and one process draws all noise.
"""

# %%
# A client, and a fit
# -------------------
# Where a client of a cluster is active, ``fit`` has its workers read the folder. The example needs
# ``pip install "skdpmf[dask,parquet]"``.

from tempfile import TemporaryDirectory

from dask.distributed import Client

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import ParquetRatings, make_ratings

# %%
# Two workers on this machine
# ---------------------------
# For a cluster of machines, pass its address to ``Client``, and write the ratings to a folder that
# all of them can read. Workers import this file, and the first line keeps them from running it.

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        ratings = ParquetRatings.write(f"{folder}/ratings", make_ratings(5000, 200, random_state=0))
        with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
            model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5)).fit(ratings)
    print(model.privacy_spent_.summary())

# %%
# The guarantee is that of a fit on one machine. It covers the model, and not what travels inside
# the cluster: sums there have no noise yet. :doc:`Beyond one machine </distributed>` says who must
# be trusted, and how a fit goes on after a crash.
