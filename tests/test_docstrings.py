"""Public names and their docstrings: true to the signature, with shapes, errors and examples."""

import functools
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from types import ModuleType

from numpydoc.docscrape import ClassDoc, FunctionDoc
from numpydoc.validate import validate

import skdpmf

from . import house
from .test_house import MODULES, assert_none

DOCSTRING_RULES = {
    "GL06": "unknown section",
    "GL07": "sections in the wrong order",
    "GL08": "no docstring",
    "SS02": "summary does not start with a capital",
    "SS03": "summary does not end with a period",
    "SS06": "summary longer than a line",
    "PR01": "parameter not documented",
    "PR02": "unknown parameter documented",
    "PR03": "parameters in another order",
    "PR04": "parameter without type",
    "PR07": "parameter without description",
    "PR10": "no space before the colon",
    "RT01": "no Returns section",
    "RT03": "return value without description",
}


# Inside the package a docstring may be shorter, but what it says of the parameters must be true.
INTERNAL_RULES = {"GL06", "GL07", "GL08", "SS02", "SS03", "SS06", "PR02", "PR03"}
API_MODULES = [
    "skdpmf",
    *(f"skdpmf.{part}" for part in ("data", "preprocessing", "evaluation", "privacy")),
    *(f"skdpmf.{part}" for part in ("local", "exceptions")),
]


@functools.cache
def api_names() -> set[str]:
    """Return the dotted names of the API."""
    return set(public_objects(API_MODULES))


def is_internal(name: str) -> bool:
    """Return whether a dotted name is for the package alone."""
    return name.startswith("skdpmf.") and name not in api_names()


def public_modules() -> list[str]:
    """Return the names of the modules without an underscore in their path."""
    found = pkgutil.walk_packages(skdpmf.__path__, "skdpmf.")
    return ["skdpmf", *(m.name for m in found if "._" not in m.name)]


def is_record(obj: object) -> bool:
    """Return whether a class is a dataclass or a named tuple, whose fields are its attributes."""
    return inspect.isclass(obj) and (
        hasattr(obj, "__dataclass_fields__") or (issubclass(obj, tuple) and hasattr(obj, "_fields"))
    )


def names_of(module: ModuleType) -> list[str]:
    """Return the names that a module has for others: its ``__all__``, or those that it defines."""
    own = [
        name
        for name, obj in vars(module).items()
        if not name.startswith("_") and getattr(obj, "__module__", "") == module.__name__
    ]
    return getattr(module, "__all__", own)


def public_objects(module_names: list[str]) -> dict[str, object]:
    """Return all public functions, classes and own methods and properties, by dotted name."""
    objects: dict[str, object] = {}
    for module_name in module_names:
        module = importlib.import_module(module_name)
        for name in names_of(module):
            obj = getattr(module, name, None)  # test_public_names_exist complains of None
            home = getattr(obj, "__module__", "")
            if inspect.ismodule(obj) or not home.startswith("skdpmf") or not callable(obj):
                continue
            objects[f"{home}.{name}"] = obj
            if inspect.isclass(obj):
                objects.update(
                    (f"{home}.{name}.{member}", value) for member, value in vars_of(obj).items()
                )
    return objects


def vars_of(cls: type) -> dict[str, object]:
    """Return the public methods and properties that the package defines on a class."""
    found = {}
    for name, value in inspect.getmembers_static(cls):
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        own = str(getattr(function, "__module__", "")).startswith("skdpmf")
        if own and callable(function) and not name.startswith("_") and not inspect.isclass(value):
            found[name] = value
    return found


def docstring_errors(name: str, obj: object) -> list[str]:
    """Return where the docstring of `obj`, importable as `name`, departs from the rules."""
    if is_internal(name) and "\n---" not in (inspect.getdoc(obj) or ""):
        summary = (inspect.getdoc(obj) or "").partition("\n\n")[0]  # numpydoc takes its time
        is_one = isinstance(obj, property) or re.fullmatch(r"\W*[^a-z\W].*\.", summary)
        return [] if is_one else [f"{name}: no summary in a line"]
    rules = INTERNAL_RULES if is_internal(name) else set(DOCSTRING_RULES)
    if "Parameters\n" in (inspect.getdoc(obj) or ""):
        rules = rules | {"PR01"}
    if is_record(obj):
        rules = rules - {"PR01"}
    errors = [(code, text) for code, text in validate(name)["errors"] if code in rules]
    if is_record(obj) and rules > INTERNAL_RULES and undocumented_fields(obj):
        errors.append(("PR01", f"fields {undocumented_fields(obj)} not documented"))
    return [f"{name}: {code} {text}" for code, text in errors]


def undocumented_fields(record: type) -> list[str]:
    """Return the fields of a record that stand neither under Parameters nor under Attributes."""
    doc = ClassDoc(record)
    entries = [*doc["Parameters"], *doc["Attributes"]]
    documented = {name.strip() for entry in entries for name in entry.name.split(",")}
    fields = getattr(record, "__dataclass_fields__", None) or record._fields
    return [name for name in fields if not name.startswith("_") and name not in documented]


def test_docstrings_follow_the_signatures():
    objects = public_objects(public_modules())
    assert len(objects) > 30
    assert_none([e for name, obj in objects.items() for e in docstring_errors(name, obj)])


def public_definitions() -> list[tuple[str, set[str], set[str]]]:
    """Return path, names of classes and functions of the API, and names of their bases only."""
    names, bases = defaultdict(set), defaultdict(set)
    for module in map(importlib.import_module, API_MODULES):
        for obj in (getattr(module, name) for name in module.__all__):
            if inspect.isfunction(obj):
                names[obj.__module__].add(obj.__name__)
            # what an error means stands where it is raised
            elif inspect.isclass(obj) and not issubclass(obj, BaseException):
                for base in obj.__mro__:
                    bases[base.__module__].add(base.__name__)
                names[obj.__module__].add(obj.__name__)
    return [
        (path if path in MODULES else path.replace(".py", "/__init__.py"), names[module], found)
        for module in sorted({*names, *bases})
        if module.startswith("skdpmf.")
        for path in [f"{module.removeprefix('skdpmf.').replace('.', '/')}.py"]
        for found in [bases[module] - names[module]]
    ]


def test_examples_show_every_public_name():
    public = public_definitions()
    assert sum(len(names) for _, names, _ in public) > 50
    assert_none(
        [
            f"skdpmf/{path}:{text}"
            for path, names, bases in public
            for text in house.example_violations(MODULES[path].read_text("utf-8"), names, bases)
        ]
    )


def test_docstrings_say_what_is_raised():
    assert_none(
        [
            f"skdpmf/{path}:{text}"
            for path, names, bases in public_definitions()
            for text in house.raises_violations(MODULES[path].read_text("utf-8"), names | bases)
        ]
    )


def test_shared_texts_are_filled_in():
    names = re.compile(r"^ *\{[\w, ]+\}$", flags=re.M)
    objects = public_objects(API_MODULES)
    assert_none([name for name, obj in objects.items() if names.search(inspect.getdoc(obj) or "")])


ARRAY = re.compile(r"ndarray|array-like|csr_array|matrix\b")


def arrays_without_shape(obj: object) -> list[str]:
    """Return what a docstring takes or gives as an array and does not state the shape of."""
    doc = ClassDoc(obj) if inspect.isclass(obj) else FunctionDoc(getattr(obj, "__func__", obj))
    return [
        f"{section}: {entry.name or entry.type}"
        for section in ("Parameters", "Attributes", "Returns", "Yields")
        for entry in doc[section]
        if ARRAY.search(entry.type) and not re.search("shape", " ".join([entry.type, *entry.desc]))
    ]


def test_arrays_have_shapes():
    objects = public_objects(API_MODULES)
    assert_none(
        [
            f"{name}: {text}"
            for name, obj in objects.items()
            if not isinstance(obj, property)
            for text in arrays_without_shape(obj)
        ]
    )


DOCUMENTED = '''
class Thing:
    """Be.

    Raises
    ------
    RuntimeError
        By any method, in a fork.

    Examples
    --------
    >>> Thing().method(1)
    """

    def __init__(self):
        raise RuntimeError("fork")

    def method(self, x):
        """Do."""
        self._check()

    @abstractmethod
    def todo(self):
        """Do."""

    def _check(self):
        raise RuntimeError("fork")
'''


def test_planted_undocumented_example_or_error_is_noticed():
    def found(old="", new=""):
        assert old in DOCUMENTED
        source = DOCUMENTED.replace(old, new)
        examples = house.example_violations(source, {"Thing"}, set())
        return len(examples), len(house.raises_violations(source, {"Thing"}))

    assert found() == (0, 0)
    assert found(".method(1)", "") == (1, 0)
    assert found(">>> Thing().method(1)", "") == (2, 0)
    assert found("    @abstractmethod\n", "") == (1, 0)
    assert found("Raises\n    ------\n    RuntimeError", "RuntimeError") == (0, 2)
    assert found("By any method, in", "In") == (0, 1)


def badly_documented(a, b):
    """Return the first.

    Parameters
    ----------
    b : ndarray
        The second.
    c : ndarray of shape (n,)
        Nothing.
    """
    return a


def test_planted_docstring_is_noticed():
    errors = docstring_errors(f"{__name__}.badly_documented", badly_documented)
    assert {error.split()[1] for error in errors} == {"PR01", "PR02", "RT01"}
    assert arrays_without_shape(badly_documented) == ["Parameters: b"]


def test_public_names_exist():
    assert skdpmf.__all__
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        names = getattr(module, "__all__", [])
        assert len(set(names)) == len(names), module_name
        assert [name for name in names if not hasattr(module, name)] == [], module_name
