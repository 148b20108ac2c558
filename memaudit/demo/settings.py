"""What one run of the demonstration does; handed to the ranks as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from memaudit.errors import ConfigurationError

MODELS = ("tiny", "smollm2")
STRATEGIES = {"tiny": ("fsdp2", "ddp", "single"), "smollm2": ("ddp", "single")}


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """Choices about the demonstration; see ``memaudit demo --help``."""

    model: str = "tiny"
    data: str | None = None
    nproc: int = 2
    strategy: str = "fsdp2"
    output_dir: str = "memaudit-demo"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigurationError(f"--model {self.model}: give one of {', '.join(MODELS)}")
        if self.nproc < 1:
            raise ConfigurationError(f"--nproc {self.nproc}: give at least 1")
        allowed = STRATEGIES[self.model]
        if self.strategy not in allowed:
            raise ConfigurationError(
                f"--strategy {self.strategy} with --model {self.model}: give one of {', '.join(allowed)}"
            )
        if (self.strategy == "single") != (self.nproc == 1) and self.strategy != "fsdp2":
            raise ConfigurationError(
                f"--strategy {self.strategy} with --nproc {self.nproc}: one process is 'single', more are 'ddp'"
            )
        if self.data is not None and not Path(self.data).is_file():
            raise ConfigurationError(
                f"--data {self.data}: no such file; give a JSONL file of instruction rows"
            )

    def save(self, path: Path) -> None:
        """Write the settings for the ranks."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: str | Path) -> DemoSettings:
        """Read what ``save`` wrote."""
        return cls(**json.loads(Path(path).read_text()))
