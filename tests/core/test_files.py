"""The files from which epsilon follows, by imports in both directions; and the list to sign."""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

import skdpmf
from tests import house
from tests.core.cases import CASES

PACKAGE = Path(skdpmf.__file__).parent
PROOFS = PACKAGE.parent / "docs" / "proofs.rst"
LATER = {"skdpmf.privacy.text", "skdpmf.privacy.composition"}  # no fit divides its budget
MOST_FILES, MOST_LINES = 15, 2300
# They decide nothing: words, errors, and streams that no release has; and fast kernels whose sums a
# fit compares with plain ones.
WORDS = {"privacy/text.py", "privacy/sampler/streams.py", "exceptions.py", "kernels/compiling.py"}
WORDS |= {"kernels/covariance.py", "kernels/_vectors.py"}


def imported(path):
    """Files of the package that a module imports at its top; what is imported later only words."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        modules = []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        text = ast.unparse(node).replace("'", '"')
        for name in re.findall(r'later\("(\w+)"\)|import_module\("skdpmf.kernels.(\w+)"\)', text):
            modules.append(f"skdpmf.kernels.{''.join(name)}")  # when a kernel is first compiled
        for module in modules:
            file = PACKAGE.parent / (module.replace(".", "/") + ".py")
            if module.startswith("skdpmf.") and file.exists():
                found.add(file)
    return found


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def below():
    """Files that the frame imports, and they import."""
    seen, left = set(), [PACKAGE / house.FRAME]
    while left:
        path = left.pop()
        if path not in seen:
            seen.add(path)
            left += imported(path)
    return seen


DECIDES = re.compile(
    r"^(framed|Frame|Curator|curator_of_public|record_releases|Recorder|RecordingNoise|reveal|release_score"
    r"|fresh_key|derived_key|recorded_key|noise_source|NoiseSource|require_key|_statement"
    r"|DeviceStreams|recorded_draw|recorded_reports|RECORDER)$"
)


def above():
    """Files that can begin a fit, draw by a key, read private values or set a statement."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_used = isinstance(node, ast.Call) and house.dotted(node.func).split(".")[-1]
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                is_used = node.attr
            if is_used and DECIDES.match(is_used):
                found.add(path)
    return found


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


def section(title):
    """Files of the package that a section of the page names."""
    text = PROOFS.read_text(encoding="utf-8").split(f"\n{title}\n---")[1]
    text = re.split(r"\n[^\n]+\n(?:---+|===+)\n", text)[0]
    return {PACKAGE.parent / name for name in re.findall(r"``(skdpmf/[\w/]+\.py)``", text)}


def test_few_files_decide_about_epsilon():
    """In the default fit: the frame, the files below it, and the one that calls it."""
    files = section("Sign here")
    names = sorted(map(name_of, files))
    assert len(files) <= MOST_FILES, names
    assert sum(map(lines_of_code, files)) <= MOST_LINES, names


def test_the_list_to_sign_is_theirs():
    contract = PACKAGE / "estimators" / "contract" / "charged.py"
    words = {PACKAGE / name for name in WORDS}
    assert section("Sign here") == below() - words | {contract}


def test_whatever_can_change_epsilon_is_on_a_list():
    words = {PACKAGE / name for name in WORDS}
    listed = section("Sign here") | section("Appendices") | words
    assert sorted(map(name_of, above() - listed)) == []
    assert all(path.exists() for path in listed)


def test_sums_of_a_default_fit_are_on_the_list():
    """With factors and lists: what runs in it and clips, sums or bounds."""
    ran = set()
    sys.setprofile(lambda frame, *_: ran.add(Path(frame.f_code.co_filename)))
    try:
        CASES["als pooled"].fit()
    finally:
        sys.setprofile(None)
    sums = {PACKAGE / name for name in house.SUMMING} & ran
    assert sums
    assert sums <= section("Sign here")


def test_nothing_but_words_is_imported_in_functions():
    for path in below() - {PACKAGE / name for name in WORDS}:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skdpmf"):
                    assert node.module in LATER, f"{path}:{node.lineno}"
