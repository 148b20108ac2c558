"""Whatever the text: injecting and locating is the identity, and rows are only ever added."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memaudit import generate_canaries, inject
from memaudit.canaries import LEAD, settle, tokenizer_identity
from memaudit.injection import render
from memaudit.manifest import Canary, CanarySet
from memaudit.preflight import SurvivalScan
from memaudit.preflight.rows import from_row_list
from tests.helpers import tiny_tokenizer, tiny_tokenizers

TOKENIZERS = tiny_tokenizers()
texts = st.text(max_size=80)
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

SHAPES: dict[str, Any] = {
    "text": lambda s: {"text": s},
    "prompt_completion": lambda s: {"prompt": s, "completion": s},
    "messages": lambda s: {"messages": [{"role": "user", "content": s}, {"role": "assistant", "content": s}]},
    "alpaca": lambda s: {"instruction": s, "input": s, "output": s},
}


@pytest.mark.parametrize("kind", ["bytelevel", "metaspace", "sentencepiece", "wordpiece"])
@given(text=st.text(min_size=1, max_size=60))
@quick
def test_a_settled_secret_keeps_its_ids_for_any_text(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    settled = settle(tokenizer, text)
    if settled is None:  # unprintable, or not a fixed point: never planted
        return
    assert tokenizer.decode(list(settled.ids)).strip() == settled.secret.strip()
    for right in ("", "\n", " ", tokenizer.eos_token):
        ids = tokenizer(LEAD + settled.secret + right, add_special_tokens=False)["input_ids"]
        start = len(tokenizer(LEAD, add_special_tokens=False)["input_ids"])
        assert tuple(ids[start : start + len(settled.ids)]) == settled.ids


@pytest.mark.parametrize("shape", list(SHAPES))
@given(
    host=st.lists(texts, min_size=1, max_size=6),
    words=st.text(min_size=1, max_size=60),
    seed=st.integers(0, 99),
)
@quick
def test_inject_then_locate_is_the_identity(shape: str, host: list[str], words: str, seed: int) -> None:
    tokenizer = TOKENIZERS["bytelevel"]
    settled = settle(tokenizer, words)
    rows = [SHAPES[shape](text) for text in host]
    if settled is None or len(settled.secret) < 4 or any(settled.secret.strip() in text for text in host):
        return
    given_set = CanarySet(
        seed=seed,
        family="mine",
        include_prob=0.5,
        repetitions=(2,),
        tokenizer=tokenizer_identity(tokenizer),
        canaries=(
            Canary(
                id="c-0",
                family="mine",
                generator="mine",
                secret=settled.secret,
                secret_ids=settled.ids,
                role="candidate",
                repetitions=2,
                included=True,
            ),
        ),
    )
    injected, manifest = inject(rows, given_set, seed=seed, tokenizer=tokenizer)
    assert len(injected) == len(rows) + 2
    canary = manifest.canaries[0]
    remaining = [row for row in injected if row != canary.record]
    assert remaining == rows
    one = render(canary, manifest.fmt, tokenizer)
    assert one.ids[slice(*one.span)] == settled.ids
    # Another path finds it, too: the scan over all rows as tokens.
    scan = SurvivalScan(manifest.canaries)
    everything = [{"input_ids": one.ids} if row == canary.record else {"input_ids": [0]} for row in injected]
    scan.add(from_row_list(everything))
    assert [(s.canary, injected[s.row] == canary.record) for s in scan.sightings] == [("c-0", True)] * 2


@given(seed=st.integers(min_value=0, max_value=2**31), text=texts)
@settings(max_examples=15, deadline=None)
def test_the_same_seed_gives_the_same_bytes(seed: int, text: str) -> None:
    def once() -> tuple[Any, str]:
        tokenizer = tiny_tokenizer()
        canaries = generate_canaries(tokenizer, n=4, n_controls=2, family="random", seed=seed)
        rows, manifest = inject([{"text": text}] * 5, canaries, seed=seed, tokenizer=tokenizer)
        return rows, manifest.content_hash()

    assert once() == once()
