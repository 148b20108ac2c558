"""What a membership attack is: a name, parameters, what it needs, and a score that is arithmetic on signals.

An attack never sees a model. It names the probes that it wants answered (variants of the text), the texts
it wants generated, the gradients it wants measured; whoever runs it takes the union over all attacks, so
that each distinct probe is forwarded once, and hands each attack a view of the answers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memaudit.errors import AuditError, ConfigurationError
from memaudit.signals import TokenSignals

if TYPE_CHECKING:
    from memaudit.attacks.tools import Tools
    from memaudit.probes import Probe

TEXT = "text"
"""Name of the variant that is the record's own text."""


class UnscorableError(AuditError):
    """A record that an attack cannot score; the reason is kept with the record, which no metric counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an attack must be given besides the target's signals of the record's own text.

    Args:
        text: the text itself, not its signals alone.
        reference: a reference model's signals of the same text.
        variants: the target's signals of other texts made from the record.
        nonmembers: texts known not to be members, apart from those that are judged.
        members: texts known to be members, apart from those that are judged.
        generations: texts that the target continues.
        gradients: norms of the target's gradient.
        corpus: token counts of a reference corpus.
        masked_lm: a masked language model that rewrites texts.
        population: signals of the texts known not to be members.
        distribution: signals made of the whole next-token distribution (mean, standard deviation), which some
            backends do not give.

    Example:
        >>> Needs(reference=True).signals_only, Needs(text=True).signals_only
        (True, False)
    """

    text: bool = False
    reference: bool = False
    variants: bool = False
    nonmembers: bool = False
    members: bool = False
    generations: bool = False
    gradients: bool = False
    corpus: bool = False
    masked_lm: bool = False
    population: bool = False
    distribution: bool = False

    @property
    def signals_only(self) -> bool:
        """Whether the signals of the text under target and reference are all that it takes."""
        free = ("reference", "distribution")
        return not any(getattr(self, one.name) for one in fields(self) if one.name not in free)


@dataclass(frozen=True, slots=True)
class Variant:
    """A text to forward as probes: one, or in order the windows of a text longer than the context."""

    probes: tuple[Probe, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Samples wanted of one prompt. Sample i is drawn with seed ``seeds[i]``, whatever is in its batch.

    A sample may end once it has ``max_words`` whole words (characters where not ``spaced``); 0 sets no end.
    """

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    max_new_tokens: int
    max_words: int = 0
    spaced: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A text that is judged. ``id`` names it in every result; ``variant`` is the text as probes."""

    id: str
    text: str
    variant: Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one attack sees of one record.

    Args:
        id: the record.
        target: the target's signals by name of the variant; "text" is the record's own text. On a canary the
            signals are those of the secret's positions alone.
        reference: the reference's, likewise; empty where there is none.
        text: the text, where it is known.
        generation: the samples that the attack asked for.
        samples: the continuations, decoded, one for each of the generation's seeds.
        gradient: squared norm of the target's loss gradient.
        reference_gradient: the same at the reference.
        token_counts: how often each token id occurs in the reference corpus.
        population: mean log-probabilities (target, reference) of each text known not to be a member.
    """

    id: str
    target: Mapping[str, TokenSignals]
    reference: Mapping[str, TokenSignals] = field(default_factory=dict)
    text: str | None = None
    generation: Generation | None = None
    samples: Sequence[str] = ()
    gradient: float | None = None
    reference_gradient: float | None = None
    token_counts: Sequence[int] | None = None
    population: Sequence[tuple[float, float]] = ()

    @property
    def signals(self) -> TokenSignals:
        """The target's signals of the record's own text.

        Raises:
            UnscorableError: they are missing, empty or not finite.
        """
        return self._own(self.target, "target")

    @property
    def reference_signals(self) -> TokenSignals:
        """The reference's signals of the record's own text.

        Raises:
            UnscorableError: they are missing, empty or not finite.
        """
        return self._own(self.reference, "reference")

    def variants(self, prefix: str) -> list[TokenSignals]:
        """Return the target's signals of the variants named ``prefix``/0, ``prefix``/1, ... in order."""
        names = [name for name in self.target if name.startswith(prefix + "/")]
        return [self.target[name] for name in sorted(names, key=lambda name: int(name.rpartition("/")[2]))]

    def _own(self, signals: Mapping[str, TokenSignals], which: str) -> TokenSignals:
        one = signals.get(TEXT)
        if one is None:
            raise UnscorableError(f"no signals of the {which} model")
        if len(one) == 0:
            raise UnscorableError("no token is scored")
        if not np.isfinite(one.logprob).all():
            raise UnscorableError(f"log-probabilities of the {which} model are not finite")
        return one


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """A membership attack: a frozen dataclass whose fields are its parameters, all with defaults.

    Scores are oriented so that higher means more member-like. A third party's attack derives from this class,
    sets ``name`` and ``needs``, writes ``score``, and is listed in the entry-point group "memaudit.attacks".

    Example:
        >>> from memaudit.attacks import make
        >>> make("mink", ratio=0.1).label
        'mink(ratio=0.1)'
    """

    name: ClassVar[str]
    needs: ClassVar[Needs] = Needs()
    source: ClassVar[str] = ""

    @property
    def requirements(self) -> Needs:
        """What this attack needs under its parameters; ``needs`` unless a class says otherwise."""
        return self.needs

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of all parameters."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def label(self) -> str:
        """Name and the parameters that differ from their defaults: one column of the results."""
        values = self.parameters
        changed = [
            f"{one.name}={values[one.name]!r}" for one in fields(self) if values[one.name] != one.default
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
        """Name the texts whose signals the target must give; a pure function of record, pools and seed.

        Returns:
            Variants by name; the record's own text is "text".

        Raises:
            UnscorableError: this record has no such variant.
        """
        return {TEXT: record.variant}

    def pool(self) -> tuple[int, int]:
        """Return how many non-members and members must be held apart from the judged texts."""
        return (0, 0)

    def generation(self, record: Record, tools: Tools) -> Generation | None:
        """Name the samples that the target must generate; none by default."""
        return None

    def evaluate(self, view: View) -> float:
        """Return the score of one record, which is a finite number.

        Raises:
            UnscorableError: the score is not defined for this record, or not finite.
        """
        value = float(self.score(view))
        if not math.isfinite(value):
            raise UnscorableError("the score is not finite: so are the signals that it is made of")
        return value

    @abstractmethod
    def score(self, view: View) -> float:
        """Return the score of one record: arithmetic on its signals, higher for more member-like.

        Raises:
            UnscorableError: the score is not defined for this record.
        """

    def _check(self, holds: bool, what: str) -> None:
        """Refuse a parameter's value."""
        if not holds:
            raise ConfigurationError(f"attack {self.name}: {what}; given {self.parameters}")


@dataclass(frozen=True, kw_only=True)
class ReferenceAttack(Attack):
    """An attack that compares the target with a reference model, which may be one of several.

    Args:
        reference: name, path or hub id of the reference; empty for the run's only one.

    Example:
        >>> from memaudit.attacks import make
        >>> make("ref(reference='small')").label, reference_of(make("loss"))
        ("ref(reference='small')", '')
    """

    reference: str = ""


def reference_of(attack: Attack) -> str:
    """Return the reference that an attack names; empty for the run's only one."""
    return attack.reference if isinstance(attack, ReferenceAttack) else ""
