"""One fine-tune through the Hugging Face Trainer, Lightning and a raw accelerate loop: the same scores, on shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memaudit.report.build import load_report, verify_report
from tests.distributed.launcher import run_checked

WORKER = Path(__file__).with_name("integrations_worker.py")

pytestmark = pytest.mark.distributed

KINDS = ("ddp", "fsdp2")
INTEGRATIONS = ("huggingface", "lightning", "raw")
STEPS = [0, 4, 8]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Everything that one start on two ranks measured, and its folder."""
    folder = tmp_path_factory.mktemp("integrations")
    run_checked(WORKER, [str(folder)], ranks=2, timeout=400)
    return folder, json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_the_ranks_really_share_the_work(run: Any, kind: str, integration: str) -> None:
    part = run[1][kind][integration]
    wanted = "DistributedDataParallel" if kind == "ddp" else "FSDPModule"
    assert wanted in part["wrapper"], part["wrapper"]
    if kind == "ddp":
        assert part["locals"] == [part["total"]] * 2
    else:
        assert sum(part["locals"]) == part["total"] and max(part["locals"]) < 0.6 * part["total"]
    assert part["steps"] == STEPS and part["same_on_every_rank"]
    # Against the consolidated model, one record at a time.
    assert part["consolidated_difference"] <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_the_three_integrations_score_alike(run: Any, kind: str) -> None:
    parts = run[1][kind]
    base = parts["raw"]
    # Training moved the scores by far more than the tolerance: the comparison is of trained models.
    assert max(abs(value) for value in base["scores"][0].values()) == 0.0
    assert min(max(abs(value) for value in scores.values()) for scores in base["scores"][1:]) > 0.1
    for name in ("huggingface", "lightning"):
        for mine, theirs in zip(parts[name]["scores"], base["scores"], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5), name
        for canary, values in base["logprobs"].items():
            assert parts[name]["logprobs"][canary] == pytest.approx(values, abs=1e-5), (name, canary)


def test_sharding_changes_no_score(run: Any) -> None:
    ddp, fsdp2 = (run[1][kind]["raw"]["logprobs"] for kind in KINDS)
    for canary, values in ddp.items():
        assert fsdp2[canary] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_one_report_is_written_and_says_how_the_model_was_spread(
    run: Any, kind: str, integration: str
) -> None:
    folder = run[0] / f"{kind}-{integration}"
    assert verify_report(folder / "memaudit-report.json").intact
    report = load_report(folder / "memaudit-report.json")
    found = report.distributed
    assert found["strategy"] == kind and found["world_size"] == 2 and found["sharded"] is (kind == "fsdp2")
    assert found["total_parameters"] == run[1][kind][integration]["total"]
    assert found["local_parameters"] == run[1][kind][integration]["locals"][0]
    assert found == run[1][kind][integration]["report"]
    assert report.reference.mode == "step0" and report.step == STEPS[-1]
    # A line for each audit, written once: by rank 0.
    lines = (folder / "memaudit-timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == STEPS


def test_the_trainer_ends_in_the_same_bits_with_and_without_audits_on_shards(run: Any) -> None:
    """FSDP2, dropout on; the random state's part is controlled in tests/integrations/test_huggingface.py."""
    bits = run[1]["bits"]
    assert bits["moved"] and bits["n"] > 10
    assert bits["same"]


def test_real_records_that_are_dealt_out_by_rank_are_rank_0s(run: Any) -> None:
    """Each rank sees other rows of such data, and all must score the same sample."""
    ddp, fsdp2 = (run[1][kind]["raw"]["ranked"] for kind in KINDS)
    assert len(set(ddp)) == 4 and ddp == fsdp2
