"""The real SmolLM2 tokenizer: secrets of every family keep their ids in every format, on the real trainer."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from memaudit import generate_canaries, inject
from memaudit.demo.smollm2 import smollm2_place
from memaudit.injection import alpaca_text, render
from memaudit.preflight import run_preflight
from tests.helpers import sample_text, tiny_llama

TEXTS = sample_text(30, seed=5)

SHAPES: dict[str, Any] = {
    "text": lambda s: {"text": s},
    "prompt_completion": lambda s: {"prompt": s + "\n", "completion": s},
    "messages": lambda s: {"messages": [{"role": "user", "content": s}, {"role": "assistant", "content": s}]},
    "sharegpt": lambda s: {
        "conversations": [{"from": "user", "value": s}, {"from": "assistant", "value": s}]
    },
    "alpaca": lambda s: {"instruction": s, "input": "", "output": s},
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(**smollm2_place())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["random", "structured", "unigram", "bigram", "near_duplicate"])
def test_every_family_and_format(tokenizer: Any, family: str, tmp_path: Any) -> None:
    trl = pytest.importorskip("trl")
    canaries = generate_canaries(
        tokenizer, n=12, n_controls=100, family=family, corpus=TEXTS, repetitions=(1, 3), seed=2
    )
    model = tiny_llama(len(tokenizer), layers=1, hidden=8)
    for shape, make in SHAPES.items():
        host = datasets.Dataset.from_list([make(text) for text in TEXTS])
        data, manifest = inject(host, canaries, tokenizer=tokenizer)
        for canary in manifest.canaries:
            one = render(canary, manifest.fmt, tokenizer)
            assert one.ids[slice(*one.span)] == canary.secret_ids
        config = trl.SFTConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, max_length=512)
        trainer = trl.SFTTrainer(
            model=model,
            args=config,
            train_dataset=data,
            processing_class=tokenizer,
            formatting_func=alpaca_text if shape == "alpaca" else None,
        )
        result = run_preflight(trainer, manifest)
        assert result.ok, (shape, result.errors)
        assert result.counts.found == len(manifest.members)
        assert "context-differs" not in {one.code for one in result.findings}, shape
