"""Processes that tests start use kept kernels: tests/kernel_cache.py puts this on their path.

Python imports a module of this name at its start. It imports numba nowhere, and waits until the
process does.
"""

import os
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))


class Finder:
    """Runs tests/kernel_cache.py as soon as numba's caching is there, and before any kernel."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "numba.core.caching":
            return None
        sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_and_patch(module):
            execute(module)
            run("skdpmf_kernel_cache", os.path.join(os.path.dirname(HERE), "kernel_cache.py"))

        spec.loader.exec_module = execute_and_patch
        return spec


def run(name, path):
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, path)
    spec.loader.exec_module(module_from_spec(spec))


def run_the_hidden_one():
    """Run the sitecustomize that this one hides, if there is one."""
    others = [place for place in sys.path if os.path.abspath(place) != HERE]
    spec = PathFinder.find_spec(__name__, others)
    if spec is not None:
        run(__name__, spec.origin)


if __name__ == "sitecustomize":  # and not tests.site.sitecustomize, as pytest has it
    if os.environ.get("SKDPMF_KERNELS"):
        sys.meta_path.insert(0, Finder)
    run_the_hidden_one()
