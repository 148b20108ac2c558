"""One audit's life in a raw loop: references, timeline, report, resumption, isolation, error policy."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memaudit import AuditSession, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.errors import AuditError, ConfigurationError, ManifestError, ReferenceModeError
from memaudit.injection import alpaca_text, render
from memaudit.manifest import Manifest
from memaudit.options import AuditOptions
from memaudit.report.build import load_report, verify_report
from tests.helpers import tiny_llama, tiny_tokenizer


@pytest.fixture(scope="module")
def planted() -> tuple[Any, Manifest, list[list[int]]]:
    rows = instruction_rows(24, seed=0)
    tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=320)
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", repetitions=(1, 8), seed=3)
    rows, manifest = inject(rows, canaries, fmt="alpaca", seed=0, tokenizer=tokenizer)
    return tokenizer, manifest, [tokenizer(alpaca_text(row))["input_ids"] for row in rows]


def a_model(**config: Any) -> Any:
    return tiny_llama(320, 2, 48, positions=256, **config)


def train(model: Any, texts: list[list[int]], epochs: int, lr: float = 5e-3, between: Any = None) -> None:
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0)
    step = 0
    for _ in range(epochs):
        for start in range(0, len(texts), 8):
            rows = texts[start : start + 8]
            length = max(map(len, rows))
            ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
            loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if between is not None:
                between(step)


def brute_force(model: Any, ids: tuple[int, ...], span: tuple[int, int]) -> list[float]:
    """The definition, one record at a time: log-softmax of the model's own logits, all positions."""
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return [float(logits[t - 1, ids[t]]) for t in range(*span)]


def test_full_fine_tune_against_brute_force(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, texts = planted
    model = a_model()
    before = copy.deepcopy(model)
    session = AuditSession(model, tokenizer, manifest, output_dir=tmp_path)
    session.reference()
    train(model, texts, epochs=6)
    result = session.audit(18, epoch=6)
    assert result.reference.mode == "initial" and result.headline_attack == "ref_minkpp"
    for canary in manifest.canaries[:20]:
        ids, span = (one := render(canary, "alpaca", tokenizer)).ids, one.span
        assert result.target.signals[canary.id].logprob == pytest.approx(
            brute_force(model, ids, span), abs=1e-5
        )
        assert result.reference.signals is not None
        assert result.reference.signals[canary.id].logprob == pytest.approx(
            brute_force(before, ids, span), abs=1e-5
        )
        difference = np.mean(brute_force(model, ids, span)) - np.mean(brute_force(before, ids, span))
        assert result.scores["ref"][canary.id] == pytest.approx(difference, abs=1e-5)
    assert result.membership.auc is not None and result.membership.auc > 0.9

    report = session.report()
    assert load_report(tmp_path / "memaudit-report.json") == report
    assert verify_report(tmp_path / "memaudit-report.json").intact
    assert report.step == 18 and report.reference.mode == "step0"
    assert report.distributed["strategy"] == "single" and report.distributed["sharded"] is False
    everything = "".join(path.read_text(errors="replace") for path in tmp_path.glob("memaudit-*.json*"))
    assert not any(canary.secret.strip() in everything for canary in manifest.canaries)
    lines = [json.loads(line) for line in (tmp_path / "memaudit-timeline.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [18] and lines[0]["auc"] == pytest.approx(
        result.membership.auc
    )


def test_lora_reference_is_the_model_with_adapters_off(planted: Any, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    tokenizer, manifest, texts = planted
    base = a_model()
    plain = copy.deepcopy(base)
    model = get_peft_model(base, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    session = AuditSession(model, tokenizer, manifest, output_dir=tmp_path)
    train(model, texts, epochs=2, lr=2e-2)
    result = session.audit(6)  # adapters off are the reference at any time, so nothing had to be taken before
    assert result.reference.mode == "adapter"
    canary = manifest.canaries[0]
    one = render(canary, "alpaca", tokenizer)
    assert result.reference.signals is not None
    assert result.reference.signals[canary.id].logprob == pytest.approx(
        brute_force(plain, one.ids, one.span), abs=1e-5
    )
    assert result.target.signals[canary.id].logprob == pytest.approx(
        brute_force(model, one.ids, one.span), abs=1e-5
    )
    assert (
        np.abs(result.target.signals[canary.id].logprob - result.reference.signals[canary.id].logprob).max()
        > 0.01
    )


def test_a_late_first_reference_is_refused_and_a_resumed_run_reuses_its_own(
    planted: Any, tmp_path: Path
) -> None:
    tokenizer, manifest, texts = planted
    model = a_model()
    first = AuditSession(model, tokenizer, manifest, output_dir=tmp_path).reference()
    train(model, texts, epochs=1)
    resumed = AuditSession(model, tokenizer, manifest, output_dir=tmp_path)
    again = resumed.reference(step=3)
    assert again.cost is None and first.signals is not None and again.signals is not None
    for name, signals in first.signals.items():
        assert np.array_equal(signals.logprob, again.signals[name].logprob)
    with pytest.raises(ReferenceModeError, match="after training has begun"):
        AuditSession(model, tokenizer, manifest, output_dir=tmp_path / "other").audit(3)
    (tmp_path / "memaudit-initial.json").write_text("{")
    with pytest.raises(ReferenceModeError, match="damaged"):
        AuditSession(model, tokenizer, manifest, output_dir=tmp_path).reference(step=3)


def test_a_base_checkpoint_and_none_as_reference(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, texts = planted
    model = a_model()
    model.save_pretrained(tmp_path / "base")
    reference = AuditSession(model, tokenizer, manifest, output_dir=tmp_path / "a").reference()
    train(model, texts, epochs=1)
    by_path = AuditSession(
        model, tokenizer, manifest, output_dir=tmp_path / "b", ref=str(tmp_path / "base")
    ).audit(3)
    assert by_path.reference.mode == "checkpoint"
    assert by_path.reference.signals is not None and reference.signals is not None
    name = manifest.canaries[0].id
    assert by_path.reference.signals[name].logprob == pytest.approx(reference.signals[name].logprob, abs=1e-6)
    weaker = AuditSession(model, tokenizer, manifest, output_dir=tmp_path / "c", ref="none")
    assert weaker.audit(3).headline_attack == "minkpp"
    assert any("weaker" in text for text in weaker.report().audit_warnings)
    with pytest.raises(ReferenceModeError, match="neither a mode"):
        AuditSession(model, tokenizer, manifest, output_dir=tmp_path / "d", ref="bse").audit(3)
    small = tiny_llama(64, 1, 16)
    small.save_pretrained(tmp_path / "small")
    with pytest.raises(ReferenceModeError, match="vocabulary"):
        AuditSession(
            model, tokenizer, manifest, output_dir=tmp_path / "e", ref=str(tmp_path / "small")
        ).audit(3)


def states() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[union-attr]


@pytest.mark.parametrize("audited", [True, False])
def test_training_ends_in_the_same_bits_with_and_without_audits(
    planted: Any, tmp_path: Path, audited: bool
) -> None:
    tokenizer, manifest, texts = planted
    torch.manual_seed(5)
    model = a_model(attention_dropout=0.2)
    model.model.layers[0].mlp.eval()  # one part is in eval mode on purpose
    plain = copy.deepcopy(model)
    session = AuditSession(model, tokenizer, manifest, output_dir=tmp_path)
    if audited:
        before = states()
        session.reference()
        assert states() == before

    def between(step: int) -> None:
        if audited and step % 2 == 0:
            session.audit(step, generate=True)

    torch.manual_seed(6)
    train(model, texts, epochs=1, between=between)
    torch.manual_seed(6)
    train(plain, texts, epochs=1)
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert same


def test_the_check_above_would_notice_a_lost_random_state(planted: Any) -> None:
    _, _, texts = planted
    first, second = a_model(attention_dropout=0.2), a_model(attention_dropout=0.2)
    torch.manual_seed(6)
    train(first, texts, epochs=1)
    torch.manual_seed(6)
    train(second, texts, epochs=1, between=lambda step: torch.rand(1))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_second_audit_of_the_same_weights_forwards_nothing(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, _ = planted
    model = a_model()
    first = AuditSession(model, tokenizer, manifest, output_dir=tmp_path, ref="none").audit(0)
    assert first.target.needed == len(manifest.canaries)
    second = AuditSession(model, tokenizer, manifest, output_dir=tmp_path, ref="none").audit(0)
    assert second.target.needed == 0 and second.target.forwards == (0,)
    assert second.scores == first.scores
    with torch.no_grad():
        model.lm_head.weight[0, 0] += (
            1e-3  # other weights at the same place: nothing of the store may be used
        )
    third = AuditSession(model, tokenizer, manifest, output_dir=tmp_path, ref="none").audit(0)
    assert third.target.needed == len(manifest.canaries)


def test_a_model_that_answers_no_numbers_is_named_and_never_dropped(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, _ = planted
    model = a_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[manifest.members[0].secret_ids[0]] = torch.nan
    session = AuditSession(model, tokenizer, manifest, output_dir=tmp_path, ref="none", skip_generation=True)
    result = session.audit(0)
    assert manifest.members[0].id in result.target.nonfinite
    assert manifest.members[0].id in session.report().membership.unscored.ids


def test_wrong_inputs_are_told_before_anything_is_scored(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, _ = planted
    model = a_model()
    with pytest.raises(ManifestError, match="no manifest at"):
        AuditSession(model, tokenizer, tmp_path / "none.json")
    with pytest.raises(ManifestError, match="was made for the tokenizer"):
        AuditSession(model, tiny_tokenizer(), manifest)
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        AuditSession(model, None, manifest)
    with pytest.raises(ConfigurationError, match="unknown audit option"):
        AuditSession(model, tokenizer, manifest, target_frp=0.01)
    with pytest.raises(ConfigurationError, match="target_fpr"):
        AuditSession(model, tokenizer, manifest, target_fpr=2.0)
    with pytest.raises(ConfigurationError, match="draw shorter secrets"):
        AuditSession(model, tokenizer, manifest, max_length=20)
    with pytest.raises(ConfigurationError, match="do not run on canaries"):
        AuditSession(model, tokenizer, manifest, output_dir=tmp_path, ref="none", attacks=("recall",)).audit(
            0
        )
    with pytest.raises(AuditError, match="nothing to report"):
        AuditSession(model, tokenizer, manifest, output_dir=tmp_path).report()


def test_a_report_of_weights_that_have_moved_on_is_refused(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, texts = planted
    model = a_model()
    session = AuditSession(model, tokenizer, manifest, output_dir=tmp_path, ref="none")
    session.audit(0)
    open_pairs = session.last is not None and session.last.extraction.counts.not_run
    train(model, texts, epochs=1)
    if open_pairs:
        with pytest.raises(AuditError, match="has changed"):
            session.report()


def test_error_policy_and_stop_rule(planted: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer, manifest, _ = planted

    def fail() -> None:
        raise AuditError("rank 1 failed")

    lenient = AuditSession(a_model(), tokenizer, manifest, output_dir=tmp_path, ref="none", on_error="warn")
    assert lenient.guarded(fail, "the audit at step 3") is None
    assert "the audit at step 3 failed: rank 1 failed" in caplog.text and lenient.warnings
    strict = AuditSession(
        a_model(), tokenizer, manifest, output_dir=tmp_path, ref="none", stop_when="auc > 0.01"
    )
    with pytest.raises(AuditError):
        strict.guarded(fail, "the audit")
    assert strict.should_stop(strict.audit(0))
    with pytest.raises(ConfigurationError, match="stop_when"):
        AuditOptions(stop_when="auc above 1")


def test_gradient_norms_against_autograd(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, texts = planted
    model = a_model()

    def by_hand(ids: tuple[int, ...], span: tuple[int, int]) -> float:
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        loss = -torch.stack([logits[t - 1, ids[t]] for t in range(*span)]).mean()
        return sum(
            float(g.double().square().sum()) for g in torch.autograd.grad(loss, list(model.parameters()))
        )

    session = AuditSession(model, tokenizer, manifest, output_dir=tmp_path, attacks=("gradnorm", "loss"))
    canary = manifest.canaries[0]
    one = render(canary, "alpaca", tokenizer)
    before = by_hand(one.ids, one.span)
    session.reference()
    train(model, texts, epochs=1)
    model.eval()
    result = session.audit(3)
    assert result.scores["gradnorm"][canary.id] == pytest.approx(
        before - by_hand(one.ids, one.span), rel=1e-4
    )
    assert all(parameter.grad is None for parameter in model.parameters())
