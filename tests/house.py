"""Readers of source text behind test_house.py and test_docstrings.py: each returns violations.

A violation is a string "line: what". All work on syntax trees, so that nothing is imported or run.
"""

import ast
import functools
import itertools
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

PACKAGE = "skdpmf"

# Which parts of the package a part may import; "" stands for the modules at the top, such as the
# demo. Everything may import `exceptions`.
LAYERS = {
    "exceptions": set(),
    "privacy": set(),  # and `kernels`, for the modules of the sums
    "kernels": set(),
    "data": set(),
    "mechanisms": {"kernels", "privacy", "data"},
    "books": {"mechanisms", "privacy", "data"},
    "local": {"estimators", "mechanisms", "kernels", "privacy", "data"},
    "estimators": {"books", "mechanisms", "kernels", "privacy", "data"},
    "preprocessing": {"estimators", "mechanisms", "privacy", "data"},
    "evaluation": {"estimators", "preprocessing", "books", "mechanisms", "privacy", "data"},
    "commands": {"", "estimators", "evaluation", "books", "privacy", "data"},
    "": {"commands", "data"},
}

# Modules of `privacy` that sum by kernels, and those that hold private values.
SUMMING = {
    f"privacy/{name}.py"
    for name in ("users", "blocks", "clipped_sums", "other_sums", "pair_sensitivity")
}
HOLDING = SUMMING | {"privacy/curator_release.py"}
# Modules of `privacy` whose own loops are compiled, by the one module that does.
COMPILED = {f"privacy/sampler/{name}.py" for name in ("cipher", "laws", "noise", "streams")}
# Names that reach private values; names that Python mangles reach any private attribute.
REACHES = re.compile(
    r"^(reveal|handle_\w+|make_handle|call_map|_HANDLES|__wrapped__|__closure__|f_locals|_[A-Z]\w*?__\w*[^_])$"
)
# Names that only the curator's side makes; estimators and steps of a pipeline make a curator.
HOLDERS = {"PerUser", "Users", "Rows", "BoundedSum", "PiecedSum"}
# devices hold their own rows, and report by randomisers of their own
DEVICES = {"mechanisms/device_reports/item_means.py"}
# trials of a private search, which no plan counts, sum their users' points
TRIALS = "evaluation/private_search.py"
# What begins a fit: names, and the modules that may use them.
FRAME = "privacy/frame.py"
BEGINS = {
    "Curator": {FRAME},
    "curator_of_public": {
        f"mechanisms/{name}.py"
        for name in (
            "item_means/baseline",
            "gram/covariance",
            "als/pooled_public",
            "als/pooled_clicks",
            "noisy_gradient",
        )
    },
    "Frame": {FRAME},
    "framed": {FRAME, "estimators/contract/charged.py", "estimators/multi_task_ridge.py"},
    "record_releases": {"privacy/recording.py", "evaluation/audit.py"},
    "Recorder": {"privacy/recording.py", "evaluation/audit.py"},
    "RecordingNoise": {"privacy/recording.py"},
}
RECORDERS = {"privacy/recording.py", "privacy/sampler/noise.py"}
# Names of keys and what draws by one. Beside the frame: devices, draws from a posterior, private
# search, an audit, subsets, and training without privacy.
KEYS = re.compile(r"^(fresh_key|derived_key|recorded_key|noise_source|NoiseSource)$")
DRAWING = re.compile(
    r"^(privacy/(frame|recording|sampler/noise)|local/"
    r"|mechanisms/(device_reports/|posterior_draw/|private_search|sgd/)|estimators/local_dpgddr"
    r"|evaluation/(audit|_audit_releases|private_search)|preprocessing/bounder)"
)
# Mechanisms that sum, and their estimators: the modules that they may use, and what reads, keeps or
# writes around the curator.
MECHANISM = re.compile(
    r"^(mechanisms/(?!device_reports|posterior_draw|private_search|sgd)|preprocessing/item_selector"
    r"|estimators/(adaptive_weight_als|dp_|dpmf_))"
)
PURE = {"__future__", "abc", "collections", "dataclasses", "fractions", "functools"}
PURE |= {"itertools", "math", "typing"}
AROUND = {"globals", "locals", "open", "print", "eval", "exec", "setattr", "delattr", "compile"}
AROUND |= {"__import__", "__dict__", "__setattr__", "astuple", "asdict", "tofile", "memmap"}
AROUND |= {"setflags", "writeable"}  # arrays that a map gets are read-only
# What a private estimator leaves to the contract, and the two whose mechanisms need rows.
FRAMED = {"_fit", "_fit_rows", "_framed", "_prepared", "_check_ratings", "_columns_of"}
FRAMED |= {"privacy_spent_"}
ROWS = {"estimators/dpmf_sampler.py", "estimators/local_dpgddr.py"}
SETS_STATEMENTS = re.compile(
    r"^(estimators/(contract/|cache_sgd)|preprocessing/item_selector|commands/with_ratings"
    r"|evaluation/(spending|private_search|regressor))"
)
MAPPERS = {"map", "keep", "products"}
# Calls of maps that others notice, and methods that keep what they are given.
SPEAKING = {"open", "print", "warnings", "logging", "os", "sys", "pickle", "setattr"}
KEEPING = {"append", "extend", "add", "update", "setdefault", "tofile", "dump"}
MAPPING = re.compile(r"^(mechanisms/(?!device_reports/privunit|sgd)|preprocessing/)")


# Other packages that a part may import: at its top, and only where they are used.
OUTSIDE = {
    "exceptions": (set(), set()),
    "privacy": ({"numpy", "scipy", "numba"}, {"dp_accounting", "pandas", "cloudpickle", "dask"}),
    "kernels": ({"numpy", "numba", "llvmlite"}, set()),  # and joblib, for threads
    "data": ({"numpy", "scipy", "sklearn"}, {"pandas", "pyarrow", "dask"}),
    "mechanisms": ({"numpy", "scipy", "joblib"}, set()),
    "books": ({"numpy", "scipy"}, {"dp_accounting"}),
    "local": ({"numpy", "scipy", "msgspec"}, set()),
    "estimators": (
        {"numpy", "scipy", "sklearn", "joblib", "threadpoolctl", "safetensors"},
        {"pandas", "polars"},
    ),
    "preprocessing": ({"numpy", "scipy", "sklearn"}, {"pandas", "polars"}),
    "evaluation": (
        {"numpy", "scipy", "sklearn", "joblib"},
        {"pandas", "matplotlib", "dp_accounting"},
    ),
    "commands": ({"numpy", "scipy"}, {"pandas"}),
    "": ({"numpy", "scipy", "sklearn"}, {"pandas"}),
}

COMPILERS = {"jit", "njit", "prange", "vectorize", "guvectorize", "stencil", "cfunc", "jitclass"}
COMPILER_MODULES = {"kernels/jit_and_threads.py": {"njit"}}

# Modules outside `privacy` with formulas in epsilon and delta: guarantees of their own, and books.
GUARANTEES = re.compile(
    r"^(books/|mechanisms/(device_reports|private_search|posterior_draw/guarantee)"
    r"|evaluation/_audit_releases)"
)
# Modules outside `privacy` that may draw: synthetic ratings, random splits and bootstrap draws of
# users hide nothing.
DRAWING_MODULES = {"data/synthetic.py", "evaluation/metrics.py", "evaluation/splits.py"}
DRAWERS = re.compile(
    r"^(random|secrets)(\.|$)|^(numpy|np)\.random(\.|$)|^os\.urandom$|\.rvs$"
    r"|(^|\.)(default_rng|RandomState|check_random_state)$"
)
EPSILON = re.compile(r"(^|_)epsilon(_|$)")
EPSILON_OR_DELTA = re.compile(r"(^|_)(epsilon|delta)(_|$)")
LOGARITHMS = {"log", "log1p", "log2", "log10", "exp", "expm1", "exp2"}


@functools.cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a source, which all readers share and none changes."""
    return ast.parse(source)


class Import(NamedTuple):
    """One imported name: `lazy` where it runs only in a function or for the type checker."""

    name: str
    lazy: bool
    line: int


def part_of(path: str) -> str:
    """Return the part of the package that a path relative to it belongs to."""
    folder, _, rest = path.partition("/")
    if rest:
        return folder
    return "exceptions" if folder == "exceptions.py" else ""


def dotted(node: ast.AST) -> str:
    """Return "a.b.c" of a name or an attribute, ".c" of an attribute of anything else, or ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def _is_lazy(parents: list[ast.AST]) -> bool:
    return any(
        isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(parent, ast.If) and dotted(parent.test).endswith("TYPE_CHECKING"))
        for parent in parents
    )


def _names(node: ast.AST, path: str) -> list[str]:
    """Return the absolute names that a node imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            here = [PACKAGE, *path.split("/")]
            base = ".".join([*here[: len(here) - node.level], *([base] if base else [])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in (
        "import_module",
        "__import__",
    ):
        target = node.args[0] if node.args else None
        return [str(target.value) if isinstance(target, ast.Constant) else "(computed)"]
    return []


def imports(path: str, source: str) -> Iterator[Import]:
    """Yield all imports of a module of the package, at any depth, also through importlib."""
    pending: list[tuple[ast.AST, list[ast.AST]]] = [(parsed(source), [])]
    while pending:
        node, parents = pending.pop()
        for name in _names(node, path):
            yield Import(name, _is_lazy(parents), node.lineno)  # type: ignore[attr-defined]
        pending += [(child, [*parents, node]) for child in ast.iter_child_nodes(node)]


def import_violations(path: str, source: str) -> list[str]:
    """Check the direction of the imports and the packages from outside."""
    part = part_of(path)
    eager, lazy = OUTSIDE[part]
    if path == "kernels/jit_and_threads.py":  # whose `later` imports modules of kernels
        eager = eager | {"joblib", "(computed)"}
    found = []
    for name, is_lazy, line in imports(path, source):
        root, *rest = name.split(".")
        if path == "_lazy.py" or rest[:1] == ["_lazy"]:  # imports what a package names
            continue
        if root == PACKAGE:
            target = rest[0] if rest and rest[0] in LAYERS else ""
            allowed = LAYERS[part] | {"exceptions", part}
            compiles = path in COMPILED and rest[:2] == ["kernels", "jit_and_threads"]
            allowed |= {"kernels"} if path in SUMMING or compiles else set()
            if path == "__init__.py":
                allowed = set(LAYERS)
            if target not in allowed:
                found.append(f"{line}: {part or path} must not import {name}")
        elif root not in sys.stdlib_module_names | eager | (lazy if is_lazy else set()):
            how = "only inside a function" if root in lazy else "not at all"
            found.append(f"{line}: {part or path} may import {root} {how}")
    return found


def reach_violations(path: str, source: str) -> list[str]:
    """Find what reaches around the curator: private values, made handles and sums."""
    if path in HOLDING:
        return []
    found, tree = [], parsed(source)
    for node in ast.walk(tree):
        names = [getattr(node, key, None) for key in ("id", "attr", "arg")]
        if isinstance(node, ast.Constant):  # as in vars(users)["_Users__rows"]
            names.append(node.value)
        if isinstance(node, ast.alias):
            names.append(node.name)
        found += [
            f"{node.lineno}: {name} reaches private values"  # type: ignore[attr-defined]
            for name in names
            if isinstance(name, str) and REACHES.search(name)
        ]
        if isinstance(node, ast.Call):
            name = dotted(node.func).split(".")[-1]
            if (name == "Rows" and path in DEVICES) or (name == "Users" and path == TRIALS):
                continue
            if name in HOLDERS or path not in BEGINS.get(name, {path}):
                found.append(f"{node.lineno}: {name} is made by the curator's side alone")
    return found


def frame_violations(path: str, source: str) -> list[str]:
    """Find keys that are drawn elsewhere than in the frame, and estimators that see rows."""
    found, tree = [], parsed(source)
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if isinstance(node, ast.alias):
            name = node.name
        if isinstance(name, str) and KEYS.search(name) and not DRAWING.match(path):
            found.append(f"{node.lineno}: {name} is for the frame")  # type: ignore[attr-defined]
        if name == "RECORDER" and path not in RECORDERS:
            found.append(f"{node.lineno}: fits are recorded by tests and audits alone")  # type: ignore[attr-defined]
        if name == "_statement" and not SETS_STATEMENTS.match(path):
            found.append(f"{node.lineno}: a statement is made by the frame")  # type: ignore[attr-defined]
        if isinstance(node, ast.ClassDef) and "PrivateRecommender" in map(dotted, node.bases):
            found += _methods_with_rows(path, node)
    return found


def around_violations(path: str, source: str) -> list[str]:
    """Find what reads, keeps or writes values without the curator, or catches its errors."""
    if not MECHANISM.match(path):
        return []
    found = [
        f"{i.line}: {i.name} is not for mechanisms"
        for i in imports(path, source)
        if i.name.split(".")[0] in sys.stdlib_module_names - PURE
    ]
    for node in ast.walk(parsed(source)):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if isinstance(node, ast.alias):
            name = node.name
        is_vars = isinstance(node, ast.Call) and dotted(node.func) == "vars"
        if is_vars and ast.unparse(node.args[0]) != "settings":  # type: ignore[attr-defined]
            name = "globals"
        if isinstance(node, ast.Global) or name in AROUND:
            found.append(f"{node.lineno}: {ast.unparse(node)} goes around the curator")  # type: ignore[attr-defined]
        if isinstance(node, ast.ExceptHandler) and "Arpack" not in ast.unparse(node):
            found.append(f"{node.lineno}: an error in a map is for nobody to read")
    return found


def _methods_with_rows(path: str, estimator: ast.ClassDef) -> list[str]:
    """Find methods of a private estimator that see the rows of its fit."""
    found = []
    for node in estimator.body:
        name = getattr(node, "name", "")
        if name in FRAMED or (name == "_release_rows" and path not in ROWS):
            found.append(f"{node.lineno}: {name} of a private estimator is the contract's")
        kept = (one for one in ast.walk(node) if isinstance(one, ast.Assign))
        if any(
            dotted(one.value) == "curator" and dotted(one.targets[0])[:5] == "self." for one in kept
        ):
            found.append(f"{node.lineno}: {name} keeps a curator")
        if name == "fit" and isinstance(node, ast.FunctionDef):
            last = [line for line in node.body if not isinstance(line, ast.Expr)]
            if len(last) != 1 or "return self._fit_rows(X, y" not in ast.unparse(last[0]):
                found.append(f"{node.lineno}: fit hands its rows to the contract, and no more")
    return found


def map_violations(path: str, source: str) -> list[str]:
    """Find maps of users that are not functions at the top of a module."""
    found, tree = [], parsed(source)
    known = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    modules = set()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.asname or alias.name for alias in node.names}
            known |= names
            modules |= names
    for call, function in _mapped(tree):
        name = dotted(function)
        root, *rest = name.split(".")
        holds = root in (modules if rest else known) and len(rest) < 2
        if not holds:
            shown = ast.unparse(function)
            found.append(f"{call.lineno}: {shown} is mapped and no function of a module")
    for function in tree.body:
        args = function.args.args if isinstance(function, ast.FunctionDef) else []
        if isinstance(function, ast.FunctionDef) and [one.arg for one in args[:1]] == ["rows"]:
            found += _effects(function)
    return found if MAPPING.match(path) else []


def _effects(function: ast.FunctionDef) -> Iterator[str]:
    """Yield what a map does beside returning values: it writes, warns, or stores."""
    nodes = list(ast.walk(function))
    own = {
        node.id
        for one in nodes
        if isinstance(one, ast.Assign | ast.AnnAssign | ast.For | ast.With | ast.NamedExpr)
        for node in ast.walk(one)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in nodes:
        if isinstance(node, ast.Global | ast.Nonlocal | ast.Raise | ast.Assert | ast.Yield):
            yield f"{node.lineno}: {type(node).__name__} in the map {function.name}"
        if isinstance(node, ast.Call):
            names = dotted(node.func).split(".")
            keeps = names[-1] in KEEPING or names[-1].startswith("save")
            if names[0] in SPEAKING or keeps:
                yield f"{node.lineno}: {ast.unparse(node.func)} in the map {function.name}"
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        for target in targets if isinstance(node, ast.Assign | ast.AugAssign) else []:
            while isinstance(target, ast.Subscript | ast.Attribute):
                target = target.value
            if isinstance(target, ast.Name) and target.id not in own:
                yield f"{node.lineno}: {target.id} is written to in the map {function.name}"


def passed_functions(tree: ast.Module) -> set[str]:
    """Return the names of the functions that a module passes to maps of users."""
    return {dotted(function).split(".")[-1] for _, function in _mapped(tree)}


def _mapped(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Yield calls of `Users.map`, `Users.keep` and `sums.products` with the function they get."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func).split(".")
        if called[-1] not in MAPPERS or called == ["map"]:
            continue
        args = node.args[1:] if called[-1] == "products" else node.args
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Starred) and isinstance(first.value, ast.Tuple):
            args = first.value.elts[1:]
        given = [keyword.value for keyword in node.keywords if keyword.arg == "function"]
        for function in (*args[:1], *given):
            yield node, function


def import_circle(sources: dict[str, str]) -> list[str]:
    """Return modules that import one another at their top, in a circle; none if there is none."""
    modules = {path.removesuffix(".py").removesuffix("/__init__"): path for path in sources}
    graph: dict[str, set[str]] = {path: set() for path in sources}
    for path, source in sources.items():
        for found in imports(path, source):
            name = "/".join(found.name.split(".")[1:])
            target = modules.get(name) or modules.get(name.rpartition("/")[0])
            if found.name.startswith(f"{PACKAGE}.") and target and not found.lazy:
                graph[path] |= {target} - {path}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(path) for path in error.args[1]]
    return []


def compiler_violations(path: str, source: str) -> list[str]:
    """Find compilers and compiler flags outside of the modules that choose them."""
    found = [
        f"{i.line}: {i.name} is chosen in {', '.join(COMPILER_MODULES)} only"
        for i in imports(path, source)
        if i.name.split(".")[0] == "numba"
        and i.name.split(".")[-1] in COMPILERS - COMPILER_MODULES.get(path, set())
    ]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute):
            root, _, last = dotted(node).partition(".")
            if root in ("numba", "nb") and last in COMPILERS - COMPILER_MODULES.get(path, set()):
                found.append(f"{node.lineno}: import {last} in {', '.join(COMPILER_MODULES)} only")
        if isinstance(node, ast.keyword) and node.arg == "parallel":
            found.append(f"{node.value.lineno}: threads come from outside, not from parallel=")
        keys: list[object] = [node.arg] if isinstance(node, ast.keyword) else []
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        if "fastmath" in keys and path != "kernels/jit_and_threads.py":
            line = (node.value if isinstance(node, ast.keyword) else node).lineno  # type: ignore[attr-defined]
            found.append(f"{line}: fastmath is set in kernels/jit_and_threads.py only")
    return found


def noise_violations(path: str, source: str) -> list[str]:
    """Find randomness, and formulas in epsilon or delta, outside of `privacy`."""
    if part_of(path) == "privacy" or GUARANTEES.match(path):
        return []
    found = []
    if path not in DRAWING_MODULES:
        found += [
            f"{i.line}: import {i.name} draws randomness"
            for i in imports(path, source)
            if DRAWERS.search(i.name)
        ]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node)
            if DRAWERS.search(name) and path not in DRAWING_MODULES:
                found.append(f"{node.lineno}: {name} draws randomness")
        if isinstance(node, ast.Call) and _is_log_of_privacy(node):
            found.append(f"{node.lineno}: {ast.unparse(node)} is a privacy formula")
        if isinstance(node, ast.BinOp):
            sides = [dotted(side).split(".")[-1] for side in (node.left, node.right)]
            if any(EPSILON.search(side) for side in sides):
                found.append(f"{node.lineno}: {ast.unparse(node)} is a privacy formula")
    return sorted(set(found))


def _is_log_of_privacy(call: ast.Call) -> bool:
    """Return whether a call is a logarithm or an exponential of epsilon or delta."""
    return dotted(call.func).split(".")[-1] in LOGARITHMS and any(
        EPSILON_OR_DELTA.search(dotted(node).split(".")[-1])
        for argument in call.args
        for node in ast.walk(argument)
    )


OPENING = re.compile(r"^\s*(# )?(Of|That of|Those of|What|As who) (?!.*\?$)[a-z]")


def prose_violations(path: str, source: str) -> list[str]:
    """Find lines of docstrings and comments that open with *of*, *what* and the like."""
    lines = enumerate(source.splitlines(), 1)
    return [f"{number}: {line.strip()}" for number, line in lines if OPENING.match(line)]


# Constants of mechanisms are by proof or format, guards of numerics, or tuned
KIND = re.compile(r"# (Fixed|Guard|Tuned): \S")
PLAIN = {0.0, 0.5, 1.0, 2.0, 4.0}  # need no reason inside of a function, nor do roundings


def numbers(source: str) -> Iterator[tuple[int, str, int]]:
    """Yield line, kind ("": none) and number of literals of each constant at a module's top.

    A heading of `KIND` holds for the assignments below, up to a blank line or another one. Floats
    in functions and classes that are not `PLAIN` are "Hidden".
    """
    lines = source.splitlines()
    for node in parsed(source).body:
        parts = ast.walk(node.value or node) if isinstance(node, ast.Assign | ast.AnnAssign) else ()
        literals = [part.value for part in parts if isinstance(part, ast.Constant)]
        if count := sum(type(value) in (int, float) for value in literals):
            above = itertools.takewhile(str.strip, reversed(lines[: node.lineno - 1]))
            kinds = (found[1] for line in above if (found := KIND.match(line)))
            yield node.lineno, next(kinds, ""), count
        inside = ast.walk(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else ()
        for value in (part.value for part in inside if isinstance(part, ast.Constant)):
            if isinstance(value, float) and value not in PLAIN and value > 1e-5:
                yield node.lineno, "Hidden", 1


def number_violations(path: str, source: str) -> list[str]:
    """Find numbers of mechanisms that do not say why they are there."""
    if part_of(path) != "mechanisms":
        return []
    why = "a number needs # Fixed:, # Guard: or # Tuned: above it, and a reason"
    return [f"{line}: {why}" for line, kind, _ in numbers(source) if not kind]


_BLOCK = re.compile(r"^(#.*|\||\s*(```|~~~|\.\. |:)|[-=^]{3,}$| {4,}\S)|^\s*$")
_UNDERLINE = re.compile(r"^[-=^]{3,}$")  # of a heading, in reStructuredText
_ITEM = re.compile(r"^[> ]*([-*]|\d+\.) ")
_TITLE = re.compile(r"^\*\*[^*]*\*\*\W*")  # of a paragraph, in bold type
_SENTENCE = re.compile(r"(?<=[.!?])[)*\"]*\s+(?=\W*[A-Z])")
_PAGE_OPENING = re.compile(r"^\W*(Of|That of|Those of|What|As who|Who|Whoever)\b")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page and their lines; headings, tables and code have none."""
    paragraph, first, fence = [], 1, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_block = fence or bool(_BLOCK.match(line))
        fence ^= bool(re.match(r"\s*(```|~~~)", line))
        if paragraph and (is_block or _ITEM.match(line)):
            if not _UNDERLINE.match(line):
                yield from ((first, one) for one in _SENTENCE.split(" ".join(paragraph)))
            paragraph = []
        if not is_block:
            first = first if paragraph else number
            paragraph.append(_TITLE.sub("", _ITEM.sub("", line).strip()))


def page_violations(text: str) -> list[str]:
    """Find sentences of a page that open with *of*, *what* and the like, or that *tell*."""
    return [
        f"{number}: {sentence[:80]}"
        for number, sentence in sentences(text)
        if (_PAGE_OPENING.match(sentence) and "?" not in sentence)
        or re.search(r"\b(tell|tells|told|telling)\b", re.sub(r"`[^`]*`", "", sentence))
    ]


def function_violations(path: str, source: str, limit: int = 40) -> list[str]:
    """Find functions of kernels with more than `limit` lines, their docstrings not counted."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef) and part_of(path) == "kernels":
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if length > limit:
                found.append(f"{node.lineno}: {node.name} has {length} lines, more than {limit}")
    return found


# Absolute paths of one machine, folders beside the checkout, and notes that are not published.
UNPUBLISHED = re.compile(
    r"(?<![\w.])/(work|root|home)/|(?<!\w)shared/|\.library\b|(?<![\w/])methods/\w+\.md"
    r"|\b(DESIGN|HOUSE|review)\.md\b|\breview,? [A-Z]\d+\b"
)
PUBLISHED_FOLDER = "../shared/data"
MAY_NAME_FOLDER = {"tests/conftest.py", "CONTRIBUTING.md", "README.md"}


def path_violations(path: str, text: str) -> list[str]:
    """Find traces of one machine, and pointers to what the project does not contain."""
    if path in MAY_NAME_FOLDER:
        text = text.replace(PUBLISHED_FOLDER, "")
    return [
        f"{number}: {match.group()}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in UNPUBLISHED.finditer(line)
    ]


# Parts that a docstring must have: an example, and the errors that its code raises.

MAKERS = {"__init__", "__new__", "__post_init__"}
VALIDATORS = re.compile(r"^_?(check|require|validate)(_|$)")
EVERY_METHOD = "By any method"  # in a class: an error that its methods need not repeat
Definition = ast.FunctionDef | ast.ClassDef


def example_violations(source: str, names: set[str], bases: set[str]) -> list[str]:
    """Find public classes, functions and methods that no example shows.

    The classes and functions of `names` have one of their own. A method of theirs, or of one of
    `bases`, whose methods they inherit, has one too or is called in that of its class.
    """
    found = []
    for node in _definitions(source, names | bases):
        shown = _section(node, "Examples")
        if node.name in names and ">>> " not in shown:
            found.append(f"{node.lineno}: {node.name} has no example")
        for method in _public_methods(node):
            own = _section(method, "Examples")
            if ">>> " not in own and not re.search(rf"\.{method.name}\(", shown):
                found.append(f"{method.lineno}: {node.name}.{method.name} is in no example")
    return found


def raises_violations(source: str, names: set[str]) -> list[str]:
    """Find functions, methods and classes that raise or check something and do not say what.

    Calls of functions of the same module and of methods of the same class are followed.
    """
    found = []
    functions = {one.name: one for one in _definitions(source) if isinstance(one, ast.FunctionDef)}
    for node in _definitions(source, names):
        if isinstance(node, ast.FunctionDef):
            if not _section(node, "Raises") and _raises(node, functions, {}):
                found.append(f"{node.lineno}: {node.name} raises and does not say what")
            continue
        own = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        stated = _section(node, "Raises")
        if not stated and any(_raises(own[one], functions, own) for one in MAKERS & set(own)):
            found.append(f"{node.lineno}: {node.name} raises and does not say what")
        if EVERY_METHOD in stated:
            own = {}
        found += [
            f"{method.lineno}: {node.name}.{method.name} raises and does not say what"
            for method in _public_methods(node)
            if not _section(method, "Raises") and _raises(method, functions, own)
        ]
    return found


def _definitions(source: str, names: set[str] | None = None) -> list[Definition]:
    """Return the functions and classes at the top of a module: those of these names, or all."""
    body = parsed(source).body
    return [
        one for one in body if isinstance(one, Definition) and (names is None or one.name in names)
    ]


def _public_methods(node: Definition) -> list[ast.FunctionDef]:
    """Return the methods of a class without properties, overloads and abstract ones."""
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    skipped = {"property", "overload", "abstractmethod"}
    return [
        one
        for one in (methods if isinstance(node, ast.ClassDef) else [])
        if not one.name.startswith("_") and not skipped & set(map(dotted, one.decorator_list))
    ]


def _section(node: Definition, title: str) -> str:
    """Return a section of a docstring."""
    text = (ast.get_docstring(node) or "").partition(f"\n{title}\n{'-' * len(title)}\n")[2]
    return re.split(r"\n\n.+\n-{3,}\n", text)[0]


def _raises(
    function: ast.FunctionDef,
    functions: dict[str, ast.FunctionDef],
    methods: dict[str, ast.FunctionDef],
    seen: frozenset[str] = frozenset(),
) -> bool:
    """Return whether a function raises, calls a check, or what it calls here does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if not isinstance(node, ast.Call):
            continue
        owner, _, name = dotted(node.func).rpartition(".")
        is_own = owner in ("self", "cls")
        if VALIDATORS.search(name) and (methods or not is_own):
            return True
        called = (methods if is_own else {} if owner else functions).get(name)
        if called and name not in seen and _raises(called, functions, methods, seen | {name}):
            return True
    return False
