"""A model fine-tuned on half of real texts: members score higher, attack by attack; shuffled labels say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from memaudit import attack
from memaudit.posthoc.attack import AttackResult
from tests.attacks.smollm import real_texts
from tests.helpers import tiny_llama, tiny_tokenizer

MEMBERS = 150
ATTACKS = "loss,zlib,mink,minkpp,ref,ref_minkpp,recall(n_shots=4),lower"


def finetune(model: Any, ids: list[list[int]], *, epochs: int, rate: float, batch: int = 10) -> None:
    """Plain training on right-padded batches, seeded."""
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=0.0
    )
    rng = np.random.default_rng(0)
    model.train()
    for _ in range(epochs):
        order = rng.permutation(len(ids))
        for start in range(0, len(ids), batch):
            rows = [ids[i] for i in order[start : start + batch]]
            longest = max(map(len, rows))
            inputs = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            labels = inputs.masked_fill(mask == 0, -100)
            model(input_ids=inputs, attention_mask=mask, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()


@pytest.fixture(scope="module")
def result() -> AttackResult:
    """Both models know the language; the target alone has seen the members, for a few epochs."""
    tokenizer = tiny_tokenizer(add_bos=True)
    texts = real_texts(2 * MEMBERS + 100, 40)
    judged, others = texts[: 2 * MEMBERS], texts[2 * MEMBERS :]
    labels = np.random.default_rng(1).permutation([1] * MEMBERS + [0] * MEMBERS).tolist()
    encoded = [tokenizer(text)["input_ids"][:160] for text in texts]
    reference = tiny_llama(512, 2, 96, positions=1024)
    torch.manual_seed(0)
    finetune(reference, encoded[2 * MEMBERS :], epochs=8, rate=3e-3)
    target = tiny_llama(512, 2, 96, positions=1024)
    target.load_state_dict(reference.state_dict())
    finetune(target, [encoded[i] for i in range(2 * MEMBERS) if labels[i]], epochs=8, rate=2e-3)
    return attack(
        target,
        judged,
        labels,
        attacks=ATTACKS,
        tokenizer=tokenizer,
        reference=reference,
        nonmembers=others[:20],
    )


@pytest.mark.slow
def test_members_score_higher_in_the_expected_order(result: AttackResult) -> None:
    found = {name: one.auc for name, one in result.metrics.items()}
    for name in ("loss", "minkpp", "ref", "recall(n_shots=4)"):
        assert result.metrics[name].auc_low > 0.55, found
    # The reference takes away what makes a text easy for any model: nothing is stronger.
    assert all(found["ref"] > found[name] for name in ("loss", "minkpp", "recall(n_shots=4)")), found
    # In a fine-tune of so few texts every token of a member moves: minkpp and loss are as good as each other.
    assert abs(found["minkpp"] - found["loss"]) < 0.03 and found["loss"] > found["zlib"], found
    assert result.metrics["ref"].tpr_at_5 > result.metrics["loss"].tpr_at_5
    assert found["stack"] > 0.95 * max(found.values())
    assert result.dataset is not None and result.dataset["inference"]["pvalue"] < 1e-3
    assert result.dataset["shift"] is False


@pytest.mark.slow
def test_shuffled_labels_give_one_half(result: AttackResult) -> None:
    from memaudit.posthoc.membership.metrics import metrics_of

    inside = total = 0
    for seed in range(10):
        values = np.random.default_rng(seed).permutation(list(result.labels.values())).tolist()
        labels = dict(zip(result.labels, values, strict=True))
        for name in ("loss", "minkpp", "ref", "recall(n_shots=4)"):
            found = metrics_of(result.scores[name], labels)
            assert found is not None
            inside += found.auc_low <= 0.5 <= found.auc_high
            total += 1
    assert inside >= 0.8 * total
