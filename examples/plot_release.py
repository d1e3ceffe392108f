"""
From ratings to a release that somebody can sign
================================================

One data set has one limit. A private search chooses a hyper-parameter; a pipeline bounds each
user's contribution, keeps the items that are popular by noisy counts, and fits a recommender; a
ledger keeps search and fits within the limit; an audit attacks the claim; a card lists the
releases::

    python examples/plot_release.py --data ml-1m.parquet

The search is one line of the ledger, however many trials it draws. Rule "zcdp" takes searches with
Gaussian noise beside fits. The example takes half a minute with MovieLens 1M.
``plot_private_search.py`` looks closer at the choice and the cost of such a search, and
``plot_pipeline_ledger.py`` at a month of pipelines within one limit.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.pipeline import make_pipeline

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyCard, PrivacyLedger, privacy_spent
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import AuditDisplay, PrivateSearchCV, rmse, split_ratings
from skdpmf.exceptions import BudgetExceededError
from skdpmf.preprocessing import ContributionBounder, DPItemSelector

STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
LIMIT = PrivacyBudget(6.0, 1e-5)
SEARCH, FITS = PrivacyBudget(1.8, 5e-6), PrivacyBudget(4.0, 5e-6)
EXPONENTS = [0.0, 0.25, 0.5]


def load(options):
    """Return training and test ratings, of the file or made up: a tenth is held out."""
    if options.data is None:
        ratings = make_ratings(*options.shape, random_state=0)
    else:
        ratings = ratings_to_matrix(read_ratings(options.data)).X
    return split_ratings(ratings, random_state=0)


def print_table(names, rows):
    """Print aligned columns, as Markdown."""
    cells = [names, *([f"{x:.4g}" if isinstance(x, float) else str(x) for x in r] for r in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    for row in cells:
        aligned = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("| " + " | ".join(aligned) + " |")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--data", type=Path, help="ratings file; without one, made-up ratings")
    parser.add_argument("--output", type=Path, default=Path("release.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=8, help="largest rank")
    options = parser.parse_args(arguments)
    X, Y = load(options)
    settings = {"n_components": options.n_components, "n_jobs": options.n_jobs}

    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder) / "ratings.ledger", limit=LIMIT, rule="zcdp")
        granted = PrivacyBudget(SEARCH.epsilon, SEARCH.delta, ledger=ledger)
        print("private search ...", file=sys.stderr)
        template = AdaptiveWeightALS(granted, **settings)
        grid = {"solver__weight_exponent": EXPONENTS}
        search = PrivateSearchCV(template, grid, granted, n_trials=3)
        search.fit(X)

        granted = PrivacyBudget(FITS.epsilon, FITS.delta, ledger=ledger)
        counts, model = granted.split([0.1, 0.9])
        print("fit ...", file=sys.stderr)
        recommender = AdaptiveWeightALS(model, **settings).set_params(**search.best_params_)
        pipeline = make_pipeline(
            ContributionBounder(max_ratings_per_user=500),
            DPItemSelector(counts, n_items=0.8),
            recommender,
        ).fit(X)
        print(ledger.report(), end="\n\n")
        try:
            AdaptiveWeightALS(granted, **settings).fit(X)
        except BudgetExceededError as error:
            print(f"One fit more is refused: {error}\n")

    kept = pipeline[1].support_
    fitted = pipeline[2]
    spent = privacy_spent([search, pipeline])
    error = rmse(Y[:, kept], fitted.predict_entries(pipeline[:2].transform(X), Y[:, kept]))
    print_table(
        ["chosen exponent", "items kept", "test RMSE", "epsilon", "delta"],
        [
            (
                search.best_params_["solver__weight_exponent"],
                int(kept.sum()),
                error,
                spent.epsilon,
                spent.delta,
            )
        ],
    )

    card = PrivacyCard.of(spent, model="items and factors of the pipeline")
    path = options.output.with_suffix(".md")
    path.write_text(card.to_markdown(), encoding="utf-8")
    options.output.with_suffix(".json").write_text(card.to_json(), encoding="utf-8")
    print(f"wrote {path} and its JSON; audit ...", file=sys.stderr)

    plt.style.use(STYLE)
    claim = AdaptiveWeightALS(FITS, **settings).set_params(**search.best_params_)
    display = AuditDisplay.from_estimator(claim, X, n_neighbors=12, n_runs=20, n_canaries=40)
    print(f"\n{display.report}")
    display.figure_.savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
