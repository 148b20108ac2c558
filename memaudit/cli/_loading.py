"""Loading what a command names: tokenizers, models, texts; errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memaudit.errors import ConfigurationError


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer in a folder, or of a hub id.

    Raises:
        ConfigurationError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # the library raises many kinds
        raise ConfigurationError(
            f"no tokenizer can be loaded from {name!r} ({type(error).__name__}); name a folder with tokenizer.json, "
            "or a hub id"
        ) from error


def load_model(name: str) -> Any:
    """Return the causal language model in a folder, or of a hub id.

    Raises:
        ConfigurationError: there is none.
    """
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(name)
    except Exception as error:  # the library raises many kinds
        raise ConfigurationError(
            f"no causal language model can be loaded from {name!r} ({type(error).__name__}); name a folder with "
            "config.json and weights, or a hub id"
        ) from error


def load_corpus(path: str) -> Iterator[str]:
    """Yield the lines of a text file that hold anything.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        with open(Path(path), encoding="utf-8") as handle:
            for line in handle:
                if line.strip():
                    yield line.rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the corpus {path} ({type(error).__name__})") from error
