"""Drawing canaries, with a model where there is one: the only part of the drawing that needs torch."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memaudit.canaries.design import build, check_design, check_length
from memaudit.canaries.design import profile as named_profile
from memaudit.canaries.registry import Request, Sampled, Sampler
from memaudit.canaries.tokens import TokenizerLike
from memaudit.errors import ConfigurationError
from memaudit.manifest import CanarySet
from memaudit.seeds import derive_seed

if TYPE_CHECKING:
    import torch

    from memaudit.strategies.base import Strategy


def generate_canaries(
    tokenizer: TokenizerLike,
    n: int | None = None,
    n_controls: int | None = None,
    family: str = "high_ppl",
    repetitions: Sequence[int] | None = None,
    seed: int = 0,
    model: torch.nn.Module | Strategy | Sampler | None = None,
    include_prob: float = 0.5,
    *,
    profile: str | None = None,
    secret_len: int | None = None,
    corpus: Iterable[str] | None = None,
    ppl_band: tuple[float, float] = (40.0, 500.0),
    sample_temperature: float = 1.8,
    max_batch_size: int = 256,
    options: Mapping[str, Any] | None = None,
) -> CanarySet:
    """Draw the canaries of an audit: candidates with a fair coin each, and controls that are never inserted.

    Args:
        tokenizer: the training's; secrets keep their ids in every record format under it.
        n: candidates (default 32, or the profile's).
        n_controls: controls (default 100, or the profile's).
        family: high_ppl, random, unigram, bigram, structured, near_duplicate, or one that was registered.
        repetitions: how often an included canary is inserted, by tier, dealt in turn (default 1, 4, 16).
        seed: root seed; the same seed gives the same canaries and coins.
        model: what high_ppl samples from: a causal language model, a Strategy (every rank must call), or a
            Sampler. Without it high_ppl takes the corpus' rare tokens or uniform draws, and ``generator`` of
            each canary says so.
        include_prob: probability that a coin includes its canary.
        profile: "smoke" (8 + 16), "routine" (32 + 100) or "powered" (100 + 200); what is given beside it wins.
        secret_len: tokens of a secret, 25 to 64 (default 32).
        corpus: texts for unigram and bigram.
        ppl_band: perplexities between which a sampled secret lies.
        sample_temperature: temperature of the first round; later ones follow the band.
        max_batch_size: sequences that are sampled together.
        options: what the family alone understands (see its module).

    Returns:
        The canaries, before they are placed in records: give them to :func:`memaudit.inject`.

    Raises:
        ConfigurationError: a value is out of its range, or no secrets that keep their ids were found.
        PreflightError: the family is new_token.

    References:
        Meeus et al., Copyright Traps for Large Language Models, 2024; Carlini et al., The Secret Sharer, 2019.
    """
    design = named_profile(profile or "routine")
    n = design.n if n is None else n
    n_controls = design.n_controls if n_controls is None else n_controls
    tiers = design.repetitions if repetitions is None else tuple(int(times) for times in repetitions)
    secret_len = design.secret_len if secret_len is None else secret_len
    check_design(n=n, n_controls=n_controls, repetitions=tiers, include_prob=include_prob)
    check_length(secret_len)
    low, high = ppl_band
    if not 1.0 <= low < high or not sample_temperature > 0:
        raise ConfigurationError(
            f"ppl_band={ppl_band}, sample_temperature={sample_temperature}: expected 1 <= low < high and a "
            "positive temperature"
        )
    request = Request(
        tokenizer=tokenizer,
        count=n + n_controls,
        length=secret_len,
        seed=derive_seed(seed, "canaries", family),
        sampler=_sampler(model, max_batch_size),
        corpus=corpus,
        ppl_band=(float(low), float(high)),
        temperature=float(sample_temperature),
        copies=max(tiers),
        options=dict(options or {}),
    )
    given = (n, n_controls, tiers, secret_len)
    whole = given == (design.n, design.n_controls, design.repetitions, design.secret_len)
    return build(
        request,
        requested=family,
        n=n,
        n_controls=n_controls,
        repetitions=tiers,
        seed=seed,
        include_prob=include_prob,
        profile_name=(profile or "routine") if whole else "custom",
    )


def _sampler(model: object, max_batch_size: int) -> Sampler | None:
    if model is None:
        return None
    if callable(getattr(model, "sample", None)) and callable(getattr(model, "perplexities", None)):
        return model  # type: ignore[return-value]
    import torch

    from memaudit.strategies.base import Strategy

    if isinstance(model, Strategy):
        return StrategySampler(model)
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(
            f"model is a {type(model).__name__}; expected a torch model, a Strategy or a Sampler"
        )
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1:
        from memaudit.strategies.resolve import resolve

        return StrategySampler(resolve(model))
    return ModelSampler(model, max_batch_size)


class ModelSampler:
    """A model in one process, sampled in batches with its own generator; everything about it is restored.

    ``forwards`` counts the model's forwards.
    """

    def __init__(self, model: torch.nn.Module, max_batch_size: int = 256) -> None:
        self._model = model
        self._batch = max(1, max_batch_size)
        self._scoring_batch = min(self._batch, 32)  # logits of every position are kept there
        inner: Any = model
        if hasattr(inner, "get_base_model"):  # PEFT's wrapper hides the names of the arguments
            inner = inner.get_base_model()
        self._parameters = frozenset(inspect.signature(inner.forward).parameters)
        self.forwards = 0

    def sample(
        self,
        count: int,
        length: int,
        *,
        prompt: Sequence[int],
        allowed: Sequence[int],
        temperatures: Sequence[float],
        seed: int,
    ) -> list[Sampled]:
        """Draw continuations with one forward a token for a whole batch (keys and values are kept)."""
        import torch

        source = torch.Generator(device="cpu").manual_seed(seed)
        drawn: list[Sampled] = []
        with _scoring(self._model) as device:
            while len(drawn) < count:
                heat = temperatures[len(drawn) : min(len(drawn) + self._batch, count)]
                drawn.extend(self._chunk(heat, length, prompt, allowed, source, device))
        return drawn

    def _chunk(
        self,
        temperatures: Sequence[float],
        length: int,
        prompt: Sequence[int],
        allowed: Sequence[int],
        source: torch.Generator,
        device: torch.device,
    ) -> list[Sampled]:
        import torch

        context = torch.tensor([list(prompt)] * len(temperatures), dtype=torch.long, device=device)
        heat = torch.tensor(list(temperatures), dtype=torch.float32)[:, None]
        step, cache, banned = context, None, None
        ids, logprobs = [], []
        for _ in range(length):
            logits, cache = self._next(step, cache)
            if banned is None:
                banned = torch.ones(logits.shape[-1], dtype=torch.bool)
                # A vocabulary padded beyond the tokenizer's has ids that no text has.
                banned[[token for token in allowed if token < logits.shape[-1]]] = False
            log_p = torch.log_softmax(logits, dim=-1)
            heated = torch.softmax((logits / heat).masked_fill(banned, -math.inf), dim=-1)
            token = torch.multinomial(heated, 1, generator=source)
            ids.append(token)
            logprobs.append(log_p.gather(1, token))
            context = torch.cat([context, token.to(device)], dim=1)
            step = context if cache is None else token.to(device)
        columns = torch.cat(ids, dim=1).tolist()
        values = torch.cat(logprobs, dim=1).tolist()
        return [Sampled(tuple(a), tuple(b)) for a, b in zip(columns, values, strict=True)]

    def _next(self, step: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """Return float32 logits of the next token on the CPU, [rows, vocabulary], and the cache, if there is one."""
        self.forwards += 1
        known = self._parameters
        keyword = "cache" if "cache" in known else "past_key_values"  # its name changed in transformers 5
        arguments: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        if "use_cache" in known:
            arguments |= {"use_cache": True, **({} if cache is None else {keyword: cache})}
        output = self._model(step, **arguments)
        logits = output.logits if hasattr(output, "logits") else output
        kept = getattr(output, keyword, None) if "use_cache" in known else None
        return logits[:, -1].float().cpu(), kept

    def perplexities(self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """Score continuations of one prompt, right-padded, in batches."""
        import torch

        scored: list[float] = []
        start = 0
        with _scoring(self._model) as device:
            while start < len(continuations):
                rows = [[*prompt, *ids] for ids in continuations[start : start + self._scoring_batch]]
                start += len(rows)
                longest = max(len(row) for row in rows)
                batch = torch.tensor([row + [row[-1]] * (longest - len(row)) for row in rows], device=device)
                self.forwards += 1
                keep = longest - len(prompt) + 1
                arguments = {"logits_to_keep": keep} if "logits_to_keep" in self._parameters else {}
                output = self._model(batch, **arguments)
                logits = output.logits if hasattr(output, "logits") else output
                first = logits.shape[1] - keep  # the row that predicts the first token after the prompt
                for row, ids in enumerate(rows):
                    # A causal model's earlier positions do not see the padding on the right.
                    targets = torch.tensor(ids[len(prompt) :])
                    here = logits[row, first : first + len(targets)].float().cpu()
                    picked = torch.log_softmax(here, dim=-1).gather(1, targets[:, None])
                    scored.append(math.exp(-float(picked.mean())))
        return scored


class StrategySampler:
    """A model on any parallelism: every rank draws its share of the candidates, and all are gathered."""

    def __init__(self, strategy: Strategy, max_batch_size: int = 32) -> None:
        self._strategy = strategy
        self._batch = max_batch_size
        self.forwards = 0

    def sample(
        self,
        count: int,
        length: int,
        *,
        prompt: Sequence[int],
        allowed: Sequence[int],
        temperatures: Sequence[float],
        seed: int,
    ) -> list[Sampled]:
        """Draw this rank's share by the strategy's generation, and return every rank's in order of rank."""
        import torch

        strategy = self._strategy
        world, rank = strategy.record_world, strategy.record_rank
        permitted = set(allowed)
        banned = [token for token in range(_vocabulary(strategy.model)) if token not in permitted]
        mine: list[tuple[int, tuple[int, ...]]] = []
        # One temperature at a time, which generation takes; the share is padded, so that ranks stay in step.
        for heat in dict.fromkeys(temperatures):
            places = [place for place, value in enumerate(temperatures) if value == heat]
            here = places[rank::world]
            padded = -(-len(places) // world)
            with torch.random.fork_rng():
                torch.manual_seed(derive_seed(seed, rank, str(heat)))
                rows = strategy.generate(
                    [list(prompt)] * padded,
                    do_sample=True,
                    temperature=heat,
                    top_k=0,
                    top_p=1.0,
                    min_new_tokens=length,
                    max_new_tokens=length,
                    suppress_tokens=banned,
                )
            self.forwards += length
            mine.extend((place, tuple(row)) for place, row in zip(here, rows, strict=False))
        drawn = dict(strategy.gather(mine))
        every = [drawn[place] for place in range(count)]
        return [
            Sampled(ids, values) for ids, values in zip(every, self._logprobs(prompt, every), strict=True)
        ]

    def perplexities(self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """Score each rank's share of the continuations, and return all of them in their order."""
        return [
            math.exp(-sum(values) / len(values))
            for values in self._logprobs(prompt, [tuple(c) for c in continuations])
        ]

    def _logprobs(self, prompt: Sequence[int], every: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        strategy = self._strategy
        mine = list(range(strategy.record_rank, len(every), strategy.record_world))
        share = -(-len(every) // strategy.record_world)
        found: list[tuple[int, tuple[float, ...]]] = []
        with strategy.scoring() as forward:
            for start in range(0, share, self._batch):
                chunk = mine[start : start + self._batch]
                # Ranks stay in step: one with nothing left forwards the prompt alone.
                rows = [[*prompt, *every[index]] for index in chunk] or [list(prompt)]
                values = _target_logprobs(forward, rows, len(prompt))
                found.extend(zip(chunk, values, strict=False))
                self.forwards += 1
        by_index = dict(strategy.gather(found))
        return [by_index[index] for index in range(len(every))]


def _vocabulary(model: Any) -> int:
    """Return the number of the model's logits; its configuration knows it where the weights are sharded."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None)
    return int(size if size else model.get_output_embeddings().weight.shape[0])


def _target_logprobs(forward: Any, rows: list[list[int]], prompt: int) -> list[tuple[float, ...]]:
    """Return the log-probability of each token after the prompt, through a strategy's forward."""
    import torch

    longest = max(len(row) for row in rows)
    ids = torch.tensor([row + [row[-1]] * (longest - len(row)) for row in rows], device=forward.device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=forward.device)
    places = [
        (at, position)
        for at, row in enumerate(rows)
        for position in range(prompt, max(len(row), prompt + 1))  # a dummy row projects one position
    ]
    wanted = torch.tensor([at * longest + position - 1 for at, position in places], device=forward.device)
    logits = forward(ids, mask, wanted).float().cpu()
    log_p = torch.log_softmax(logits, dim=-1)
    values: list[list[float]] = [[] for _ in rows]
    for line, (at, position) in enumerate(places):
        if position < len(rows[at]):
            values[at].append(float(log_p[line, rows[at][position]]))
    return [tuple(row) for row in values]


@contextlib.contextmanager
def _scoring(model: torch.nn.Module) -> Iterator[torch.device]:
    """Enter evaluation without gradients; each module's own mode is restored on leaving."""
    import torch

    modes = [(module, module.training) for module in model.modules()]
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    try:
        model.eval()
        with torch.no_grad():
            yield device
    finally:
        for module, mode in modes:
            module.training = mode
