"""What a release will draw, from public values."""

import numpy as np

from skdpmf.privacy.sampler.grid import release_grid


def noise_parameters(shape, **terms):
    """Scale, units of all places of a row, and bits of what `NoiseSource.release` will draw."""
    grid = release_grid(shape, **terms)
    if terms.get("layout", "full") == "full":
        return grid.scale, np.array(grid.units[:1]), grid.bits
    units = np.full(shape[-1], grid.units[1])
    units[np.cumsum(np.arange(1, grid.order + 1)) - 1] = grid.units[0]
    return grid.scale, units, grid.bits
