"""The audit's figures reach every logger through the trainer's own reporting; those not installed are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations import test_huggingface
from tests.integrations.test_huggingface import Planted, fit, steps

planted = test_huggingface.planted  # the fixture

SETTINGS: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 2, "num_train_epochs": 1}
NAMES = ("memaudit/auc", "memaudit/regurgitation_rate")


def fitted(planted: Planted, folder: Path, logger: str, **more: Any) -> dict[int, dict[str, float]]:
    """Train with a logger and return by step what the audits found."""
    audit, _ = fit(planted, folder, audit={"every": 2}, report_to=logger, **SETTINGS, **more)
    assert steps(audit) == [2, 4, 6, 7]
    return {
        one.step: {f"memaudit/{name}": value for name, value in one.figures.items()} for one in audit.results
    }


def test_weights_and_biases(planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline: what the run is given, and the summary that it makes of it."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    kept = wandb.Run.log
    rows: list[dict[str, Any]] = []

    def log(self: Any, data: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        rows.append({name.removeprefix("train/"): value for name, value in data.items()})
        return kept(self, data, *args, **kwargs)

    monkeypatch.setattr(wandb.Run, "log", log)
    wanted = fitted(planted, tmp_path / "run", "wandb")
    summary = dict(wandb.run.summary)
    wandb.finish()
    check({int(row["global_step"]): row for row in rows if NAMES[0] in row}, wanted)
    assert summary[f"train/{NAMES[0]}"] == pytest.approx(wanted[7][NAMES[0]])
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_mlflow(planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    where = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    wanted = fitted(planted, tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient(where)
    (run,) = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
    found: dict[int, dict[str, float]] = {}
    for name in NAMES:
        for point in client.get_metric_history(run.info.run_id, name):
            found.setdefault(point.step, {})[name] = point.value
    check(found, wanted)


def test_trackio(planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    wanted = fitted(planted, tmp_path / "run", "trackio", project="memaudit-test", run_name="audited")
    (run,) = SQLiteStorage.get_runs("memaudit-test")
    rows = [
        {name.removeprefix("train/"): value for name, value in row.items()}
        for row in SQLiteStorage.get_logs("memaudit-test", run)
    ]
    check({int(row["global_step"]): row for row in rows if NAMES[0] in row}, wanted)


def check(found: dict[int, dict[str, float]], wanted: dict[int, dict[str, float]]) -> None:
    """Compare what a logger kept with what the audits found."""
    assert sorted(found) == sorted(wanted)
    for step, figures in wanted.items():
        for name in NAMES:
            assert found[step][name] == pytest.approx(figures[name])
