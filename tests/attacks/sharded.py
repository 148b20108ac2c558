"""What the distributed tests of attacks score: the same on one process and on many."""

from __future__ import annotations

from typing import Any

from tests.helpers import sample_text, tiny_llama, tiny_tokenizer

TEXTS = [*sample_text(13, seed=6), "", "a"]
LABELS = [1, 0] * 7 + [1]
ATTACKS = (
    "loss,zlib,mink,minkpp,ref,ratio,ref_minkpp,lower,pac(n=2),recall(n_shots=2),conrecall(n_shots=1),"
    "samia(n=2,max_new_tokens=8,top_k=0),wbc,ez,gapk,surp,gradnorm"
)


def build(seed: int) -> Any:
    """A small Llama whose vocabulary is the tokenizer's."""
    return tiny_llama(512, 2, 32, positions=128, seed=seed).eval()


def tokenizer() -> Any:
    """A tokenizer with a beginning of text."""
    return tiny_tokenizer(add_bos=True)
