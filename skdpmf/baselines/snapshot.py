"""Snapshots of a fit in progress: one file, replaced as a whole or not at all."""

import glob
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from skdpmf.data.files import replaced_file

__all__ = ["Snapshot"]


class Snapshot:
    """One file that holds the arrays and the progress of a fit.

    The purpose tells the fit's settings and ratings: a snapshot of another purpose is refused.
    """

    def __init__(self, path: Any, purpose: str) -> None:
        self.path = Path(path)
        self.purpose = purpose

    def save(self, progress: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Write a snapshot; a crash at any moment leaves the last one or this one."""
        head = json.dumps({"purpose": self.purpose, **progress})
        with replaced_file(self.path, mode=0o600) as file:  # it holds users' factors
            np.savez(file, head=np.array(head), **arrays)  # type: ignore[arg-type]

    def load(self, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
        """Fill the arrays from the last snapshot and return its progress; None without one."""
        if not self.path.exists():
            return None
        try:
            if not self.path.is_file():  # a pipe would never end
                raise ValueError("it is no regular file")
            # opened here: given a path, NumPy leaves a broken file open
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                progress = dict(json.loads(str(saved["head"])))
                found = {name: saved[name] for name in arrays}
        except Exception as error:
            raise ValueError(
                f"snapshots.path={os.fspath(self.path)!r} holds no snapshot that can be read "
                f"({error}): delete the file to start from the beginning."
            ) from error
        shapes = {name: array.shape for name, array in arrays.items()}
        if progress.pop("purpose", None) != self.purpose or any(
            found[name].shape != shape for name, shape in shapes.items()
        ):
            raise ValueError(
                f"snapshots.path={os.fspath(self.path)!r} holds a snapshot of another fit, with "
                "other parameters (n_jobs among them) or ratings: delete the file to start from "
                "the beginning, or name another one."
            )
        for name, array in arrays.items():
            array[...] = found[name]
        return dict(progress)

    def clear(self) -> None:
        """Remove the file: the fit is complete. And what a killed process was writing."""
        for part in self.path.parent.glob(f"{glob.escape(self.path.name)}.*.part"):
            part.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
