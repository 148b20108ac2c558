"""Reference values of the statistics, read from shared/golden."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.conftest import shared_path


def load(name: str) -> Any:
    """Content of one golden file."""
    return json.loads(shared_path("golden", name).read_text())


def auc_inputs(spec: dict[str, Any]) -> tuple[Any, Any]:
    """Member and non-member scores by the recipe of auc_conformal.json."""
    rng = np.random.default_rng(spec["seed"])
    p = rng.standard_normal(spec["n1"]) + spec["mu"]
    n = rng.standard_normal(spec["n0"])
    if "round" in spec:
        p, n = np.round(p, spec["round"]), np.round(n, spec["round"])
    return p, n


def exposure_references(spec: dict[str, Any]) -> Any:
    """Reference perplexities by the recipe of exposure.json."""
    rng, size = np.random.default_rng(spec["seed"]), spec["N"]
    if spec["dist"] == "normal":
        return 60 + 5 * rng.standard_normal(size)
    if spec["dist"] == "skew4":
        d = 4 / np.sqrt(17)
        z1 = rng.standard_normal(size)
        return 50 + 8 * (d * np.abs(z1) + np.sqrt(1 - d * d) * rng.standard_normal(size))
    return rng.lognormal(3.5, 0.2, size)
