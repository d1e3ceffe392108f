"""Names that moved to the top: they are found where they were for one release, with a warning."""

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["moved_to_the_top"]


def moved_to_the_top(module: str, names: tuple[str, ...]) -> Callable[[str], Any]:
    """Return ``__getattr__`` of a module, for names that `skdpmf` itself offers now."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} has moved: import {name} from skdpmf.", FutureWarning, stacklevel=2
        )
        import skdpmf

        return getattr(skdpmf, name)

    return find
