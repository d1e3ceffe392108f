"""The default fits with one tuned number changed: which of them earn their place?

    python benchmarks/bench_ablation.py --models covariance clicks --epsilons 1 4 --seeds 2
    python benchmarks/bench_ablation.py --models ratings --module als.pooled --changes one

The numbers are read from the `# Tuned:` headings of the mechanisms. Each of them in its turn is
halved, doubled or set to 1 in all modules that import it; what was computed from it stays. A table
has the rise of the test RMSE in quarters of the rating range, or the loss of Recall@20 from clicks,
averaged over shapes, and its standard error over noise seeds.
"""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
from bench_clicks import SYNTHETIC
from bench_shapes import SETS, TEN, small
from harness import parser, print_head, print_row
from ratings import budget_of

import skdpmf
from skdpmf.evaluation import recall_at_k, split_ratings

LONG = {"long tail, 8,000 x 1,000": small((8000, 1000), 64_000, TEN, (0.5, 0.5, 0.6, 0.7), 1.1)}
# Estimator, and the mechanisms whose numbers a default fit uses
MODELS = {
    "ratings": ("AdaptiveWeightALS", ("als", "item_means", "common", "gram.item_item")),
    "means": ("DPItemMeans", ("item_means",)),
    "sampler": ("DPMFSampler", ("noisy_gradient", "item_means", "common")),
    "covariance": ("DPCovarianceRecommender", ("gram.covariance", "item_means")),
    "clicks": ("DPCovarianceRecommender", ("gram.item_item", "item_means.popularity")),
    "devices": ("LocalDPGDDR", ("device_reports", "item_means")),
}
CHANGES = {"half": lambda x: x / 2, "double": lambda x: 2 * x, "one": lambda _: 1.0}
PARSER = parser(
    __doc__,
    models=MODELS,
    epsilons=[0.5, 1.0, 4.0, 20.0],
    seeds=3,
    changes=CHANGES,
    module="",  # a part of its name; default: all
    shapes=["exactly of rank 3", "943 x 1,682", "long tail, 8,000"],
    clicks=["small", "popular"],
)


def tuned_numbers(path):
    """Yield names under a `# Tuned:` heading of a module, up to a blank line."""
    text = re.sub(r"\n(# (?:Fixed|Guard): )", r"\n\n\1", path.read_text(encoding="utf-8"))
    for block in re.findall(r"^# Tuned: (?:.+\n)+", text, re.MULTILINE):
        for names in re.findall(r"^([A-Z_][A-Z_, ]*)(?:: .*)? = ", block, re.MULTILINE):
            yield from names.split(", ")


def changes(value, options):
    """Yield (label, new value) for each number of a constant, one number at a time."""
    parts = value if isinstance(value, (tuple, dict)) else (value,)
    for key in parts if isinstance(value, dict) else range(len(parts)):
        old = parts[key]
        for changed in (type(old)(CHANGES[change](old)) for change in options.changes):
            if changed != old and isinstance(value, dict):
                yield f"{key}: {old:g} to {changed:g}", value | {key: changed}
            elif changed != old:
                whole = tuple(changed if i == key else x for i, x in enumerate(parts))
                yield f"{old:g} to {changed:g}", whole if isinstance(value, tuple) else changed


def losses(name, options, data):
    """Return the loss by shape, epsilon and seed."""
    out = np.empty((len(data), len(options.epsilons), options.seeds))
    estimator = getattr(skdpmf, MODELS[name][0])
    relation = {"delta": 0.0, "neighbors": "replace"} if name == "devices" else {}
    for i, j, seed in np.ndindex(*out.shape):
        (X, Y), more, unit = data[i]
        budget = budget_of(options.epsilons[j], **relation)
        model = estimator(budget, random_state=seed, **more).fit(X)
        out[i, j, seed] = (
            model.score(X, Y) / -unit if unit else -recall_at_k(Y, model.recommend(X, 20)[0], 20)
        )
    return out


def data_of(name, options):
    """Return known and hidden entries, parameters of the fit, and a unit of its errors."""
    if name == "clicks":
        made = [(SYNTHETIC[shape](0), {"feedback": "implicit"}, None) for shape in options.clicks]
    else:
        chosen = [v for k, v in (SETS | LONG).items() if any(s in k for s in options.shapes)]
        made = [(f(), {"rating_range": r}, (r[1] - r[0]) / 4.0) for f, r in chosen]
    return [(split_ratings(R, random_state=0), *more) for R, *more in made]


def rows_of(name, options):
    """Yield number, change and difference of losses for each change of a model."""
    data = data_of(name, options)
    base, folder = losses(name, options, data), Path(skdpmf.__file__).parent / "mechanisms"
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        used = module.startswith(MODELS[name][1])
        for number in tuned_numbers(path) if used and options.module in module else ():
            old = getattr(importlib.import_module(f"skdpmf.mechanisms.{module}"), number)
            users = [m for key, m in sys.modules.items() if key.startswith("skdpmf")]
            users = [m for m in users if vars(m).get(number) is old]
            for label, new in changes(old, options):
                for user in users:
                    setattr(user, number, new)
                yield f"{module}.{number}", label, losses(name, options, data) - base
            for user in users:
                setattr(user, number, old)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    for name in options.models:
        print(f"{name}: {MODELS[name][0]}, {options.seeds} noise seeds\n")
        print_head("number", "change", *map("{:g}".format, options.epsilons), "worst shape")
        for number, label, found in rows_of(name, options):
            seeds = found.mean(axis=0)
            error = seeds.std(axis=1, ddof=min(1, options.seeds - 1)) / options.seeds**0.5
            cells = (f"{m:+.4f} ± {e:.4f}" for m, e in zip(seeds.mean(axis=1), error, strict=True))
            print_row(number, label, *cells, f"{found.mean(axis=2).max():+.4f}")
        print()


if __name__ == "__main__":
    main()
