"""Gain of each choice of AdaptiveWeightALS: test RMSE on MovieLens 1M with one thing changed.

    SKDPMF_DATA=folder python benchmarks/bench_ablation.py [--seeds 3] [--epsilons 1 4 20]

Data: ml-1m.parquet (user, item, rating) in $SKDPMF_DATA or --data. Differences below .002 are
within the noise of three fits.
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import ratings_to_matrix, read_ratings
from skdpmf.evaluation import rmse, split_table
from skdpmf.mechanisms.als import dpals as solver
from skdpmf.mechanisms.als import item_update as item_posterior
from skdpmf.mechanisms.item_means import joint_release as item_means

SHARES = solver.SHARES


def shares(**changed):
    """Shares with some changed, the right-hand sides taking the rest."""
    new = {**SHARES, **changed}
    new[solver.RHS] += 1.0 - sum(new.values())
    return {(solver, "SHARES"): new}


# name: (parameters of the estimator, {(module, constant): value})
VARIANTS = {
    "defaults": ({}, {}),
    "weight_exponent 0": ({"solver__weight_exponent": 0.0}, {}),
    "weight_exponent 1/2": ({"solver__weight_exponent": 0.5}, {}),
    "tau = 100": ({"max_ratings_per_user": 100}, {}),
    "max_iter 5": ({"max_iter": 5}, {}),
    "max_iter 20": ({"max_iter": 20}, {}),
    "only the last round counts (gamma = 0)": ({}, {(item_posterior, "_FORGETTING"): 0.0}),
    "gamma = .98": ({}, {(item_posterior, "_FORGETTING"): 0.98}),
    "every item's Gram pooled": ({}, {(item_posterior, "_LEAST_SHARE"): 1.0}),
    "Grams get 20 % of the budget": ({}, shares(**{solver.GRAM: 0.2})),
    "Grams get 1 %": ({}, shares(**{solver.GRAM: 0.01})),
    "item statistics get 30 %": ({}, shares(**{solver.ITEM_STATISTICS: 0.3})),
    "second moments get 1 %": ({}, shares(**{solver.START: 0.01})),
    "C = 1.2, nearly no clipping": ({}, {(solver, "CLIP"): 1.2}),
    "C of item means = 1.6": ({}, {(item_means, "CLIP"): 1.6}),
    "a = .5": ({}, {(solver, "OFFSET"): 0.5}),
    "a = 1.5": ({}, {(solver, "OFFSET"): 1.5}),
    "fold-in ridge 1": ({}, {(solver, "FOLD_IN_RIDGE"): 1.0}),
    "fold-in ridge 4": ({}, {(solver, "FOLD_IN_RIDGE"): 4.0}),
    "alpha 1/2": ({"alpha": 0.5}, {}),
    "alpha 2": ({"alpha": 2.0}, {}),
    "user_damping 2": ({"user_damping": 2.0}, {}),
    "no item means": ({"item_means": False}, {}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("SKDPMF_DATA"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 20.0])
    options = parser.parse_args()
    if not options.data:
        parser.exit(0, "no ratings: set SKDPMF_DATA or --data to a folder with ml-1m.parquet\n")
    path = Path(options.data)
    frame = read_ratings(path / "ml-1m.parquet" if path.is_dir() else path)
    train, test = split_table(frame, test_size=0.1, random_state=0)
    X, users, items = ratings_to_matrix(train, items=sorted(frame["item"].unique()))
    Y = ratings_to_matrix(test[test["user"].isin(users)], users=users, items=items).X
    print("| | " + " | ".join(f"eps {e:g}" for e in options.epsilons) + " |")
    print("| --- |" + " --- |" * len(options.epsilons))
    for name, (parameters, constants) in VARIANTS.items():
        row = []
        for epsilon in options.epsilons:
            with ExitStack() as stack:
                for (module, constant), value in constants.items():
                    stack.enter_context(patch.object(module, constant, value))
                errors = []
                for seed in range(options.seeds):
                    # Seeded, to make the table again; a real release leaves random_state alone.
                    model = AdaptiveWeightALS(
                        PrivacyBudget(epsilon, 1e-05),
                        solver="dpals",
                        random_state=seed,
                        n_jobs=-1,
                    )
                    model.set_params(**parameters).fit(X)
                    errors.append(rmse(Y.data, model.predict_entries(X, Y).data))
            row.append(f"{np.mean(errors):.4f}")
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
