"""Public names of packages, imported when they are first used: nobody waits for the others."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, places: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    places: the names of each module in it; a module with its own name is a name itself.
    """
    homes = {name: module for module, names in places.items() for name in names}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(f"{package}.{homes[name]}")
        found = home if name == homes[name] else getattr(home, name)
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*vars(sys.modules[package]), *homes})
