"""run_audit: one call on a trained model in memory gives what a session gives, and refuses what it cannot know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memaudit import AuditSession, run_audit
from memaudit.errors import ConfigurationError, ReferenceModeError
from memaudit.preflight import run_preflight
from memaudit.report.build import load_report, verify_report
from tests import test_session
from tests.test_session import a_model, train

planted = test_session.planted  # the fixture


def test_adapters_off_are_the_reference_and_the_report_is_that_of_a_session(
    planted: Any, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    tokenizer, manifest, texts = planted
    model = get_peft_model(
        a_model(), LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=True)
    )
    train(model, texts, epochs=4, lr=2e-2)
    report = run_audit(
        model,
        tokenizer,
        manifest,
        [{"text": tokenizer.decode(ids)} for ids in texts],
        output_dir=tmp_path / "one",
        output_path=tmp_path / "here.json",
        seeds=[0, 1, 2],
        release_context="internal",
        real_sample=8,
    )
    assert load_report(tmp_path / "here.json") == report and verify_report(tmp_path / "here.json").intact
    assert report.reference.mode == "disable_adapter"
    assert report.release_context.declared == "internal"
    assert report.stability is not None and len(report.stability.variance.per_seed) == 3
    assert report.real_records.execution == "executed"
    # Nobody knows the step: the report says so, and there is no course over training to show.
    assert report.step is None and report.timeline == []

    session = AuditSession(model, tokenizer, manifest, output_dir=tmp_path / "two")
    result = session.audit(18)
    by_hand = session.report()
    assert by_hand.step == 18 and by_hand.per_canary == report.per_canary
    assert report.membership.auc == result.membership.auc


def test_a_trained_model_is_no_reference_for_itself(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, texts = planted
    model = a_model()
    AuditSession(model, tokenizer, manifest, output_dir=tmp_path / "kept").reference()
    train(model, texts, epochs=2)
    with pytest.raises(ReferenceModeError, match="ref=<base checkpoint> or ref='none'"):
        run_audit(model, tokenizer, manifest, output_dir=tmp_path / "new")
    weaker = run_audit(model, tokenizer, manifest, ref="none", output_dir=tmp_path / "weaker")
    assert weaker.reference.mode == "none" and weaker.membership.scorer.name == "minkpp"
    kept = run_audit(model, tokenizer, manifest, output_dir=tmp_path / "kept", step=6)
    assert kept.reference.mode == "step0" and kept.step == 6


def test_records_may_come_from_a_file_and_the_preflight_from_before(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, texts = planted
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"text": tokenizer.decode(ids)}) + "\n" for ids in texts))
    found = run_preflight([{"input_ids": ids} for ids in texts], manifest, tokenizer=tokenizer)
    report = run_audit(
        a_model(),
        tokenizer,
        manifest,
        file,
        ref="none",
        output_dir=tmp_path,
        preflight=found,
        skip_generation=True,
        real_sample=8,
    )
    assert report.real_records.execution == "executed" and report.preflight == found.to_dict()
    with pytest.raises(ConfigurationError, match="no dataset"):
        run_audit(a_model(), tokenizer, manifest, tmp_path / "trian.jsonl", output_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="realsample"):
        run_audit(a_model(), tokenizer, manifest, output_dir=tmp_path, realsample=8)
