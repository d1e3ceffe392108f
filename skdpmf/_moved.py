"""Public names of before: found where they were for one release, with a warning."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

__all__ = ["names_of_before"]


def names_of_before(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return ``__getattr__`` of a package, for names that are elsewhere now.

    A place is a module, or "module:function:argument" for a function that took the name's place
    with this first argument.
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, function, argument = f"{places[name]}::".split(":")[:3]
        if function:
            words = f"{function}({argument!r}, ...) of {module} does its work."
        elif module == "skdpmf":
            words = f"import {name} from skdpmf."
        else:
            words = f"it is no public name any more; import it from {module}, which may change."
        warnings.warn(f"{package}.{name} has moved: {words}", FutureWarning, stacklevel=2)
        found = getattr(importlib.import_module(module), function or name)
        return partial(found, argument) if function else found

    return find
