"""What a picture shows: pixels at data positions, and whether text is whole and apart."""

import numpy as np
from matplotlib.colors import to_rgb


def render(figure):
    """Pixels of a figure, (height, width, 3) in 0 .. 255."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


def close_to(pixels, colour, tolerance=40):
    """Whether each pixel has a colour, but for what smoothing of edges does."""
    return np.abs(pixels - 255 * np.array(to_rgb(colour))).max(axis=-1) <= tolerance


def boxes(figure):
    """Boxes in pixels, by name, of everything written that is in view, and of the legends."""
    found = {}
    for n, ax in enumerate(figure.axes):
        texts = [ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
            texts += [label for at, label in ticks if low <= at <= high]
        found |= {f"{n}.{i} {t.get_text()}": t for i, t in enumerate(texts) if t.get_text()}
        if ax.get_legend() is not None:
            found[f"{n} legend"] = ax.get_legend()
    return {name: artist.get_window_extent() for name, artist in found.items()}


def faults(figure):
    """Whatever is written across the edge of the figure, or across something else written."""
    image = render(figure)
    written = boxes(figure)
    height, width, _ = image.shape
    found = [
        f"{name!r} is cut off"
        for name, box in written.items()
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]
    names = list(written)
    found += [
        f"{a!r} lies across {b!r}"
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if written[a].overlaps(written[b])
    ]
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    return found + ([] if close_to(edge, "white").all() else ["ink at the edge"])
