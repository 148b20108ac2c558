"""LightningMemorizationAudit in Lightning's own Trainer, on a tiny model that memorises its canaries."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger

from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.errors import AuditError, ConfigurationError, MissingExtraError, PreflightError
from memaudit.integrations.lightning import LightningMemorizationAudit
from memaudit.manifest import Manifest
from tests.helpers import tiny_llama

VOCAB = 320
BATCHES = 4


@pytest.fixture(scope="module")
def planted() -> tuple[Any, Manifest, list[str]]:
    """A tokenizer, a manifest of 8 candidates and 20 controls, and the training texts."""
    from memaudit import generate_canaries, inject
    from memaudit.injection import alpaca_text

    rows = instruction_rows(8, seed=0)
    tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=VOCAB)
    canaries = generate_canaries(
        tokenizer, n=8, n_controls=20, family="random", repetitions=(1, 4), seed=0, secret_len=25
    )
    rows, manifest = inject(rows, canaries, fmt="auto", seed=0, tokenizer=tokenizer)
    return tokenizer, manifest, [alpaca_text(row) for row in rows]


class FineTune(L.LightningModule):
    """A LightningModule that holds a model, with dropout, so that a lost random state would show."""

    def __init__(self, vocab: int = VOCAB, lr: float = 3e-3) -> None:
        super().__init__()
        self.model = tiny_llama(vocab, 1, 32, positions=256, attention_dropout=0.1)
        self.lr = lr

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", self.model(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Texts(L.LightningDataModule):
    """The training texts, as full batches; also the validation texts."""

    def __init__(self, tokenizer: Any, texts: list[str]) -> None:
        super().__init__()
        rows = [tokenizer(text)["input_ids"] for text in texts][: 4 * BATCHES]
        length = max(map(len, rows))
        self.ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        self.mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])

    def train_dataloader(self) -> Any:
        size = -(-len(self.ids) // BATCHES)
        rows = [
            {"input_ids": i, "attention_mask": m, "labels": i.masked_fill(m == 0, -100)}
            for i, m in zip(self.ids, self.mask, strict=True)
        ]
        return torch.utils.data.DataLoader(rows, size)

    val_dataloader = train_dataloader


def fit(
    planted: tuple[Any, Manifest, list[str]],
    folder: Path,
    *,
    epochs: int = 2,
    callbacks: list[Callback] | None = None,
    ckpt_path: str | None = None,
    module: FineTune | None = None,
    trainer: dict[str, Any] | None = None,
    **choices: Any,
) -> tuple[LightningMemorizationAudit, L.Trainer, FineTune]:
    """Train with an audit callback and return it."""
    tokenizer, manifest, texts = planted
    L.seed_everything(0, verbose=False)
    module = module if module is not None else FineTune()
    audit = LightningMemorizationAudit(manifest, tokenizer, output_dir=folder, **choices)
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, **(trainer or {})}
    made = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[audit, *(callbacks or [])],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    made.fit(module, Texts(tokenizer, texts), ckpt_path=ckpt_path)
    return audit, made, module


def steps(audit: LightningMemorizationAudit) -> list[int]:
    """Return the steps audited since fit began."""
    return [result.step for result in audit.results]


def test_end_of_training_is_audited_and_reported(planted: Any, tmp_path: Path) -> None:
    audit, _, module = fit(planted, tmp_path)
    assert steps(audit) == [2 * BATCHES]
    document = json.loads((tmp_path / "memaudit-report.json").read_text())
    assert document["distributed"]["strategy"] == "single"
    assert audit.report.membership.n_members == len(planted[1].members)
    # The scores are those of the trained weights, by the model's own forward, one record at a time.
    session = audit._lifecycle.session  # type: ignore[union-attr]
    module.eval()
    for name, record in list(session.rendered.items())[:4]:
        with torch.no_grad():
            logs = module.model(torch.tensor([record.ids])).logits[0].log_softmax(-1)
        start, stop = record.span
        mine = [float(logs[t - 1, record.ids[t]]) for t in range(start, stop)]
        np.testing.assert_allclose(session.last.target.signals[name].logprob, mine, atol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"every_n_epochs": 1}, [4, 8, 12]),
        ({"every_n_epochs": 2}, [8, 12]),
        ({"every_n_steps": 5}, [5, 10, 12]),
        ({"every_n_steps": 4, "every_n_epochs": 1}, [4, 8, 12]),
        ({"at_start": True}, [0, 12]),
        ({"at_start": True, "at_end": False, "every_n_steps": 7}, [0, 7]),
    ],
)
def test_schedule(planted: Any, tmp_path: Path, schedule: dict[str, Any], expected: list[int]) -> None:
    audit, _, _ = fit(planted, tmp_path, epochs=3, **schedule)
    assert steps(audit) == expected
    lines = (tmp_path / "memaudit-timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == expected
    assert (audit.report is None) is (schedule.get("at_end") is False)


def test_accumulation_counts_optimizer_steps(planted: Any, tmp_path: Path) -> None:
    """Four batches an epoch, three to a step: two optimizer steps an epoch, each audited once."""
    audit, trainer, _ = fit(planted, tmp_path, every_n_steps=1, trainer={"accumulate_grad_batches": 3})
    assert trainer.global_step == 4
    assert steps(audit) == [1, 2, 3, 4]


def test_training_is_the_same_to_the_bit_with_and_without_audits(planted: Any, tmp_path: Path) -> None:
    class Draws(Callback):
        """The control: something between steps that does not give the random state back."""

        def on_train_batch_end(self, *_: Any) -> None:
            torch.rand(1)

    def weights(name: str, **kwargs: Any) -> dict[str, torch.Tensor]:
        _, _, module = fit(planted, tmp_path / name, **kwargs)
        return {key: value.clone() for key, value in module.state_dict().items()}

    none = weights("none", at_end=False)
    often = weights("often", at_start=True, every_n_steps=1, every_n_epochs=1)
    drawn = weights("drawn", at_end=False, callbacks=[Draws()])
    assert all(torch.equal(none[key], often[key]) for key in none)
    assert not all(torch.equal(none[key], drawn[key]) for key in none)


def test_flags_and_gradients_are_left_alone(planted: Any, tmp_path: Path) -> None:
    class Looks(Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[bool, bool, bool]] = []

        def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
            frozen = pl_module.model.model.layers[0].mlp
            self.seen.append((pl_module.training, frozen.training, torch.is_inference_mode_enabled()))
            assert all(not p.is_inference() for p in pl_module.parameters())

    module = FineTune()
    module.model.model.layers[0].mlp.training = False  # on purpose: an audit must leave it so
    looks = Looks()
    fit(planted, tmp_path, every_n_steps=1, at_start=True, callbacks=[looks], module=module)
    assert set(looks.seen) == {(True, False, False)}


def test_state_goes_with_the_checkpoint(planted: Any, tmp_path: Path) -> None:
    """A run of four epochs, and one that stops after two and goes on from its checkpoint: the same audits."""
    whole, _, _ = fit(planted, tmp_path / "whole", epochs=4, every_n_epochs=1)
    parts = tmp_path / "parts"
    saver = ModelCheckpoint(
        parts, filename="{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True
    )
    first, _, _ = fit(
        planted, parts, epochs=2, every_n_epochs=1, callbacks=[saver], trainer={"enable_checkpointing": True}
    )
    newest = parts / "epoch=1.ckpt"
    kept = torch.load(newest, weights_only=True)["callbacks"]["LightningMemorizationAudit"]
    assert kept["audited_step"] == 8  # the audit of this epoch's end, not of the one before
    assert [figures["step"] for figures in kept["history"]] == [4, 8] == steps(first)
    second, _, _ = fit(planted, parts, epochs=4, every_n_epochs=1, ckpt_path=str(newest))
    assert steps(second) == [12, 16]
    assert [figures["step"] for figures in second.history] == [4, 8, 12, 16]
    # Lightning does not restore dropout's random state, so only what came before the resume is the same run.
    for mine, theirs in zip(second.history[:2], whole.history[:2], strict=True):
        assert mine["auc"] == theirs["auc"] and mine["n_detected"] == theirs["n_detected"]
    peak = second.state_dict()["peaks"]["auc"]
    assert peak == pytest.approx(max(figures["auc"] for figures in second.history))
    # The reference is the model before its first step, kept from the first part.
    references = [one._lifecycle.session.reference() for one in (second, whole)]  # type: ignore[union-attr]
    assert [one.mode for one in references] == ["initial", "initial"]
    for name, signals in references[0].signals.items():
        np.testing.assert_array_equal(signals.logprob, references[1].signals[name].logprob)


def test_a_checkpoint_of_another_manifest_is_refused(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, _ = planted
    audit = LightningMemorizationAudit(manifest, tokenizer)
    state = audit.state_dict()
    LightningMemorizationAudit(manifest, tokenizer).load_state_dict(state)
    with pytest.raises(ConfigurationError, match="another manifest"):
        audit.load_state_dict({**state, "design_sha256": "0" * 64})
    with pytest.raises(ConfigurationError, match="upgrade memaudit"):
        audit.load_state_dict({**state, "version": 99})


def test_figures_reach_the_loggers_and_callback_metrics(planted: Any, tmp_path: Path) -> None:
    tables = CSVLogger(tmp_path, name="", version="")
    seen: dict[int, float] = {}

    class Reads(Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
            if "memaudit/auc" in trainer.callback_metrics:
                seen[trainer.global_step] = float(trainer.callback_metrics["memaudit/auc"])

    audit, trainer, _ = fit(
        planted, tmp_path, epochs=3, every_n_steps=2, callbacks=[Reads()], trainer={"logger": tables}
    )
    rows = np.genfromtxt(tmp_path / "metrics.csv", delimiter=",", names=True, deletechars="")
    rows = rows[~np.isnan(rows["memaudit/auc"])]  # the module logs rows of its own
    assert [int(step) for step in np.atleast_1d(rows["step"])] == [2, 4, 6, 8, 10, 12]
    auc = [result.figures["auc"] for result in audit.results]
    np.testing.assert_allclose(rows["memaudit/auc"], auc, rtol=1e-6)
    np.testing.assert_allclose(rows["memaudit/auc_max"], np.maximum.accumulate(auc), rtol=1e-6)
    # Two audits an epoch: callback_metrics hold the last one's, not their mean.
    assert seen == {4: pytest.approx(auc[1]), 8: pytest.approx(auc[3])}
    assert float(trainer.callback_metrics["memaudit/n_members"]) == len(planted[1].members)


def test_early_stopping_can_monitor_an_audit(planted: Any, tmp_path: Path) -> None:
    stopper = EarlyStopping(
        "memaudit/auc", mode="min", stopping_threshold=2.0, check_on_train_epoch_end=True
    )  # an AUC is always below 2
    _, trainer, _ = fit(planted, tmp_path, epochs=5, every_n_epochs=1, callbacks=[stopper])
    assert trainer.current_epoch == 1


def test_stop_when_stops_through_the_trainers_own_flag(planted: Any, tmp_path: Path) -> None:
    audit, trainer, _ = fit(planted, tmp_path, epochs=5, every_n_steps=2, stop_when="auc >= 0")
    assert trainer.global_step == 2 and steps(audit) == [2]
    assert audit.report is not None


def test_sanity_checking_is_not_training(planted: Any, tmp_path: Path) -> None:
    class Sanity(Callback):
        audits: int | None = None

        def on_sanity_check_end(self, trainer: L.Trainer, *_: Any) -> None:
            self.audits = len(audit_of(trainer).results)

    def audit_of(trainer: L.Trainer) -> LightningMemorizationAudit:
        return next(c for c in trainer.callbacks if isinstance(c, LightningMemorizationAudit))

    sanity = Sanity()
    audit, _, _ = fit(
        planted, tmp_path, callbacks=[sanity], at_start=True, trainer={"num_sanity_val_steps": 2}
    )
    assert sanity.audits == 0 and steps(audit) == [0, 8]


def failing(when: Callable[[], bool]) -> Callable[..., Any]:
    """Return a scoring function that fails when asked."""
    from memaudit.engine import AuditEngine

    original = AuditEngine.score

    def score(self: Any, *args: Any, **kwargs: Any) -> Any:
        if when():
            raise AuditError("scoring failed on rank 0 at record c-0 (planted)")
        return original(self, *args, **kwargs)

    return score


@pytest.mark.parametrize("policy", ["raise", "warn"])
def test_the_error_policy(
    planted: Any,
    tmp_path: Path,
    policy: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = iter(range(100))
    monkeypatch.setattr("memaudit.engine.AuditEngine.score", failing(lambda: next(calls) == 1))
    if policy == "raise":
        with pytest.raises(AuditError, match="planted"):
            fit(planted, tmp_path, every_n_epochs=1, on_error=policy)
        return
    with caplog.at_level(logging.WARNING, "memaudit"):
        audit, trainer, _ = fit(planted, tmp_path, every_n_epochs=1, on_error=policy)
    assert trainer.global_step == 8 and steps(audit) == [8]
    assert "the audit at step 4 failed" in caplog.text


def test_an_audit_in_on_fit_end_gets_a_clear_message(planted: Any, tmp_path: Path) -> None:
    class Late(Callback):
        message = ""

        def on_fit_end(self, trainer: L.Trainer, *_: Any) -> None:
            try:
                trainer.callbacks[0].audit(trainer)
            except AuditError as error:
                self.message = str(error)

    class Between(Callback):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
            result = trainer.callbacks[0].audit(trainer)
            self.steps.append(-1 if result is None else result.step)

    late, between = Late(), Between()
    fit(planted, tmp_path, callbacks=[late, between])
    assert "on_fit_end" in late.message and "memaudit audit" in late.message
    assert between.steps == [0, 4]
    with pytest.raises(AuditError, match="has not begun"):
        LightningMemorizationAudit(planted[1], planted[0]).audit(L.Trainer(logger=False, accelerator="cpu"))


def test_lost_canaries_stop_training_before_it_starts(planted: Any, tmp_path: Path) -> None:
    tokenizer, manifest, texts = planted
    secrets = [canary.secret for canary in manifest.members]
    without = [text for text in texts if not any(secret in text for secret in secrets)]
    assert 0 < len(without) < len(texts)
    with pytest.raises(PreflightError):
        fit((tokenizer, manifest, without), tmp_path)
    assert not (tmp_path / "memaudit-report.json").exists()
    audit, _, _ = fit(planted, tmp_path)
    assert audit.preflight is not None and audit.preflight.to_dict()


def test_wrong_options_are_told_before_training(planted: Any) -> None:
    tokenizer, manifest, _ = planted
    with pytest.raises(ConfigurationError, match="target_fp"):
        LightningMemorizationAudit(manifest, tokenizer, target_fp=0.1)
    with pytest.raises(ConfigurationError, match="every_steps"):
        LightningMemorizationAudit(manifest, tokenizer, every_n_steps=-1)
    with pytest.raises(ConfigurationError, match="tokenizer"):
        LightningMemorizationAudit(manifest, None)


class CLIModule(FineTune):
    """What a LightningCLI user writes."""


class CLIData(Texts):
    """Reads its texts from a file, as a data module named in YAML does."""

    def __init__(self, path: str) -> None:
        from transformers import AutoTokenizer

        stored = json.loads(Path(path).read_text())
        super().__init__(AutoTokenizer.from_pretrained(stored["tokenizer"]), stored["texts"])


def test_lightning_cli_yaml(planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The YAML that the package ships, with its placeholders filled, trains and audits."""
    import memaudit.launch

    tokenizer, manifest, texts = planted
    manifest.save(tmp_path / "memaudit-manifest.json")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "texts.json").write_text(
        json.dumps({"tokenizer": str(tmp_path / "tokenizer"), "texts": texts})
    )
    shipped = Path(memaudit.launch.__file__).with_name("lightning.yaml")
    monkeypatch.chdir(tmp_path)
    cli = LightningCLI(
        CLIModule,
        CLIData,
        args=[
            "fit",
            f"--config={shipped}",
            "--trainer.accelerator=cpu",
            "--trainer.devices=1",
            "--trainer.logger=false",
            "--trainer.enable_checkpointing=false",
            "--trainer.max_epochs=2",
            f"--trainer.default_root_dir={tmp_path}",
            f"--data.path={tmp_path / 'texts.json'}",
        ],
        save_config_callback=None,
    )
    # The configuration names the manifest's file: its secrets must not be written beside the checkpoints.
    resolved = cli.parser.dump(cli.config)
    assert "manifest: memaudit-manifest.json" in resolved
    assert not any(canary.secret[:12] in resolved for canary in manifest.canaries)
    audit = next(c for c in cli.trainer.callbacks if isinstance(c, LightningMemorizationAudit))
    assert [figures["step"] for figures in audit.history] == [4, 8]
    assert audit.report is not None and (tmp_path / "memaudit-report.json").exists()
    session = audit._lifecycle.session  # type: ignore[union-attr]
    assert session.options.target_fpr == 0.01 and session.options.on_error == "raise"


def test_lightning_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    monkeypatch.delitem(sys.modules, "memaudit.integrations.lightning")
    with pytest.raises(MissingExtraError, match=r"memaudit\[lightning\]"):
        importlib.import_module("memaudit.integrations.lightning")


@pytest.mark.slow
def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    root = Path(__file__).parents[2]
    script = root / "examples" / "lightning_module.py"
    assert len(script.read_text().splitlines()) <= 42
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads((tmp_path / "memaudit-report.json").read_text())
    assert document["membership"]["n_members"] > 0
    assert document["membership"]["detection_claim"] in done.stdout
    lines = (tmp_path / "memaudit-timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1.0, 2.0, 3.0]
