"""What the archives hold: strategies/ and launch/ as real folders of the package, and nothing that does not belong."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of this checkout and the wheel that is built from that sdist, without the network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def sources(folder: str) -> set[str]:
    """Files of a folder that git knows, relative to the repository."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in listed.stdout.splitlines() if (ROOT / line).is_file()}


def test_wheel_holds_the_package_and_its_folders(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    expected = {f"memaudit/{name}" for folder in ("strategies", "launch") for name in sources(folder)}
    expected |= {name for name in sources("memaudit") if not (ROOT / name).is_symlink()}
    assert expected and not expected - names
    assert {"memaudit/strategies/__init__.py", "memaudit/launch/__init__.py", "memaudit/py.typed"} <= names


def test_wheel_holds_nothing_else(built):
    names = zipfile.ZipFile(built[1]).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"memaudit"}
    assert not [name for name in names if name.endswith(".pyc")]


def test_wheel_metadata(built):
    wheel = zipfile.ZipFile(built[1])
    files = {name.split("/", 1)[1]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "licenses/LICENSE" in files
    assert "memaudit = memaudit.cli:main" in wheel.read(files["entry_points.txt"]).decode()
    metadata = wheel.read(files["METADATA"]).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.10" in metadata
    for extra in ("peft", "trl", "lightning", "deepspeed", "demo", "dp", "vllm", "dev", "all"):
        assert f"Provides-Extra: {extra}\n" in metadata


def test_sdist_holds_folders_where_the_checkout_has_links(built):
    with tarfile.open(built[0]) as archive:
        members = {m.name.split("/", 1)[1]: m for m in archive.getmembers() if "/" in m.name}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    for name in ("strategies/__init__.py", "launch/__init__.py", "LICENSE", "README.md", "pyproject.toml"):
        assert members[name].isfile()


def test_wheel_works_outside_the_repository(built, tmp_path):
    """Unpacked anywhere, with only the libraries of this environment, the command line and the folders are there."""
    site = tmp_path / "site"
    zipfile.ZipFile(built[1]).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    code = (
        "import memaudit, memaudit.launch, memaudit.strategies, sys; from memaudit.cli import main;"
        "print(memaudit.__file__, memaudit.strategies.__file__); sys.exit(main(['--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0].split()
    assert all(Path(place).is_relative_to(site) for place in first)
    assert not (site / "memaudit" / "strategies").is_symlink()
