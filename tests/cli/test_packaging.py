"""Shipped and published files, as the files say that list them. `make release-check` tries it."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import sparsejit
from sparsejit.commands import console

ROOT = Path(__file__).parents[2]


def project() -> dict:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_types_and_the_voice_are_in_the_wheel() -> None:
    data = project()["tool"]["setuptools"]["package-data"]
    for package, patterns in data.items():
        folder = ROOT.joinpath(*package.split("."))
        for pattern in patterns:
            assert list(folder.glob(pattern)), f"{package}: nothing is called {pattern}"
    assert data["sparsejit"] == ["py.typed"]


def test_torch_is_a_range_that_holds_the_version_of_make() -> None:
    (torch,) = (r for r in project()["project"]["optional-dependencies"]["torch"] if "torch" in r)
    least, below = re.fullmatch(r"torch>=2\.(\d+),<(\d+)", torch).groups()
    (exact,) = re.findall(r"torch==2\.(\d+)\.\d+", (ROOT / "Makefile").read_text())
    assert int(least) < int(exact) and below == "3"


def test_commands_name_the_extra_that_brings_a_package() -> None:
    extras = project()["project"]["optional-dependencies"]
    for package, extra in console.EXTRAS.items():
        name = {"sklearn": "scikit-learn"}.get(package, package)
        assert any(requirement.startswith(name) for requirement in extras[extra]), package


def test_the_sdist_has_what_the_tests_read() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text()
    grafted = re.findall(r"^graft (\S+)$", manifest, re.MULTILINE)
    perf = {"sparsejit/perf/results", "sparsejit/perf/studies"}
    assert {"tests", "docs", "examples", *perf} == set(grafted)
    assert all((ROOT / folder).is_dir() for folder in grafted)


def test_the_citation_is_of_this_version() -> None:
    citation = YAML(typ="safe").load(ROOT / "CITATION.cff")
    assert citation["version"] == sparsejit.__version__


def test_the_changelog_s_newest_release_is_this_version() -> None:
    releases = re.findall(r"^## \[(\d\S*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == sparsejit.__version__


def test_every_page_is_in_the_site_s_navigation() -> None:
    settings = YAML(typ="safe").load(ROOT / "mkdocs.yml")
    pages: list[str] = []

    def collect(entries: list) -> None:
        for entry in entries:
            if isinstance(entry, str):
                pages.append(entry)
            else:
                for inner in entry.values():
                    collect(inner)

    collect(settings["nav"])
    docs = ROOT / "docs"
    assert sorted(pages) == sorted(p.relative_to(docs).as_posix() for p in docs.rglob("*.md"))
    assert settings["theme"]["font"] is False
    assert "repo_url" not in settings, "the theme would ask that host for stars"
