"""``import memaudit``: cheap, with public names that come when they are used."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import memaudit


def test_import_brings_no_heavy_library():
    code = (
        "import sys, memaudit; dir(memaudit);"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'pyarrow'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_listed_and_has_a_home():
    assert set(memaudit.__all__) <= set(dir(memaudit))
    assert set(memaudit._HOME) | {"errors", "__version__"} == set(memaudit.__all__)


@pytest.mark.parametrize("name", sorted(memaudit.__all__))
def test_public_name_can_be_had(name):
    assert getattr(memaudit, name) is not None


def test_public_name_is_the_one_of_its_module():
    from memaudit.manifest import Manifest

    assert memaudit.Manifest is Manifest
    assert memaudit.errors.ManifestError.exit_code == 2


def test_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'manifold'; it has .*Manifest"):
        memaudit.manifold  # noqa: B018


@pytest.mark.parametrize("name", ["strategies", "launch"])
def test_top_level_folder_refuses_its_plain_name(name):
    assert importlib.util.find_spec(f"memaudit.{name}") is not None
    root = memaudit.__path__[0] + "/.."
    code = f"import sys; sys.path.insert(0, {root!r}); import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"import memaudit.{name}" in done.stderr.splitlines()[-1]
