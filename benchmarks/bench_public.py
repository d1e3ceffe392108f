"""Worth of people who said yes: RMSE of hidden ratings of all others, with their rows and without.

    SKDPMF_DATA=folder python benchmarks/bench_public.py --seeds 3
    python benchmarks/bench_public.py --data ml-1m.parquet --kinds raters genre half

A share of the users is public, drawn for each seed, or ("raters") those with the most ratings, or
("genre") those with the largest share of horror films; "half" are random people who have rated half
of the items, on another scale. A tenth of the ratings is hidden from everybody. The shortfall is
against the better one of the two parts alone. Prints Markdown tables.
"""

from itertools import product

import numpy as np
from harness import data_path, parser, print_head, print_row
from ratings import budget_of, public_share, split
from scipy import sparse

from skdpmf import AdaptiveWeightALS, DPCovarianceRecommender, DPItemMeans, DPMFSampler
from skdpmf.data import item_features, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.evaluation import rmse

KNOWN = AdaptiveWeightALS, DPItemMeans, DPCovarianceRecommender, DPMFSampler
ESTIMATORS = {kind.__name__: kind for kind in KNOWN}
KINDS = ["random", "raters", "genre", "half"]
PARSER = parser(
    __doc__,
    data=None,
    items=None,
    seeds=3,
    shares=[0.05, 0.1, 0.2],
    epsilons=[0.5, 1.0, 4.0],
    estimators=ESTIMATORS,
    kinds=KINDS,
)


def public_people(kind, X, share, seed, horror):
    """Return who is public, and their rows."""
    n_users, size = X.shape[0], round(share * X.shape[0])
    number = np.maximum(np.diff(X.indptr), 1)
    if kind in ("raters", "genre"):
        ones = sparse.csr_array((np.ones(X.nnz), X.indices, X.indptr), X.shape)
        order = number if kind == "raters" else (ones @ horror) / number
        chosen = np.zeros(n_users, bool)
        chosen[np.argsort(-order, kind="stable")[:size]] = True
        return chosen, X[chosen]
    chosen = public_share(n_users, share, seed)
    rows = X[chosen]
    if kind == "half":
        rows = rows.tocoo()
        kept = rows.col % 2 == 0
        entries = 0.5 * rows.data[kept] + 1.5, (rows.row[kept], rows.col[kept])
        rows = sparse.csr_array(entries, rows.shape)
    return chosen, rows


def error_of(kind, epsilon, seed, X, known, hidden, **settings):
    model = kind(budget_of(epsilon), random_state=seed, **settings).fit(X)
    return rmse(hidden, model.predict_entries(known, hidden))


def compared(kind, epsilon, X, Y, people, **settings):
    """Return the errors with public people, without them, and of them alone; and the shortfall."""
    found = []
    for seed, (public, rows) in enumerate(people):
        known, hidden = X[~public], Y[~public]
        with_them = error_of(kind, epsilon, seed, known, known, hidden, public=rows, **settings)
        without = error_of(kind, epsilon, seed, known, known, hidden, **settings)
        alone = error_of(kind, np.inf, seed, rows, known, hidden, **settings)
        found.append((with_them, without, alone))
    both, without, alone = np.mean(found, axis=0)
    return f"{both:.4f} ({without:.4f} / {alone:.4f}) {both - min(without, alone):+.4f}"


def main():
    options = PARSER.parse_args()
    path = data_path(options)
    frame = read_ratings(path)
    X, Y = split(frame, 0)
    films = read_items(options.items or path.with_name("ml-1m-items.parquet"))
    films = films.set_index("item").loc[np.unique(frame["item"])].reset_index()
    features, horror = item_features(films), films["genres"].str.contains("Horror").to_numpy()
    variants = {"": None, ", genres and years": features.to_numpy()}
    for name in options.estimators:
        kind = ESTIMATORS[name]
        print(f"\n{name}: with public people (without them / public alone), shortfall\n")
        print_head("public", "share", *[f"epsilon {epsilon:g}" for epsilon in options.epsilons])
        for who, label, share in product(options.kinds, variants, options.shares):
            if label and who != "random":
                continue
            people = [public_people(who, X, share, s, horror) for s in range(options.seeds)]
            given = {"people": people, "item_features": variants[label]}
            cells = (compared(kind, epsilon, X, Y, **given) for epsilon in options.epsilons)
            print_row(who + label, share, *cells)


if __name__ == "__main__":
    main()
