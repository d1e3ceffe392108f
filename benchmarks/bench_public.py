"""Worth of people who said yes: RMSE of hidden ratings of all others, with their rows and without.

    SKDPMF_DATA=folder python benchmarks/bench_public.py --seeds 3 --epsilons 0.5 1 4
    python benchmarks/bench_public.py --data ml-1m.parquet --kinds raters genre half
    python benchmarks/bench_public.py --grid --seeds 1

A share of the users is public, drawn for each seed, or ("raters") those with the most ratings, or
("genre") those with the largest share of horror films; "half" are random people who have rated half
of the items, on another scale. A tenth of the ratings of private people is hidden. The shortfall is
against the better one of the two parts alone. Prints Markdown tables.

The grid has the shortfalls of every private recommender on made-up sets and on the file's, at all
shares and epsilons: of the RMSE beyond .002, and of the Recall@20 of clicks beyond .003, bold.
"""

from itertools import product

import numpy as np
from harness import data_path, parser, print_head, print_row
from ratings import KINDS as ESTIMATORS
from ratings import budget_of, liked_of, public_share, split
from scipy import sparse

from skdpmf import DPCovarianceRecommender, LocalDPGDDR
from skdpmf.data import item_features, make_ratings, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.evaluation import recall_at_k, rmse, split_ratings

SETS = {  # users, items, density and deviation of factors
    "300 x 40": (300, 40, 0.2, 0.55),
    "1,500 x 60, weak factors": (1500, 60, 0.3, 0.25),
    "3,000 x 400": (3000, 400, 0.06, 0.55),
}
CLICKS = {"feedback": "implicit"}
KINDS = ["random", "raters", "genre", "half"]
PARSER = parser(
    __doc__,
    data=None,
    items=None,
    seeds=3,
    shares=[0.005, 0.02, 0.05, 0.1, 0.2, 0.5],
    epsilons=[0.1, 0.5, 1.0, 4.0, 20.0],
    estimators=ESTIMATORS,
    kinds=KINDS,
    grid=False,
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
    most = 10.0 if kind is LocalDPGDDR and np.isfinite(epsilon) else np.inf  # reports take long
    model = kind(budget_of(min(epsilon, most)), random_state=seed, **settings).fit(X)
    if model._implicit:
        return -recall_at_k(hidden, model.recommend(known, 20)[0], 20)
    return rmse(hidden, model.predict_entries(known, hidden))


def errors(kind, epsilon, X, Y, people, **settings):
    """Return the errors with public people, without them, and of them alone."""
    found = []
    for seed, (public, rows) in enumerate(people):
        known, hidden = X[~public], Y[~public]
        with_them = error_of(kind, epsilon, seed, known, known, hidden, public=rows, **settings)
        without = error_of(kind, epsilon, seed, known, known, hidden, **settings)
        alone = error_of(kind, np.inf, seed, rows, known, hidden, **settings)
        found.append((with_them, without, alone))
    return np.mean(found, axis=0)


def compared(*given, **settings):
    """Return these errors, and the shortfall."""
    both, without, alone = errors(*given, **settings)
    return f"{both:.4f} ({without:.4f} / {alone:.4f}) {both - min(without, alone):+.4f}"


def grid(options, path):
    """Print the shortfalls."""
    sets = {} if path is None else {"MovieLens 1M": split(read_ratings(path), 0)}
    for name, (*shape, density, std) in SETS.items():
        made = make_ratings(*shape, density=density, factor_std=std, random_state=0)
        sets[name] = split_ratings(made, random_state=0)
    kinds = [(kind, {}, 0.002) for kind in map(ESTIMATORS.get, options.estimators)]
    for kind, settings, most in [*kinds, (DPCovarianceRecommender, CLICKS, 0.003)]:
        print(f"\n{kind.__name__}{', clicks' if settings else ''}\n")
        print_head("set", "public", *[f"epsilon {epsilon:g}" for epsilon in options.epsilons])
        for (name, parts), share in product(sets.items(), options.shares):
            X, Y = map(liked_of, parts) if settings else parts
            people = [public_people("random", X + Y, share, s, None) for s in range(options.seeds)]
            found = [
                errors(kind, epsilon, X, Y, people, **settings) for epsilon in options.epsilons
            ]
            short = [both - min(others) for both, *others in found]
            cells = (f"**{one:+.4f}**" if one > most else f"{one:+.4f}" for one in short)
            print_row(name, f"{100 * share:g} %", *cells)


def main():
    options = PARSER.parse_args()
    path = data_path(options)
    if options.grid:
        grid(options, path)
        return
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
            people = [public_people(who, X + Y, share, s, horror) for s in range(options.seeds)]
            given = {"people": people, "item_features": variants[label]}
            cells = (compared(kind, epsilon, X, Y, **given) for epsilon in options.epsilons)
            print_row(who + label, share, *cells)


if __name__ == "__main__":
    main()
