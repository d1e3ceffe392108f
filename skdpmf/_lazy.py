"""Public names of packages, imported when they are first used: nobody waits for the others."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, *paths: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    paths: dotted path of each name from the package on; one word is a subpackage.
    """
    homes = {path.rpartition(".")[2]: path.rpartition(".")[0] for path in paths}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = import_module(f"{package}.{homes[name] or name}")
        found = getattr(found, name) if homes[name] else found
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*vars(sys.modules[package]), *homes})
