"""A stand-in of vLLM's request and output types, served by a transformers model: no vLLM is installed here.

It follows vLLM's documented types: ``LLM.generate(prompts, sampling_params, use_tqdm=, lora_request=)`` takes
prompts of ``prompt_token_ids``; an output has ``prompt_logprobs`` (None for the first token, then a dict of token
id to an object with logprob and rank, the prompt's own token always in it) and ``outputs`` with token ids.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(kw_only=True)
class SamplingParams:
    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True


@dataclass
class CompletionOutput:
    token_ids: list[int]


@dataclass
class RequestOutput:
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput] = field(default_factory=list)


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class LLM:
    """An engine; ``models`` says what the names stand for."""

    models: ClassVar[dict[str, tuple[Any, Any]]] = {}

    def __init__(
        self, model: str, *, max_logprobs: int = 20, enable_lora: bool = False, max_model_len: int = 256
    ) -> None:
        self._model, self._tokenizer = self.models[model]
        self._max_logprobs = max_logprobs
        self.llm_engine = types.SimpleNamespace(
            model_config=types.SimpleNamespace(max_model_len=max_model_len)
        )
        self.requests: list[Any] = []

    def get_tokenizer(self) -> Any:
        return self._tokenizer

    def generate(
        self, prompts: Any, sampling_params: Any = None, *, use_tqdm: bool = True, lora_request: Any = None
    ) -> list[RequestOutput]:
        many = isinstance(sampling_params, list)
        self.requests += prompts
        return [
            self._one(list(prompt["prompt_token_ids"]), sampling_params[i] if many else sampling_params)
            for i, prompt in enumerate(prompts)
        ]

    @torch.no_grad()
    def _one(self, ids: list[int], params: SamplingParams) -> RequestOutput:
        rows = torch.log_softmax(self._model(input_ids=torch.tensor([ids])).logits[0].double(), -1)
        logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            wanted = params.prompt_logprobs if params.prompt_logprobs >= 0 else rows.shape[-1]
            if self._max_logprobs >= 0 and wanted > self._max_logprobs:
                raise ValueError(f"Requested prompt logprobs of {wanted}, which is greater than max allowed")
            logprobs = [None]
            for place in range(1, len(ids)):
                row = rows[place - 1]
                best = row.topk(wanted).indices.tolist()
                logprobs.append(
                    {
                        token: Logprob(float(row[token]), int((row > row[token]).sum()) + 1)
                        for token in {ids[place], *best}
                    }
                )
        generator = torch.Generator().manual_seed(params.seed or 0)
        new: list[int] = []
        for _ in range(params.max_tokens):
            last = self._model(input_ids=torch.tensor([[*ids, *new]])).logits[0, -1].double()
            if params.temperature == 0:
                new.append(int(last.argmax()))
            else:
                new.append(
                    int(torch.multinomial((last / params.temperature).softmax(-1), 1, generator=generator))
                )
        return RequestOutput(ids, logprobs, [CompletionOutput(new)])


def install(monkeypatch: Any, models: dict[str, tuple[Any, Any]]) -> None:
    """Make ``import vllm`` find the stand-in."""
    monkeypatch.setattr(LLM, "models", models)
    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    lora, request = types.ModuleType("vllm.lora"), types.ModuleType("vllm.lora.request")
    request.LoRARequest = LoRARequest  # type: ignore[attr-defined]
    for name, one in (("vllm", module), ("vllm.lora", lora), ("vllm.lora.request", request)):
        monkeypatch.setitem(sys.modules, name, one)
