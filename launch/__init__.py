"""Launch files for accelerate, Lightning and SLURM, imported as memaudit.launch and shipped as package data."""

from __future__ import annotations

from importlib import resources

if not __name__.startswith("memaudit."):  # the folder itself is on the path: a second copy would be born
    raise ImportError(f"import memaudit.launch, not {__name__}: the folder is part of the package memaudit")

_SUFFIXES = (".yaml", ".yml", ".sbatch", ".sh")


def files() -> dict[str, str]:
    """Return the launch files: file name to the first line of its comment.

    Example:
        >>> "fsdp2.yaml" in files()
        True
    """
    found = {}
    for entry in resources.files(__name__).iterdir():
        if entry.name.endswith(_SUFFIXES):
            found[entry.name] = _summary(entry.read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def read(name: str) -> str:
    """Return the text of a launch file, named with or without its suffix.

    Raises:
        KeyError: there is none of this name.

    Example:
        >>> read("zero3") == read("zero3.yaml")
        True
    """
    return resources.files(__name__).joinpath(file_name(name)).read_text(encoding="utf-8")


def file_name(name: str) -> str:
    """Return the full file name of a launch file.

    Raises:
        KeyError: there is none of this name, or several.

    Example:
        >>> file_name("ddp")
        'ddp.yaml'
    """
    known = list(files())
    matches = [known_name for known_name in known if name in (known_name, known_name.rpartition(".")[0])]
    if len(matches) != 1:
        raise KeyError(f"no launch file is called {name!r}; there are {', '.join(known)}")
    return matches[0]


def _summary(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("#") and not line.startswith("#!") and not line.startswith("#SBATCH"):
            return line.lstrip("# ").rstrip()
    return ""
