"""Attacks on canaries: the same scores over the secret's positions alone, from signals already there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from memaudit.attacks.base import TEXT, Attack, View, reference_of
from memaudit.attacks.registry import is_built_in, make, make_all, names
from memaudit.errors import ConfigurationError
from memaudit.signals import TokenSignals

DEFAULT = ("ref_minkpp", "minkpp", "mink", "ref", "ratio", "loss", "zlib", "wbc", "ez", "gapk", "surp")
"""The attacks of an audit in the loop, the headline attack first; all share two forwards per canary."""


def canary_attacks(*, reference: bool, texts: bool = True) -> list[str]:
    """Return the names of the attacks that can run on canaries with what there is: ours, then third parties'.

    Args:
        reference: whether a reference model's signals exist.
        texts: whether the secrets' texts are at hand.

    Raises:
        ConfigurationError: an installed third party's attack cannot be imported.

    Example:
        >>> canary_attacks(reference=False)[:6]
        ['minkpp', 'mink', 'loss', 'zlib', 'gapk', 'surp']
    """
    usable = []
    for name in (*DEFAULT, *(name for name in names() if not is_built_in(name))):
        needs = make(name).requirements
        beyond = [one.name for one in fields(needs) if one.name not in ("text", "reference", "distribution")]
        if any(getattr(needs, one) for one in beyond):
            continue
        if (reference or not needs.reference) and (texts or not needs.text):
            usable.append(name)
    return usable


def canary_scores(
    attacks: Iterable[str | Attack],
    target: Mapping[str, TokenSignals],
    reference: Mapping[str, TokenSignals] | None = None,
    texts: Mapping[str, str] | None = None,
) -> dict[str, dict[str, float]]:
    """Score every canary under every attack from the signals of the secret's positions.

    Args:
        attacks: names, or attacks; each must need nothing but signals and the secret's text.
        target: the target model's signals by canary id, shape (secret tokens,) each.
        reference: the reference model's signals of the same ids, or None.
        texts: each secret's text by id, for attacks that compress it.

    Returns:
        Scores by attack label and canary id, higher for more member-like, in the order of ``target``.

    Raises:
        ConfigurationError: an attack needs more than there is, or the ids of target and reference differ.
        UnscorableError: a canary's signals are empty or not finite.

    Example:
        >>> one = TokenSignals.from_lists(token_ids=[3, 4], logprob=[-0.5, -1.5], mean=[-1.0, -1.0],
        ...     std=[0.5, 0.5], top1_logprob=[-0.5, -0.2], top1_id=[3, 9], rank=[0, 1])
        >>> canary_scores(["loss", "minkpp"], {"a": one})
        {'loss': {'a': -1.0}, 'minkpp': {'a': -1.0}}
    """
    made = make_all(attacks)
    for attack in made:
        check_canary_attack(attack, reference is not None, texts is not None)
    for what, other in (("reference signals", reference), ("texts", texts)):
        if other is not None and (missing := sorted(set(target) - set(other))):
            raise ConfigurationError(
                f"{what} lack {len(missing)} of the canaries, first {missing[0]}; give them all"
            )
    views = {
        id: View(
            id=id,
            target={TEXT: signals},
            reference={} if reference is None else {TEXT: reference[id]},
            text=None if texts is None else texts[id],
        )
        for id, signals in target.items()
    }
    return {attack.label: {id: attack.evaluate(view) for id, view in views.items()} for attack in made}


def check_canary_attack(attack: Attack, reference: bool, texts: bool) -> None:
    """Refuse an attack that needs more than signals, or signals and texts that are not there.

    Raises:
        ConfigurationError: it does.
    """
    needs = attack.requirements
    if reference_of(attack):
        raise ConfigurationError(
            f"attack {attack.label} names a reference model; here there is one at most: leave the name out"
        )
    if needs.reference and not reference:
        raise ConfigurationError(
            f"attack {attack.label} needs a reference model's signals; give them or leave it out"
        )
    if needs.text and not texts:
        raise ConfigurationError(f"attack {attack.label} needs the secrets' texts; give them or leave it out")
    extra = [
        what
        for what in ("variants", "nonmembers", "members", "generations", "gradients", "corpus", "population")
        if getattr(needs, what)
    ]
    if extra:
        usable = [name for name in names() if name in DEFAULT]
        raise ConfigurationError(
            f"attack {attack.label} needs {', '.join(extra)}, so not on canaries; use one of {usable}"
        )
