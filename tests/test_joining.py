"""Files for those who join: workflows, hooks and the citation agree with pyproject.toml."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.systems import needs_posix

CHECKOUT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((CHECKOUT / ".github/workflows").glob("*.yml"))
VERSIONS = ["v0.10.0", "v0.9.0", "main"]
WRITES = {"publish": {"id-token": "write"}, "keep": {"contents": "write"}}


def loaded(path):
    return yaml.safe_load((CHECKOUT / path).read_text(encoding="utf-8"))


def test_every_supported_python_is_tested():
    prefix = "Programming Language :: Python :: "
    supported = [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    supported.remove("3 :: Only")
    matrix = loaded(".github/workflows/tests.yml")["jobs"]["newest"]["strategy"]["matrix"]
    assert matrix["python"] == supported
    assert PROJECT["requires-python"] == f">={supported[0]}"
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_bounded(path):
    """Actions are pinned, no job may write or run for hours, and commands exist here."""
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60
        assert job.get("permissions") == WRITES.get(name)
        for step in job["steps"]:
            if "uses" in step:  # a tag can be moved, a commit cannot
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            for file in re.findall(r"(?:tests|requirements|\.github)/[\w/.]+", step.get("run", "")):
                assert (CHECKOUT / file).exists()


def test_one_action_has_one_commit():
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    uses = set(re.findall(r"uses: ([\w./-]+)@(\S+)  # (v[\d.]+)\n", text))
    assert len({name for name, *_ in uses}) == len(uses) == 6


@needs_posix
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_documentation_of_every_version_is_kept(tmp_path):
    """The step of the workflow, with a repository on disk in place of the forge's."""
    (step,) = [
        step["run"]
        for step in loaded(".github/workflows/docs.yml")["jobs"]["keep"]["steps"]
        if "run" in step
    ]
    bare = tmp_path / "bare.git"
    subprocess.run(["git", "init", "--quiet", "--bare", bare], check=True)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "TOKEN": "t0ken",
        "GITHUB_SERVER_URL": "https://example.org",
        "GITHUB_REPOSITORY": "them/skdpmf",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{bare.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://x-access-token:t0ken@example.org/them/skdpmf",
    }
    for turn, version in enumerate(["main", "v0.9.0", "v0.10.0", "main", "main"]):
        place = tmp_path / str(turn)
        (place / "html" / "_static").mkdir(parents=True)
        page = f"{version}, {min(turn, 3)}"  # the last one changes nothing
        (place / "html" / "index.html").write_text(page, encoding="utf-8")
        (place / "html" / "_static" / "a.css").touch()
        shutil.copytree(CHECKOUT / ".github", place / ".github")
        settings = {**environment, "GITHUB_REF_NAME": version}
        command = ["bash", "-e", "-o", "pipefail", "-c", step]
        run = subprocess.run(command, cwd=place, env=settings, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    kept = tmp_path / "kept"
    command = ["git", "clone", "--quiet", "--branch", "gh-pages", bare.as_uri(), kept]
    subprocess.run(command, check=True)
    pages = {version: (kept / version / "index.html").read_text("utf-8") for version in VERSIONS}
    assert pages == {"main": "main, 3", "v0.9.0": "v0.9.0, 1", "v0.10.0": "v0.10.0, 2"}
    assert (kept / ".nojekyll").exists()
    listed = re.findall(r'href="([^"]+)/"', (kept / "index.html").read_text(encoding="utf-8"))
    assert listed == VERSIONS
    log = subprocess.run(["git", "-C", kept, "log", "--format=%s"], capture_output=True, text=True)
    assert len(log.stdout.splitlines()) == 4


REPOSITORY, TAG = "https://example.org/them/skdpmf", "v0.1.0"
RELATIVE = re.compile(r'(?:\]\(|src="|srcset=")(?!https?:|#)')


def test_links_hold_on_a_package_index(tmp_path):
    """The README's links are absolute, to files of the checkout, and the project has URLs."""
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, tmp_path)
    script = CHECKOUT / ".github" / "for_index.py"
    subprocess.run([sys.executable, script, REPOSITORY, TAG], cwd=tmp_path, check=True)
    before = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert len(RELATIVE.findall(before)) > 10
    assert RELATIVE.findall(text) == []
    ours = re.findall(rf"{REPOSITORY}/(blob|raw)/{TAG}/([\w./-]+)", text)
    assert len(ours) == len(RELATIVE.findall(before))
    assert all((CHECKOUT / name).exists() for _, name in ours)
    pictures = [name for kind, name in ours if kind == "raw"]
    assert pictures == ["docs/images/hero-dark.png", "docs/images/hero.png"]
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project.pop("urls") == {
        "Repository": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Documentation": f"{REPOSITORY}/blob/{TAG}/docs/index.md",
        "Changelog": f"{REPOSITORY}/blob/{TAG}/CHANGELOG.md",
    }
    assert project == PROJECT


def test_the_changelog_has_the_version_that_comes():
    text = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {PROJECT['version'].partition('.dev')[0]}\n" in text
    assert text.index("## Unreleased") < text.index("## 0.1.0")
