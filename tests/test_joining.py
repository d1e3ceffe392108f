"""Files for those who join: workflows, hooks and the citation agree with pyproject.toml."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((CHECKOUT / ".github/workflows").glob("*.yml"))
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
