"""Fast-MIA's configuration files, read as they are; what cannot apply is named in a warning."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from memaudit.attacks.base import Attack, ReferenceAttack, reference_of
from memaudit.attacks.registry import make, names
from memaudit.errors import ConfigurationError

_log = logging.getLogger(__name__)

_PARAMETERS: dict[str, dict[str, str]] = {
    "pac": {"N": "n", "alpha": "alpha"},
    "recall": {"num_shots": "n_shots"},
    "conrecall": {"num_shots": "n_shots", "gamma": "gamma"},
    "samia": {"num_samples": "n", "prefix_ratio": "prefix", "zlib": "zlib"},
    "mink": {"ratio": "ratio"},
    "dcpdd": {"alpha": "alpha"},
}
"""Fast-MIA's names of parameters to ours; those of a method that is not listed are ours."""

_DEFAULTS: dict[str, dict[str, Any]] = {"mink": {"ratio": 0.5}}
"""Fast-MIA's defaults where they differ from the papers', which are ours."""

_SCORING = {"max_tokens": 1, "prompt_logprobs": 0, "temperature": 0.0, "top_p": 1.0}
_DTYPES = {"float": "float32", "half": "float16", "auto": "auto", "float32": "float32", "float16": "float16"}
_SECTIONS = ("model", "lora", "sampling_parameters", "data", "methods", "output_dir")


@dataclass(kw_only=True, slots=True)
class FastMiaRun:
    """What a Fast-MIA configuration asks for, in our words; ``warnings`` name each key that does not apply.

    Where all its reference models are one, ``reference`` is it; where they differ, each attack names its own.
    """

    model: str
    adapter: str | None = None
    tokenizer: str | None = None
    reference: str | None = None
    masked_lm: str | None = None
    dtype: str = "auto"
    max_batch_size: int | None = None
    max_length: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    attacks: list[Attack] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    output_dir: str = "./results"
    warnings: list[str] = field(default_factory=list)


def read_config(path: str | Path, *, corpus: bool = False, masked_lm: bool = False) -> FastMiaRun:
    """Read a Fast-MIA YAML file.

    Args:
        path: the file.
        corpus: whether a reference corpus was named beside it; without one dcpdd cannot run.
        masked_lm: whether a masked language model was named beside it.

    Raises:
        ConfigurationError: it is no YAML, or lacks a model, data or methods.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"configuration {path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())[:160]
        raise ConfigurationError(f"configuration {path} is not YAML: {line}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"configuration {path} holds no keys; expected model, data and methods")
    for key, part in (("model", "model_id"), ("data", "data_path")):
        if not isinstance(content.get(key), dict) or part not in content[key]:
            raise ConfigurationError(f"configuration {path} lacks {key}.{part}")
    if not isinstance(content.get("methods"), list) or not content["methods"]:
        raise ConfigurationError(f"configuration {path} lacks methods: a list of type and params")
    run = FastMiaRun(model=str(content["model"]["model_id"]))
    for key in content:
        if key not in _SECTIONS:
            _ignore(run, key)
    _model(run, content["model"])
    _lora(run, content["model"], content.get("lora") or {})
    for key, value in (content.get("sampling_parameters") or {}).items():
        if key not in _SCORING or value != _SCORING[key]:
            _ignore(run, f"sampling_parameters.{key}", "scoring takes no samples")
    _data(run, content["data"])
    for number, method in enumerate(content["methods"]):
        _method(run, method, f"methods[{number}]", corpus, masked_lm)
    references = list(dict.fromkeys(name for one in run.attacks if (name := reference_of(one))))
    if len(references) == 1:
        run.reference, run.attacks = references[0], unnamed(run.attacks)
    if not run.attacks:
        raise ConfigurationError(
            f"configuration {path} names no method that can run: {'; '.join(run.warnings)}"
        )
    run.output_dir = str(content.get("output_dir") or run.output_dir)
    for warning in run.warnings:
        _log.warning("%s: %s", path, warning)
    return run


def _ignore(run: FastMiaRun, key: str, why: str = "it does not apply here") -> None:
    run.warnings.append(f"{key} is not used: {why}")


def _model(run: FastMiaRun, model: Mapping[str, Any]) -> None:
    for key, value in model.items():
        if key in ("model_id", "enable_lora"):
            continue
        if key == "max_num_seqs":
            run.max_batch_size = int(value)
        elif key == "max_model_len":
            run.max_length = int(value)
        elif key == "tokenizer":
            run.tokenizer = str(value)
        elif key == "dtype" and (str(value) in _DTYPES or str(value) == "bfloat16"):
            run.dtype = _DTYPES.get(str(value), "bfloat16")
        elif key == "trust_remote_code":
            if value:
                _ignore(
                    run,
                    "model.trust_remote_code",
                    "a model's own code is run only where you load it in Python",
                )
        else:
            _ignore(run, f"model.{key}", "it is a setting of vLLM's engine")


def _lora(run: FastMiaRun, model: Mapping[str, Any], lora: Mapping[str, Any]) -> None:
    if not lora:
        if model.get("enable_lora"):
            _ignore(run, "model.enable_lora", "no lora.lora_path is given")
        return
    if "lora_path" not in lora:
        raise ConfigurationError("the configuration's lora section lacks lora_path")
    run.adapter = str(lora["lora_path"])
    for key in lora:
        if key not in ("lora_path", "lora_name", "lora_int_id"):  # the last two only name it within vLLM
            _ignore(run, f"lora.{key}")


def _data(run: FastMiaRun, data: Mapping[str, Any]) -> None:
    known = {
        "data_path": "path",
        "format": "format",
        "text_column": "text_column",
        "label_column": "label_column",
        "text_length": "text_length",
        "token_length": "text_length",  # its older name
        "space_delimited_language": "spaced",
    }
    run.data = {"format": "csv", "text_length": 32}
    for key, value in data.items():
        if key in known:
            run.data[known[key]] = value
        else:
            _ignore(run, f"data.{key}")
    if run.data.get("spaced") is False:
        run.data["unspace"] = True  # Fast-MIA has its users put spaces between the words of such a language


def _method(run: FastMiaRun, method: Any, where: str, corpus: bool, masked_lm: bool) -> None:
    if not isinstance(method, dict) or "type" not in method:
        raise ConfigurationError(f"{where} has no type; give one of {', '.join(names())}")
    name, given = str(method["type"]), dict(method.get("params") or {})
    if name not in names():
        _skip(
            run,
            name,
            f"{where}.type {name!r} is no attack here, and is left out; there are {', '.join(names())}",
        )
        return
    parameters: dict[str, Any] = dict(_DEFAULTS.get(name, {}))
    if isinstance(make(name), ReferenceAttack):
        reference = given.pop("reference_model", None) or {}
        found = reference.get("model_id") if isinstance(reference, dict) else reference
        if found:
            parameters["reference"] = str(found)
        for key in reference if isinstance(reference, dict) else ():
            if key != "model_id":
                _ignore(
                    run, f"{where}.params.reference_model.{key}", "the reference is loaded as the model is"
                )
    if name == "neighbour":
        for key in ("model_id", "mlm_model", "mask_model", "masked_lm"):
            run.masked_lm = given.pop(key, None) or run.masked_lm
        if not (masked_lm or run.masked_lm):
            _skip(
                run,
                name,
                f"{where}: neighbour needs a masked language model and is left out: --masked-lm",
            )
            return
    if name == "dcpdd" and not corpus:
        _skip(run, name, f"{where}: dcpdd needs a reference corpus and is left out; name one with --corpus")
        return
    renamed = _PARAMETERS.get(name)
    allowed = set(make(name).parameters)
    for key, value in given.items():
        ours = renamed.get(key) if renamed is not None else key if key in allowed else None
        if ours is None:
            why = (
                "shots that do not fit are always dropped"
                if key == "pass_window"
                else f"{name} has no such parameter"
            )
            if not (key == "pass_window" and not value):
                _ignore(run, f"{where}.params.{key}", why)
        else:
            parameters[ours] = value
    attack = make(name, **parameters)
    if any(one.label == attack.label for one in run.attacks):
        run.warnings.append(f"{where} repeats {attack.label}, and is run once")
    else:
        run.attacks.append(attack)


def unnamed(attacks: Sequence[Attack]) -> list[Attack]:
    """Return the attacks without the names of their references, for a run that has one; equal ones once.

    Example:
        >>> [one.label for one in unnamed([make("ref(reference='a')"), make("ref(reference='b')")])]
        ['ref']
    """
    plain = [replace(one, reference="") if isinstance(one, ReferenceAttack) else one for one in attacks]
    return list({one.label: one for one in plain}.values())


def _skip(run: FastMiaRun, name: str, warning: str) -> None:
    run.skipped.append(name)
    run.warnings.append(warning)
