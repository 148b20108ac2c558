"""vLLM as a backend: log-probabilities of prompts from its engine, samples with a seed for each.

Tested against a stand-in of vLLM's request and output types (``LLM.generate``, ``SamplingParams``,
``RequestOutput.prompt_logprobs``), not against vLLM itself. It scores in one process on the engine's own devices,
sees no training shards, keeps no signal store, and takes a reference only as a second engine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from memaudit.attacks.base import Generation
from memaudit.attacks.tools import context_length
from memaudit.errors import AuditError, ConfigurationError, MissingExtraError
from memaudit.posthoc.membership.backend import Answer, Which, reference_model
from memaudit.probes import Probe
from memaudit.signals import TokenSignals

T = TypeVar("T")

_log = logging.getLogger(__name__)


class VllmBackend:
    """Answers through vLLM's engine.

    Args:
        llm: a ``vllm.LLM``.
        tokenizer: the target's; by default the engine's own.
        reference: a second ``vllm.LLM``.
        references: further ones, by the names that attacks give.
        lora: a ``vllm.lora.request.LoRARequest`` that goes with each request to the target.
        full_distribution: ask for the log-probability of every token in the vocabulary, which the mean and the
            standard deviation need; the engine must be made with ``max_logprobs=-1``, and it is slow.
    """

    name = "vllm"

    def __init__(
        self,
        llm: Any,
        tokenizer: Any = None,
        *,
        reference: Any = None,
        references: Mapping[str, Any] | None = None,
        lora: Any = None,
        full_distribution: bool = False,
    ) -> None:
        self._llm = llm
        self._engines: dict[Which, Any] = {"target": llm, "reference": reference}
        self._engines.update({reference_model(name): one for name, one in (references or {}).items()})
        self.references = tuple(references or ())
        self._lora = lora
        self.tokenizer = tokenizer if tokenizer is not None else llm.get_tokenizer()
        self.full_distribution = full_distribution
        self.has_reference = reference is not None
        self.rank = 0
        config = _engine_config(llm)
        self.max_length = int(getattr(config, "max_model_len", 0) or context_length(None, self.tokenizer))
        self.vocabulary = len(self.tokenizer)
        if lora is not None:
            _log.warning(
                "vllm: prompt log-probabilities under LoRA were wrong in some versions (vllm issues 16668, 51594); "
                "compare a few texts with backend transformers before you believe them"
            )

    @classmethod
    def open(
        cls,
        model: Any,
        *,
        tokenizer: Any = None,
        reference: Any = None,
        references: Mapping[str, Any] | None = None,
        adapter: str | None = None,
        full_distribution: bool = False,
        **options: Any,
    ) -> VllmBackend:
        """Start engines for a model and a reference given by path or hub id.

        Args:
            model: path or hub id.
            tokenizer: a tokenizer object; by default the engine's.
            reference: path or hub id.
            references: paths or hub ids by the names that attacks give; each path is one engine.
            adapter: folder of a LoRA adapter of the target.
            full_distribution: see the class.
            options: of ``vllm.LLM``.

        Raises:
            MissingExtraError: vllm is not installed.
            ConfigurationError: the model is not given by path, or the engine refuses an option.
        """
        named = dict(references or {})
        given = [*named.values(), *([] if reference is None else [reference])]
        if not all(isinstance(one, str) for one in (model, *given)):
            raise ConfigurationError(
                "backend vllm loads models itself: give model and reference by path or hub id"
            )
        try:
            from vllm import LLM
        except ImportError as error:
            raise MissingExtraError("vllm", "vllm", "backend vllm") from error
        engine = {name: value for name, value in options.items() if value is not None}
        lora = None
        if adapter is not None:
            from vllm.lora.request import LoRARequest

            engine["enable_lora"] = True
            lora = LoRARequest("adapter", 1, adapter)
        if full_distribution:
            engine["max_logprobs"] = -1
        try:
            llm = LLM(model=model, **engine)
            others = {
                path: LLM(model=path, **{**engine, "enable_lora": False}) for path in dict.fromkeys(given)
            }
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"vllm cannot start: {str(error).splitlines()[0][:200]}") from error
        return cls(
            llm,
            tokenizer,
            reference=None if reference is None else others[reference],
            references={name: others[path] for name, path in named.items()},
            lora=lora,
            full_distribution=full_distribution,
        )

    def score(self, probes: Sequence[Probe], which: Which) -> Answer:
        """Send each distinct probe once; the engine's own prefix cache shares prefixes."""
        from vllm import SamplingParams

        distinct = {probe.key: probe for probe in probes}
        wanted = -1 if self.full_distribution else 1
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=wanted, detokenize=False)
        prompts = [{"prompt_token_ids": [*one.prefix_ids, *one.token_ids]} for one in distinct.values()]
        outputs = self._engine(which).generate(prompts, parameters, use_tqdm=False, **self._extra(which))
        signals = {
            key: self._signals(probe, output.prompt_logprobs)
            for (key, probe), output in zip(distinct.items(), outputs, strict=True)
        }
        return Answer(signals=signals, needed=len(distinct), forwards=(len(distinct),))

    def generate(self, wanted: Sequence[Generation]) -> list[list[tuple[int, ...]]]:
        """Send one request a sample, each with its own seed; vLLM batches them."""
        from vllm import SamplingParams

        prompts, parameters = [], []
        for one in wanted:
            for seed in one.seeds:
                prompts.append({"prompt_token_ids": list(one.prompt_ids)})
                parameters.append(
                    SamplingParams(
                        max_tokens=one.max_new_tokens,
                        temperature=one.temperature,
                        top_k=one.top_k or -1,
                        top_p=one.top_p,
                        seed=seed % 2**63,
                    )
                )
        outputs = iter(self._llm.generate(prompts, parameters, use_tqdm=False, **self._extra("target")))
        return [[tuple(next(outputs).outputs[0].token_ids) for _ in one.seeds] for one in wanted]

    def gradient_norms(self, probes: Sequence[Probe], which: Which) -> list[float] | None:
        """Refuse: an inference engine has no gradients.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError("backend vllm has no gradients; use backend transformers")

    def share(self, rows: Sequence[T]) -> list[T]:
        """Return the rows: there is one process."""
        return list(rows)

    def my_part(self, n: int) -> range:
        """Return all of them."""
        return range(n)

    def facts(self) -> dict[str, Any]:
        """Say what answers."""
        return {
            "backend": self.name,
            "max_length": self.max_length,
            "full_distribution": self.full_distribution,
            "adapter": self._lora is not None,
            "reference": "a second engine" if self.has_reference else "none",
            **({"references": dict.fromkeys(self.references, "an engine")} if self.references else {}),
        }

    def _engine(self, which: Which) -> Any:
        return self._engines[which]

    def _extra(self, which: Which) -> dict[str, Any]:
        return {"lora_request": self._lora} if which == "target" and self._lora is not None else {}

    def _signals(self, probe: Probe, rows: Sequence[Mapping[int, Any] | None]) -> TokenSignals:
        shift = len(probe.prefix_ids)
        columns: dict[str, Any] = {
            name: [] for name in ("logprob", "mean", "std", "top1_logprob", "top1_id", "rank")
        }
        targets = list(probe.token_ids[probe.span[0] : probe.span[1]])
        for place, token in enumerate(targets, start=probe.span[0] + shift):
            row = rows[place]
            if row is None or token not in row:
                raise AuditError(
                    f"vllm gave no log-probability of token {place}; are prompt_logprobs allowed?"
                )
            own = row[token]
            best, top = max(row.items(), key=lambda item: item[1].logprob)
            mean, std = _moments(row) if self.full_distribution else (float("nan"), float("nan"))
            columns["logprob"].append(own.logprob)
            columns["mean"].append(mean)
            columns["std"].append(std)
            columns["top1_logprob"].append(top.logprob)
            columns["top1_id"].append(best)
            columns["rank"].append((own.rank or 1) - 1)  # vLLM counts from 1
        return TokenSignals.from_lists(token_ids=targets, **columns)


def _moments(row: Mapping[int, Any]) -> tuple[float, float]:
    """Mean and standard deviation of the log-probability under the distribution itself."""
    logprobs = np.array([one.logprob for one in row.values()], dtype=np.float64)
    p = np.exp(logprobs)
    finite = np.where(p > 0, logprobs, 0.0)
    mean = float((p * finite).sum())
    return mean, float(np.sqrt(max(0.0, float((p * (finite - mean) ** 2).sum()))))


def _engine_config(llm: Any) -> Any:
    engine = getattr(llm, "llm_engine", None)
    return getattr(engine, "model_config", None)
