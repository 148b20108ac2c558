"""A masked language model that writes neighbours of a text (Mattern et al. 2023, arXiv 2305.18462)."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from memaudit.errors import ConfigurationError

_ROWS = 32
"""Positions of a text that go through the model together."""


class MaskedLM:
    """Replaces single tokens by what a masked model finds likely there.

    The embedding of the replaced token is partly dropped, so that the model neither sees the token in full nor
    loses its meaning; candidates are ranked over all positions by p(candidate) / (1 - p(original)). Special
    tokens are neither replaced nor put in.

    Args:
        model: a transformers masked language model.
        tokenizer: its tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        positions = getattr(model.config, "max_position_embeddings", None) or 10**9
        # RoBERTa's positions begin after its padding id.
        self._limit = int(positions) - (2 if "roberta" in str(getattr(model.config, "model_type", "")) else 0)
        self._embeddings = model.get_input_embeddings()
        self._special = torch.tensor(sorted(set(tokenizer.all_special_ids)), dtype=torch.long)

    @classmethod
    def load(cls, name: str, tokenizer: str | None = None) -> MaskedLM:
        """Load a model by path or hub id; its tokenizer from the same place unless another is named.

        Raises:
            ConfigurationError: it cannot be loaded, or is no masked language model.
        """
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        try:
            return cls(
                AutoModelForMaskedLM.from_pretrained(name), AutoTokenizer.from_pretrained(tokenizer or name)
            )
        except (OSError, ValueError, KeyError) as error:
            line = str(error).strip().splitlines()[0][:160]
            raise ConfigurationError(
                f"masked_lm={name!r} cannot be loaded as a masked language model: {line}"
            ) from error

    @property
    def fingerprint(self) -> str:
        """A hash of the weights and the vocabulary."""
        digest = hashlib.sha256(str(len(self._tokenizer)).encode())
        for name, parameter in self._model.state_dict().items():
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def rewrite(self, text: str, n: int, top_k: int, dropout: float, seed: int) -> list[str]:
        """Return the text as the tokenizer writes it, then its n most likely neighbours (fewer where it is short).

        Args:
            text: any text; beyond the model's context its tokens are seen in pieces.
            n: neighbours.
            top_k: candidates of each position.
            dropout: share of the embedding that is dropped, in [0, 1).
            seed: of the dropout.
        """
        whole = self._tokenizer(text)["input_ids"]
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if not ids:
            return [text]
        head, tail = _around(whole, ids)
        generator = torch.Generator().manual_seed(seed % 2**63)
        room = max(1, self._limit - len(head) - len(tail))
        found: list[tuple[float, int, int]] = []
        for start in range(0, len(ids), room):
            piece = ids[start : start + room]
            row = torch.tensor([*head, *piece, *tail])
            scores, candidates = self._candidates(row, len(head), len(piece), top_k, dropout, generator)
            for place in range(len(piece)):
                ranked = zip(scores[place].tolist(), candidates[place].tolist(), strict=True)
                others = [
                    (score, start + place, one) for score, one in ranked if one != piece[place] and score > 0
                ]
                found += others[:top_k]
        found.sort(key=lambda one: (-one[0], one[1], one[2]))
        result = [self._decode(ids)]
        for _, place, candidate in found[:n]:
            result.append(self._decode([*ids[:place], candidate, *ids[place + 1 :]]))
        return result

    @torch.no_grad()
    def _candidates(
        self, row: Tensor, first: int, n: int, top_k: int, dropout: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return scores and ids of each position's candidates, [n, top_k]."""
        device = self._embeddings.weight.device
        row = row.to(device)
        clean = self._embeddings(row)
        chosen = min(top_k + 1, self._embeddings.weight.shape[0])
        scores, ids = [], []
        for begin in range(0, n, _ROWS):
            places = torch.arange(first + begin, first + min(begin + _ROWS, n), device=device)
            rows = clean.expand(len(places), *clean.shape).clone()
            index = torch.arange(len(places), device=device)
            kept = torch.rand((len(places), clean.shape[-1]), generator=generator) >= dropout
            rows[index, places] *= kept.to(rows) / (1 - dropout)
            probabilities = self._model(inputs_embeds=rows).logits[index, places].float().softmax(-1)
            original = probabilities.gather(-1, row[places][:, None])
            probabilities = probabilities.index_fill(-1, self._special.to(device), 0.0)
            best = probabilities.topk(chosen, dim=-1)
            scores.append((best.values / (1 - original).clamp_min(1e-6)).cpu())
            ids.append(best.indices.cpu())
        return torch.cat(scores), torch.cat(ids)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _around(whole: list[int], ids: list[int]) -> tuple[list[int], list[int]]:
    """Return the special ids that the tokenizer puts before and after a text."""
    for start in range(len(whole) - len(ids) + 1):
        if whole[start : start + len(ids)] == ids:
            return list(whole[:start]), list(whole[start + len(ids) :])
    return [], []
