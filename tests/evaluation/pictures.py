"""What a picture shows: pixels at data positions, and whether text is whole and apart."""

import numpy as np
from matplotlib.colors import to_rgb

# linear RGB as seen without one kind of cone: Machado, Oliveira, Fernandes (2009), severity 1
CONES = {
    "all": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def render(figure):
    """Pixels of a figure, (height, width, 3) in 0 .. 255."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


def place(image, ax, x, y):
    """Row and column of a point of the data."""
    column, height = ax.transData.transform((x, y))
    return round(image.shape[0] - 1 - height), round(column)


def window(image, ax, x, y, size=1):
    """Pixels around a point of the data, (n, 3)."""
    row, column = place(image, ax, x, y)
    part = image[row - size : row + size + 1, column - size : column + size + 1]
    return part.reshape(-1, 3)


def close_to(pixels, colour, tolerance=40):
    """Whether each pixel has a colour, but for what smoothing of edges does."""
    return np.abs(pixels - 255 * np.array(to_rgb(colour))).max(axis=-1) <= tolerance


def has(image, ax, x, y, colour):
    """Whether the colour is at a point of the data, to a pixel."""
    return close_to(window(image, ax, x, y), colour).any()


def is_blank(image, ax, x, y):
    """Whether a point of the data is white, with its neighbours."""
    return close_to(window(image, ax, x, y), "white").all()


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


def least_difference(colours, cones):
    """Smallest distance (CIE 1976, L*a*b*) of two colours, as seen with some of the cones."""
    rgb = np.array([to_rgb(colour) for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ CONES[cones].T, 0.0, 1.0)
    xyz = (
        linear
        @ np.array(  # of sRGB, over the white of D65
            [
                [0.4124, 0.3576, 0.1805],
                [0.2126, 0.7152, 0.0722],
                [0.0193, 0.1192, 0.9505],
            ]
        ).T
        / [0.9505, 1.0, 1.089]
    )
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    lab = np.column_stack(
        (116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2]))
    )
    gaps = np.linalg.norm(lab[:, None] - lab[None], axis=2)
    return gaps[~np.eye(len(gaps), dtype=bool)].min()
