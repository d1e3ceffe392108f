"""The files from which epsilon follows, by the imports of the curator; and the list to sign."""

import ast
import io
import re
import tokenize
from pathlib import Path

import skdpmf

PACKAGE = Path(skdpmf.__file__).parent
PROOFS = PACKAGE.parent / "docs" / "proofs.rst"
# Plain forms took 310 lines, and handles that hold nothing 150.
MOST_FILES, MOST_LINES = 13, 2725
# What fits compare with the plain form, and what only fits with a covariance need
CHECKED, APPENDIX = "_vectors", PACKAGE / "privacy" / "pair_sensitivity.py"


def imported(path):
    """Files of the package that a module imports at its top; what is imported later only words."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        modules = []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        later = re.match(r'\w+ = later\("(\w+)"\)', ast.unparse(node).replace("'", '"'))
        if later and later[1] != CHECKED:  # imported when a kernel is first compiled
            modules.append(f"skdpmf.kernels.{later[1]}")
        for module in modules:
            file = PACKAGE.parent / (module.replace(".", "/") + ".py")
            if module.startswith("skdpmf.") and file.exists():
                found.add(file)
    return found


def core():
    seen, left = set(), [PACKAGE / "privacy" / "curator.py"]
    while left:
        path = left.pop()
        if path not in seen:
            seen.add(path)
            left += imported(path)
    return seen


def lines_of_code(path):
    """Lines with a token of code: no docstring, comment or blank."""
    source = path.read_text(encoding="utf-8")
    words = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                words.update(range(first.lineno, first.end_lineno + 1))
    blank = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT
    used = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*blank, tokenize.ENDMARKER):
            used.update(range(token.start[0], token.end[0] + 1))
    return len(used - words)


def test_few_files_decide_about_epsilon():
    files = core()
    names = sorted(path.relative_to(PACKAGE).as_posix() for path in files)
    assert len(files) <= MOST_FILES, names
    assert sum(map(lines_of_code, files)) <= MOST_LINES, names


def test_the_list_to_sign_is_theirs():
    section = PROOFS.read_text(encoding="utf-8").split("Sign here")[1]
    named = set(re.findall(r"(\w+\.py)", section.split("``skdpmf/privacy/text")[0]))
    assert named | {"exceptions.py"} == {path.name for path in core() | {APPENDIX}}
    assert imported(APPENDIX) <= core()


def test_nothing_else_of_the_package_is_imported_in_functions():
    """But for words: `_text` prints plans."""
    for path in core():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skdpmf"):
                    assert node.module == "skdpmf.privacy.text", f"{path}:{node.lineno}"
