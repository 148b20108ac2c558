"""memaudit launch: the launch files that come with memaudit, listed or copied."""

from __future__ import annotations

from pathlib import Path

from memaudit import launch as files
from memaudit.errors import ConfigurationError
from memaudit.files import write_atomic


def launch(list: bool = False, copy: str | None = None, to: str = ".", force: bool = False) -> int:
    """List the launch files for accelerate, Lightning and SLURM, or copy one to edit it.

    Args:
        list: print the names with what each is for; also what happens without any option.
        copy: the file to copy, with or without its suffix.
        to: folder or file to copy it to.
        force: write over a file that is there.

    Returns:
        0.
    """
    if copy is None:
        known = files.files()
        width = max(map(len, known), default=0)
        for name, summary in known.items():
            print(f"{name:<{width}}  {summary}")
        return 0
    try:
        name = files.file_name(copy)
    except KeyError as error:
        raise ConfigurationError(f"{error.args[0]}; see memaudit launch --list") from error
    target = Path(to)
    if target.is_dir() or to.endswith("/"):
        target = target / name
    if target.exists() and not force:
        raise ConfigurationError(f"{target} is there already; give --force to write over it, or another --to")
    print(write_atomic(target, files.read(name)))
    return 0
