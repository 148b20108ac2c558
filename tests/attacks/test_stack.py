"""stack: better than its parts where they complement each other, and honest where labels mean nothing."""

from __future__ import annotations

import numpy as np
import pytest

from memaudit.attacks.rmia import dominated_share
from memaudit.attacks.stack import stack, usable
from memaudit.errors import ConfigurationError
from memaudit.stats.roc import auc, delong_interval
from tests.attacks.cases import golden


def sides(scores: dict[str, float], labels: dict[str, int]) -> tuple[list[float], list[float]]:
    return [scores[i] for i in scores if labels[i] == 1], [scores[i] for i in scores if labels[i] == 0]


def make(n: int, gain: float, seed: int) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    rng = np.random.default_rng(seed)
    labels = {f"r{i}": int(rng.random() < 0.5) for i in range(n)}
    noise = {i: rng.normal() for i in labels}
    scores = {
        "a": {i: gain * labels[i] + noise[i] for i in labels},
        "b": {i: -noise[i] + 0.3 * rng.normal() for i in labels},
        "huge": {i: (1e300 if rng.random() < 0.05 else 1.0) for i in labels},
    }
    return scores, labels


def test_complementary_attacks_are_combined() -> None:
    scores, labels = make(400, 1.0, 0)
    found = stack(scores, labels, seed=3)
    assert auc(*sides(found.scores, labels)) > 0.95 > auc(*sides(scores["a"], labels)) + 0.1
    assert set(found.folds) == set(labels) and set(found.folds.values()) == set(range(5))
    for label in (0, 1):
        counts = np.bincount([found.folds[i] for i in labels if labels[i] == label])
        assert counts.max() - counts.min() <= 1


def test_shuffled_labels_give_one_half() -> None:
    inside = 0
    for seed in range(20):
        scores, labels = make(300, 0.0, seed)
        low, high = delong_interval(*sides(stack(scores, labels, seed=seed).scores, labels))
        inside += low <= 0.5 <= high
    assert inside >= 16


def test_a_records_score_does_not_depend_on_its_own_label() -> None:
    """Flip one record's label: its fold's fit never saw it, so at fixed folds its score stays."""
    scores, labels = make(200, 1.0, 5)
    before = stack(scores, labels, seed=1)
    id = next(i for i in labels if labels[i] == 1)
    others = [i for i in labels if before.folds[i] == before.folds[id]]
    changed = {**scores, "a": {**scores["a"], **{i: scores["a"][i] + 5 for i in others if i != id}}}
    after = stack(changed, labels, seed=1)
    assert after.folds == before.folds
    assert after.scores[id] == pytest.approx(before.scores[id], abs=1e-9)


def test_ids_not_order_decide_and_what_is_too_little_is_said() -> None:
    scores, labels = make(100, 1.0, 7)
    backwards = {name: dict(reversed(list(column.items()))) for name, column in scores.items()}
    one, two = stack(scores, labels, seed=2), stack(backwards, dict(reversed(list(labels.items()))), seed=2)
    assert one.scores == pytest.approx(two.scores)
    with pytest.raises(ConfigurationError, match="at least two attacks"):
        stack({"a": scores["a"]}, labels)
    few = dict(list(labels.items())[:6])
    assert not usable(scores, few) and usable(scores, labels)
    with pytest.raises(ConfigurationError, match="needs 5 records"):
        stack(scores, few)


@pytest.mark.parametrize("offline_a", ["0.0", "0.3", "1.0"])
def test_rmia_equals_ml_privacy_meter(offline_a: str) -> None:
    """Columns 2 and 3 are one reference pair; of the two the record's is the one that did not train on it."""
    case = golden()["rmia"]
    population = np.array(case["population"])
    for row, member, expected in zip(
        case["signals"], case["memberships"], case["offline_a"][offline_a], strict=True
    ):
        reference = max(row[i] for i in (2, 3) if not member[i])
        score = dominated_share(
            row[0], reference, population[:, 0], population[:, 2:].max(1), offline_a=float(offline_a)
        )
        assert score == pytest.approx(expected)
