"""Slow twin of skdpmf.kernels.topk: sorts everything."""

import math


def top_k_row(scores, seen, n_recommendations):
    """Items and scores of one row: by falling score, then by rising item index."""
    open_items = [
        (-float(s), j)
        for j, s in enumerate(scores)
        if j not in seen and not math.isnan(s) and s > -math.inf
    ]
    best = sorted(open_items)[:n_recommendations]
    gap = n_recommendations - len(best)
    return [j for _, j in best] + [-1] * gap, [-s for s, _ in best] + [-math.inf] * gap
