"""A model fine-tuned on half of real texts: members score higher, attack by attack; shuffled labels say nothing.

Attacks of one run share their records, so their AUCs are compared by differences over the same records (a paired
bootstrap), never by looking at two intervals. docs/attacks.md has the same at larger sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from memaudit import attack
from memaudit.posthoc.attack import AttackResult
from tests.attacks.smollm import real_texts
from tests.conftest import shared_path
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


def paired_interval(result: AttackResult, above: str, below: str) -> tuple[float, float]:
    """95% interval of AUC(above) - AUC(below): members and non-members are drawn anew, both attacks on the same."""
    kernels = []
    for name in (above, below):
        scores, labels = result.scores[name], result.labels
        members, others = (np.array([scores[id] for id in labels if labels[id] == one]) for one in (1, 0))
        kernels.append(np.sign(members[:, None] - others[None, :]) / 2 + 0.5)
    difference = kernels[0] - kernels[1]
    rng = np.random.default_rng(0)
    rows, columns = (rng.integers(n, size=(4000, n)) for n in difference.shape)
    drawn = [difference[np.ix_(i, j)].mean() for i, j in zip(rows, columns, strict=True)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def shuffled_coverage(result: AttackResult, names: tuple[str, ...], repeats: int) -> float:
    """Share of shuffles of the labels under which the interval of an attack's AUC holds one half."""
    from memaudit.posthoc.membership.metrics import metrics_of

    inside = 0
    for seed in range(repeats):
        values = np.random.default_rng(seed).permutation(list(result.labels.values())).tolist()
        labels: Mapping[str, int] = dict(zip(result.labels, values, strict=True))
        for name in names:
            found = metrics_of(result.scores[name], labels)
            assert found is not None
            inside += found.auc_low <= 0.5 <= found.auc_high
    return inside / (repeats * len(names))


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
    for name in ("loss", "minkpp"):
        assert paired_interval(result, "ref", name)[0] > 0, (name, found)
    assert paired_interval(result, "ref", "recall(n_shots=4)")[1] > 0, found
    # Among those without a reference the papers' order (minkpp and recall above loss) is not to be told apart
    # in a fine-tune of so few texts: nothing here may contradict it.
    for name in ("minkpp", "recall(n_shots=4)"):
        assert paired_interval(result, name, "loss")[1] > 0, (name, found)
    assert found["loss"] > found["zlib"], found
    assert result.metrics["ref"].tpr_at_5 > result.metrics["loss"].tpr_at_5
    assert found["stack"] > 0.95 * max(found.values())
    assert result.dataset is not None and result.dataset["inference"]["pvalue"] < 1e-3
    assert result.dataset["shift"] is False


@pytest.mark.slow
def test_shuffled_labels_give_one_half(result: AttackResult) -> None:
    assert shuffled_coverage(result, ("loss", "minkpp", "ref", "recall(n_shots=4)"), 10) >= 0.8


SMOLLM = ("loss", "minkpp", "ref", "recall")


@pytest.fixture(scope="module")
def smollm() -> AttackResult:
    """SmolLM2 with LoRA, the demonstration's rank, rate and two epochs, on 64 of 128 records cut to 32 words."""
    from peft import LoraConfig, get_peft_model

    from memaudit.demo.smollm2 import LEARNING_RATE, load_smollm2

    lines = shared_path("data/records.jsonl").read_text(encoding="utf-8").splitlines()
    words = [json.loads(line)["text"].split() for line in lines]
    pool = list(dict.fromkeys(" ".join(one[:32]) for one in words if len(one) >= 32))
    rng = np.random.default_rng(0)
    drawn = [pool[i] for i in rng.permutation(len(pool))[:138]]
    labels = rng.permutation([1, 0] * 64).tolist()
    model, tokenizer = load_smollm2()
    torch.manual_seed(0)
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    tuned = get_peft_model(model, adapters)
    members = [tokenizer(text)["input_ids"] for text, label in zip(drawn, labels, strict=False) if label]
    finetune(tuned, members, epochs=2, rate=LEARNING_RATE, batch=4)
    return attack(
        tuned, drawn[:128], labels, attacks=",".join(SMOLLM), tokenizer=tokenizer, nonmembers=drawn[128:]
    )


@pytest.mark.slow
def test_on_smollm2_the_reference_leads_and_every_attack_sees_members(smollm: AttackResult) -> None:
    found = {name: one.auc for name, one in smollm.metrics.items()}
    assert smollm.settings["reference"] == "the target with its adapters off"
    for name in SMOLLM:
        assert smollm.metrics[name].auc_low > 0.55, found
    for name in ("loss", "minkpp", "recall"):
        assert paired_interval(smollm, "ref", name)[0] > 0, (name, found)
    for name in ("minkpp", "recall"):
        assert paired_interval(smollm, name, "loss")[1] > 0, (name, found)


@pytest.mark.slow
def test_on_smollm2_shuffled_labels_give_one_half(smollm: AttackResult) -> None:
    assert shuffled_coverage(smollm, SMOLLM, 10) >= 0.8
