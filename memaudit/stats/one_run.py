"""One-run bounds on epsilon: the counting theorems and their conversions, under one name.

``steinke_*`` and ``mahloujifar_*`` are certified, ``xiang_*`` is model-based; docs/statistics.md says when to use
which. All take counts: guesses come from :mod:`memaudit.stats.guesses`, which never sees the coins.
"""

from __future__ import annotations

from memaudit.stats.gdp import gdp_advantage, gdp_beta, gdp_delta, gdp_epsilon, gdp_mu
from memaudit.stats.mahloujifar import mahloujifar_epsilon, mahloujifar_mu, mahloujifar_rejects
from memaudit.stats.steinke import steinke_delta, steinke_epsilon, steinke_pvalue
from memaudit.stats.xiang import (
    xiang_delta,
    xiang_epsilon,
    xiang_epsilon_pvalue,
    xiang_mu,
    xiang_mu_pvalue,
)

__all__ = [
    "gdp_advantage",
    "gdp_beta",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "mahloujifar_epsilon",
    "mahloujifar_mu",
    "mahloujifar_rejects",
    "steinke_delta",
    "steinke_epsilon",
    "steinke_pvalue",
    "xiang_delta",
    "xiang_epsilon",
    "xiang_epsilon_pvalue",
    "xiang_mu",
    "xiang_mu_pvalue",
]
