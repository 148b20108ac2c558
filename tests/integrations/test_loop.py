"""A loop of one's own has the callbacks' schedule, pre-flight, reference, stop rule, error policy and loggers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from memaudit import AuditLoop, AuditSession, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.errors import AuditError, ConfigurationError, PreflightError, ReferenceModeError
from memaudit.injection import alpaca_text
from memaudit.manifest import Manifest
from memaudit.report.build import verify_report
from tests.helpers import tiny_llama

BATCH = 8
QUICK: dict[str, Any] = {"skip_generation": True, "real_sample": 0}


@pytest.fixture(scope="module")
def planted() -> tuple[Any, Manifest, list[dict[str, Any]]]:
    rows = instruction_rows(24, seed=0)
    tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=320)
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", repetitions=(1, 8), seed=3)
    rows, manifest = inject(rows, canaries, fmt="alpaca", seed=0, tokenizer=tokenizer)
    texts = [tokenizer(alpaca_text(row))["input_ids"] for row in rows]
    batches = []
    for start in range(0, len(texts), BATCH):
        part = texts[start : start + BATCH]
        longest = max(map(len, part))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in part])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in part])
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return tokenizer, manifest, batches


def train(audit: AuditLoop, model: Any, batches: list[dict[str, Any]], *, epochs: int = 1) -> list[int]:
    """A loop as the README shows it; returns the steps that were made."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    made: list[int] = []
    for epoch in range(epochs):
        for batch in batches:
            model.train()
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            made.append(len(made) + 1)
            audit.after_step(made[-1], epoch)
            if audit.should_stop:
                return made
        audit.after_epoch(epoch + 1, made[-1])
    return made


def a_model() -> Any:
    return tiny_llama(320, 2, 48, positions=256)


def steps(audit: AuditLoop) -> list[int | None]:
    return [result.step for result in audit.results]


def test_the_schedule_counts_steps_and_epochs_and_always_ends_with_an_audit(
    planted: Any, tmp_path: Path
) -> None:
    tokenizer, manifest, batches = planted
    n = len(batches)
    for every, wanted in ((2, [0, *range(2, 2 * n + 1, 2)]), ("epoch", [0, n, 2 * n]), ("end", [0, 2 * n])):
        model = a_model()
        folder = tmp_path / str(every)
        audit = AuditLoop(
            model, tokenizer, manifest, every=every, at_start=True, output_dir=folder, loader=batches, **QUICK
        )
        audit.begin()
        assert audit.preflight is not None and not audit.preflight.errors
        train(audit, model, batches, epochs=2)
        report = audit.end(2 * n, 2)
        # The last step of a schedule is the end: it is audited once.
        assert steps(audit) == sorted({*wanted, 2 * n})
        assert report is audit.report and report.step == 2 * n and report.reference.mode == "step0"
        assert verify_report(folder / "memaudit-report.json").intact
        lines = (folder / "memaudit-timeline.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == steps(audit)


def test_it_gives_the_scores_of_a_session_called_by_hand(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, batches = planted
    model = a_model()
    audit = AuditLoop(model, tokenizer, manifest, output_dir=tmp_path / "loop", **QUICK)
    audit.begin()
    n = len(train(audit, model, batches))
    audit.end(n)

    again = a_model()
    session = AuditSession(again, tokenizer, manifest, output_dir=tmp_path / "hand", **QUICK)
    session.reference()
    optimizer = torch.optim.AdamW(again.parameters(), lr=5e-3, weight_decay=0.0)
    for batch in batches:
        again.train()
        again(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert session.audit(n).scores == audit.results[-1].scores


def test_stop_when_tells_the_loop_to_leave(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, batches = planted
    model = a_model()
    audit = AuditLoop(
        model, tokenizer, manifest, every=2, output_dir=tmp_path, stop_when="auc > 0.01", **QUICK
    )
    audit.begin()
    assert not audit.should_stop
    assert train(audit, model, batches) == [1, 2]
    assert audit.should_stop and audit.end(2).step == 2 and steps(audit) == [2]


def test_the_error_policy_is_that_of_the_callbacks(
    planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer, manifest, batches = planted
    kept = AuditSession.audit

    def fail_at_2(self: AuditSession, step: int | None, **more: Any) -> Any:
        if step == 2:
            raise AuditError("rank 1 failed")
        return kept(self, step, **more)

    monkeypatch.setattr(AuditSession, "audit", fail_at_2)
    model = a_model()
    lenient = AuditLoop(
        model, tokenizer, manifest, every=2, output_dir=tmp_path / "a", on_error="warn", **QUICK
    )
    lenient.begin()
    n = len(train(lenient, model, batches))
    lenient.end(n)
    assert steps(lenient) == sorted({*range(4, n + 1, 2), n})
    assert "the audit at step 2 failed: rank 1 failed" in caplog.text
    strict = AuditLoop(model, tokenizer, manifest, every=2, output_dir=tmp_path / "b", **QUICK)
    strict.begin()
    with pytest.raises(AuditError, match="rank 1 failed"):
        train(strict, model, batches)


def test_a_resumed_loop_goes_on_and_a_late_one_is_refused(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, batches = planted
    model = a_model()
    first = AuditLoop(model, tokenizer, manifest, every=2, output_dir=tmp_path, **QUICK)
    first.begin()
    train(first, model, batches[:2])
    reference = first.results[-1].reference.signals
    resumed = AuditLoop(model, tokenizer, manifest, every=2, output_dir=tmp_path, **QUICK)
    resumed.begin(step=2)
    found = resumed.end(3).reference
    assert found.mode == "step0" and reference is not None
    kept = resumed.results[-1].reference.signals
    assert kept is not None
    assert all((kept[name].logprob == one.logprob).all() for name, one in reference.items())
    late = AuditLoop(model, tokenizer, manifest, output_dir=tmp_path / "elsewhere", **QUICK)
    with pytest.raises(ReferenceModeError, match="after training has begun"):
        late.begin(step=2)
    with pytest.raises(AuditError, match="before begin"):
        AuditLoop(model, tokenizer, manifest, output_dir=tmp_path, **QUICK).after_step(1)


def test_a_loader_without_the_canaries_stops_before_the_first_step(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, batches = planted
    cut = [{name: tensor[:, :4] for name, tensor in batch.items()} for batch in batches]
    audit = AuditLoop(a_model(), tokenizer, manifest, output_dir=tmp_path, loader=cut, **QUICK)
    with pytest.raises(PreflightError):
        audit.begin()
    assert audit.preflight.errors


def test_wrong_options_are_told_when_it_is_made(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, _ = planted
    for wrong in ({"every": "epcoh"}, {"target_frp": 0.1}, {"stop_when": "auc above 1"}):
        with pytest.raises(ConfigurationError):
            AuditLoop(a_model(), tokenizer, manifest, output_dir=tmp_path, **wrong)


def test_the_figures_reach_the_trackers_of_an_accelerator(planted: Any, tmp_path: Path) -> None:
    from accelerate import Accelerator
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tokenizer, manifest, batches = planted
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    accelerator.init_trackers("run")
    model = accelerator.prepare(a_model())
    audit = AuditLoop(accelerator, tokenizer, manifest, every=2, output_dir=tmp_path, **QUICK)
    audit.begin()
    n = len(train(audit, model, batches))
    audit.end(n)
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    logged = {one.step: one.value for one in events.Scalars("memaudit/auc")}
    assert logged == {r.step: pytest.approx(r.figures["auc"]) for r in audit.results}
