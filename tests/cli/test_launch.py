"""memaudit launch, and that accelerate takes the files it ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memaudit import launch as launch_files
from memaudit.cli import main
from memaudit.errors import ConfigurationError

ACCELERATE = ("ddp", "fsdp1", "fsdp2", "zero2", "zero3")
KINDS = {"ddp": "MULTI_GPU", "fsdp1": "FSDP", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


def test_list_names_every_file_with_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    folder = Path(launch_files.__file__).parent
    assert [line.split()[0] for line in lines] == sorted(
        path.name for path in folder.iterdir() if path.suffix in (".yaml", ".sbatch")
    )
    assert all(len(line.split()) > 3 for line in lines)


def test_copy_writes_the_shipped_text_and_spares_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "--copy", "zero3", "--to", str(tmp_path)]) == 0
    target = tmp_path / "zero3.yaml"
    assert target.read_bytes() == (Path(launch_files.__file__).parent / "zero3.yaml").read_bytes()
    target.write_text("mine")
    assert main(["launch", "--copy", "zero3", "--to", str(tmp_path)]) == ConfigurationError.exit_code
    assert target.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main(["launch", "--copy", "zero3.yaml", "--to", str(tmp_path), "--force"]) == 0
    assert target.read_text() != "mine"


def test_an_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--copy", "zero9"]) == ConfigurationError.exit_code
    assert "fsdp2.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("name", ACCELERATE)
def test_accelerate_loads_the_file(name: str, tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = tmp_path / f"{name}.yaml"
    path.write_text(launch_files.read(name))
    config: Any = load_config_from_file(str(path))
    assert config.distributed_type.value == KINDS[name]
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    known = vars(arguments)
    for group in (config.fsdp_config, config.deepspeed_config):
        assert not [key for key in group if key not in known], "accelerate would ignore these"
    validated, _, _ = _validate_launch_command(arguments)
    assert validated.use_fsdp == (KINDS[name] == "FSDP")
    assert validated.use_deepspeed == (KINDS[name] == "DEEPSPEED")
    assert validated.mixed_precision == "bf16"
    if name.startswith("fsdp"):
        assert int(validated.fsdp_version) == int(name[-1])
    if name.startswith("zero"):
        assert int(validated.zero_stage) == int(name[-1])
