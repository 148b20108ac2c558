"""The design of an audit: how many secrets, which are controls, how often each is repeated, and the coins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from memaudit.canaries.registry import Draw, Request, family
from memaudit.canaries.tokens import tokenizer_identity
from memaudit.errors import ConfigurationError
from memaudit.manifest import Canary, CanarySet
from memaudit.seeds import derive_seed, generator

SHORTEST, LONGEST = 25, 64
"""Tokens of a secret: shorter ones are guessed or met by chance, longer ones cost budget for little signal."""

FEWEST_CONTROLS = 100
"""Controls under which a detection rate at 1% false positives is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A named design."""

    n: int
    n_controls: int
    repetitions: tuple[int, ...]
    secret_len: int


PROFILES = {
    "smoke": Profile(n=8, n_controls=16, repetitions=(1,), secret_len=25),
    "routine": Profile(n=32, n_controls=100, repetitions=(1, 4, 16), secret_len=32),
    "powered": Profile(n=100, n_controls=200, repetitions=(1, 4, 16), secret_len=32),
}


def profile(name: str) -> Profile:
    """Return the design called ``name``.

    Raises:
        ConfigurationError: there is none.

    Example:
        >>> profile("routine").n_controls
        100
    """
    if name not in PROFILES:
        raise ConfigurationError(f"no profile {name!r}; choose one of {', '.join(PROFILES)}")
    return PROFILES[name]


def coin(seed: int, canary_id: str, include_prob: float = 0.5) -> bool:
    """Return the coin of one canary: a function of seed and id alone, so that no content can sway it.

    Example:
        >>> coin(0, "c-random-0000") == coin(0, "c-random-0000")
        True
    """
    return bool(generator(derive_seed(seed, "coin", canary_id)).random() < include_prob)


def build(
    request: Request,
    *,
    requested: str,
    n: int,
    n_controls: int,
    repetitions: Sequence[int],
    seed: int,
    include_prob: float,
    profile_name: str,
) -> CanarySet:
    """Draw all secrets at once, deal them to candidates and controls by a seeded shuffle, and flip the coins.

    Candidates and controls come from one drawing, so they differ in nothing but the deal and the coin.
    Control i is the twin of candidate i where there are as many: it is written in its metadata.
    """
    check_design(n=n, n_controls=n_controls, repetitions=repetitions, include_prob=include_prob)
    identity = tokenizer_identity(request.tokenizer)
    draws = family(requested)(request)
    if len(draws) != n + n_controls:
        raise ConfigurationError(
            f"the family {requested!r} gave {len(draws)} secrets where {n + n_controls} were asked for"
        )
    order = generator(seed, "roles").permutation(len(draws))
    canaries = []
    for place, drawn in enumerate(order.tolist()):
        is_candidate = place < n
        name = f"c-{requested}-{place:04d}"
        twin = {} if is_candidate or place - n >= n else {"twin_of": f"c-{requested}-{place - n:04d}"}
        canaries.append(
            _canary(
                draws[drawn],
                name,
                requested,
                candidate=is_candidate,
                repetitions=repetitions[place % len(repetitions)] if is_candidate else 1,
                included=is_candidate and coin(seed, name, include_prob),
                extra=twin,
            )
        )
    notes = list(dict.fromkeys(request.notes))
    members = sum(canary.included for canary in canaries)
    if n and members in (0, n) and 0.0 < include_prob < 1.0:
        notes.append(f"all {n} coins fell alike; choose another seed or more canaries")
    if n_controls < FEWEST_CONTROLS and profile_name != "smoke":
        notes.append(
            f"{n_controls} controls: under {FEWEST_CONTROLS} the detection rate at 1% false positives is refused"
        )
    return CanarySet(
        seed=seed,
        family=requested,
        include_prob=include_prob,
        repetitions=tuple(repetitions),
        profile=profile_name,
        tokenizer=identity,
        canaries=tuple(canaries),
        notes=tuple(notes),
    )


def check_design(*, n: int, n_controls: int, repetitions: Sequence[int], include_prob: float) -> None:
    """Raise where the numbers of a design cannot be used.

    Raises:
        ConfigurationError: says which, and what was expected.
    """
    if n < 1 or n_controls < 0:
        raise ConfigurationError(f"n={n}, n_controls={n_controls}: expected n >= 1 and n_controls >= 0")
    if not repetitions or any(int(times) != times or times < 1 for times in repetitions):
        raise ConfigurationError(f"repetitions={tuple(repetitions)}: expected whole numbers of at least 1")
    if not 0.0 <= include_prob <= 1.0:
        raise ConfigurationError(f"include_prob={include_prob}: expected a probability, 0.5 for a fair coin")


def check_length(secret_len: int) -> None:
    """Raise where a secret's length is out of bounds.

    Raises:
        ConfigurationError: it is not between 25 and 64 tokens.
    """
    if not SHORTEST <= secret_len <= LONGEST:
        raise ConfigurationError(f"secret_len={secret_len}: expected {SHORTEST} to {LONGEST} tokens")


def tiers(canaries: Sequence[Canary]) -> dict[int, int]:
    """Return how many members each number of repetitions has."""
    return dict(sorted(Counter(canary.repetitions for canary in canaries if canary.included).items()))


def _canary(
    draw: Draw,
    name: str,
    requested: str,
    *,
    candidate: bool,
    repetitions: int,
    included: bool,
    extra: dict[str, str],
) -> Canary:
    return Canary(
        id=name,
        family=requested,
        generator=draw.generator,
        secret=draw.secret,
        secret_ids=draw.ids,
        role="candidate" if candidate else "control",
        repetitions=repetitions,
        included=included,
        metadata={**draw.metadata, **extra},
        variants=draw.variants[: repetitions - 1] if candidate else (),
    )
