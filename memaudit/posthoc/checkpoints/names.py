"""Joining the names of a model's tensors to those of a checkpoint: one to one, or an error that says why not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from memaudit.errors import CheckpointError
from memaudit.posthoc.checkpoints.base import some

_WRAPPERS = re.compile(
    r"(?:(?<=^)|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module|_forward_module)\."
)

Shape = tuple[int, ...]


def match_names(
    expected: Mapping[str, Shape],
    stored: Mapping[str, Shape],
    *,
    where: str,
    aliases: Mapping[str, Iterable[str]] | None = None,
    ignored: Iterable[str] = (),
    prefix: str | None = None,
) -> dict[str, str]:
    """Say which stored tensor fills which of the model's.

    A checkpoint may hold its model under a prefix (``model.`` in FSDP's and Lightning's, or the attribute's
    name in a LightningModule) and beside other things (an optimizer); wrappers' infixes are passed over.

    Args:
        expected: full shape of each of the model's tensors.
        stored: full shape of each tensor in the checkpoint.
        where: the checkpoint, for the message.
        aliases: other names of a tied tensor.
        ignored: patterns of stored names that the architecture says may be passed over.
        prefix: the prefix, where the checkpoint holds several models.

    Returns:
        The stored name of each expected one.

    Raises:
        CheckpointError: tensors are missing or too many, shapes differ, or several prefixes fit.

    Example:
        >>> match_names({"a.w": (2,)}, {"model.a.w": (2,), "optimizer.a.w.exp_avg": (2,)}, where="x")
        {'a.w': 'model.a.w'}
        >>> match_names({"a.w": (2,)}, {"a.w": (3,)}, where="x")
        Traceback (most recent call last):
        ...
        memaudit.errors.CheckpointError: x does not fit the model's configuration: ...
    """
    aliases = aliases or {}
    clean = {_WRAPPERS.sub("", name): name for name in stored}
    chosen = _normal(prefix) if prefix is not None else _find_prefix(expected, clean, where)
    joined: dict[str, str] = {}
    missing: list[str] = []
    used: set[str] = set()
    for name in expected:
        candidates = [chosen + one for one in (name, *aliases.get(name, ()))]
        found = next((one for one in candidates if one in clean), None)
        used.update(candidates)
        if found is None:
            missing.append(name)
        else:
            joined[name] = clean[found]
    wrong = [
        f"{name} is {list(stored[joined[name]])} where the configuration says {list(expected[name])}"
        for name in joined
        if tuple(stored[joined[name]]) != tuple(expected[name])
    ]
    roots = {name.split(".")[0] for name in expected}
    patterns = [re.compile(pattern) for pattern in ignored]
    extra = [
        name
        for name in clean
        if name.startswith(chosen)
        and name not in used
        and name[len(chosen) :].split(".")[0] in roots
        and not any(pattern.search(name) for pattern in patterns)
        and not name.endswith((".inv_freq", ".attn.bias", ".attn.masked_bias"))  # buffers of old versions
    ]
    if missing or wrong or extra:
        parts = [
            f"{len(found)} {word} ({some(found)})"
            for found, word in ((missing, "missing"), (extra, "unexpected"), (wrong, "of another shape"))
            if found
        ]
        raise CheckpointError(
            f"{where} does not fit the model's configuration: {'; '.join(parts)}; "
            "name the configuration that it was trained with (--config-from)"
        )
    return joined


def _find_prefix(expected: Mapping[str, Shape], stored: Mapping[str, str], where: str) -> str:
    """Return the prefix under which the stored names are the expected ones."""
    counts: dict[str, int] = {}
    probes = sorted(expected, key=len, reverse=True)[:3]
    for probe in probes:
        for name in stored:
            if name == probe or name.endswith("." + probe):
                counts.setdefault(name[: len(name) - len(probe)], 0)
    for prefix in counts:
        counts[prefix] = sum(prefix + name in stored for name in expected)
    if not counts:
        return ""
    most = max(counts.values())
    best = sorted(prefix for prefix, count in counts.items() if count == most)
    if len(best) > 1:
        raise CheckpointError(
            f"{where} holds {len(best)} models that fit, under {', '.join(repr(one) for one in best)}; "
            "choose one with --prefix"
        )
    return best[0]


def _normal(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith(".") else prefix + "."
