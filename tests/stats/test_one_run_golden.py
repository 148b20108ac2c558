"""One-run bounds against every golden vector and against independent ways to the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from memaudit.errors import ConfigurationError
from memaudit.stats.one_run import (
    gdp_delta,
    gdp_epsilon,
    mahloujifar_epsilon,
    mahloujifar_mu,
    mahloujifar_rejects,
    steinke_delta,
    steinke_epsilon,
    steinke_pvalue,
    xiang_delta,
    xiang_epsilon,
    xiang_epsilon_pvalue,
    xiang_mu,
    xiang_mu_pvalue,
)
from tests.stats.golden import load


def _pair(key: str) -> tuple[float, float]:
    first, second = (float(part.split("=")[1]) for part in key.split(","))
    return first, second


def test_steinke_is_golden() -> None:
    cases = load("steinke.json")["cases"]
    assert len(cases) == 121
    for case in cases:
        m, r, v = case["m"], case["r"], case["v"]
        for key, value in case["p_value"].items():
            delta, epsilon = _pair(key)
            assert steinke_pvalue(m, r, v, epsilon, delta) == pytest.approx(value, rel=1e-11, abs=1e-300)
        for key, value in case["eps"].items():
            delta, alpha = _pair(key)
            assert steinke_epsilon(m, r, v, delta, alpha) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("r", [1, 2, 7, 60, 300])
def test_the_densest_window_is_the_maximum_over_all_windows(r: int) -> None:
    """The bisection for the window against the definition, for every v and a range of epsilon."""
    for v in range(1, r + 1, max(1, r // 25)):
        for epsilon in (0.0, 0.3, 1.0, 4.0):
            q, delta = 1 / (1 + math.exp(-epsilon)), 1e-4
            mass = stats.binom.pmf(np.arange(v), r, q)
            widths = np.arange(1, v + 1)
            densest = float((np.cumsum(mass[::-1]) / widths).max())
            expected = min(1.0, stats.binom.sf(v - 1, r, q) + 2 * 1000 * delta * densest)
            assert steinke_pvalue(1000, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_steinke_rounds_down_and_is_the_supremum() -> None:
    for m, r, v, delta in [(1000, 1000, 700, 1e-5), (500, 50, 47, 1e-3), (100, 10, 10, 1e-6)]:
        found = steinke_epsilon(m, r, v, delta)
        assert steinke_pvalue(m, r, v, found, delta) < 0.05
        assert steinke_pvalue(m, r, v, found + 1e-8, delta) >= 0.05
        assert steinke_delta(m, r, v, found) == pytest.approx(delta, rel=1e-6)


def test_mahloujifar_is_golden() -> None:
    for case in load("fdp_one_run.json")["cases"]:
        m, r, v, alpha = (case[key] for key in ("m", "r", "v", "alpha"))
        assert mahloujifar_mu(m, r, v, alpha) == pytest.approx(case["mu"], abs=1e-8)
        for delta, value in case["eps"].items():
            assert mahloujifar_epsilon(m, r, v, float(delta), alpha) == pytest.approx(value, abs=1e-6)


def test_mahloujifar_stops_early_without_changing_the_verdict() -> None:
    """The recursion to its end, as the paper writes it, decides alike."""

    def to_the_end(m: int, r: int, v: int, mu: float, alpha: float) -> bool:
        right, wrong = alpha * v / m, alpha * (r - v) / m
        for i in range(v - 1, -1, -1):
            if right >= 1:
                return True
            grown = max(wrong, stats.norm.cdf(stats.norm.ppf(right) - mu))
            right, wrong = right + i / (r - i) * (grown - wrong), grown
        return right + wrong > r / m

    for m, r, v in [(50, 50, 40), (200, 60, 55), (300, 300, 200), (20, 20, 20)]:
        for mu in np.linspace(0.0, 1.5, 16):
            assert mahloujifar_rejects(m, r, v, mu) == to_the_end(m, r, v, float(mu), 0.05), (m, r, v, mu)


def test_xiang_is_golden() -> None:
    golden = load("xiang_exact.json")
    assert len(golden["counts"]) == 26
    for case in golden["counts"]:
        n, r, u, alpha = (case[key] for key in ("n", "r", "u", "alpha"))
        assert xiang_mu(n, r, u, alpha) == pytest.approx(case["mu"], abs=1e-8)
        for delta, value in case["gdp_eps"].items():
            assert xiang_epsilon(n, r, u, float(delta), alpha, family="gdp") == pytest.approx(value, abs=1e-7)
        for mu, value in case["gdp_p"].items():
            assert xiang_mu_pvalue(n, r, u, float(mu)) == pytest.approx(value, rel=1e-8, abs=1e-14)
        for delta, value in case["four_atom_eps"].items():
            assert xiang_epsilon(n, r, u, float(delta), alpha) == pytest.approx(value, abs=1e-8)
        for key, value in case["four_atom_p"].items():
            epsilon, delta = _pair(key)
            # The golden quadrature stops short of tails of 1e-15: relative agreement above that only.
            assert xiang_epsilon_pvalue(n, r, u, epsilon, delta) == pytest.approx(value, rel=1e-8, abs=5e-15)


def test_xiang_agrees_with_the_authors_table_to_its_print() -> None:
    rows = [row for row in load("xiang_exact.json")["published"] if row["family"] == "Gaussian"]
    assert len(rows) == 36
    for row in rows:
        assert xiang_epsilon(row["n"], row["r"], row["u"], 1e-5, family="gdp") == pytest.approx(
            row["eps_published_xiang"], abs=6e-5
        )


def test_xiang_abstention_by_another_quadrature() -> None:
    """Adaptive integration over the Beta law of the highest unreleased quantile, solved for t by scipy."""
    from scipy.optimize import brentq

    n, r, u, mu = 60, 20, 3, 1.2

    def tail(w: float) -> float:
        def above(t: float) -> float:
            return float(stats.norm.cdf(-t - mu / 2) + stats.norm.cdf(-t + mu / 2) - (1 - w))

        t = brentq(above, 0, 40, xtol=1e-14)
        wrong, right = stats.norm.cdf(-t - mu / 2), stats.norm.cdf(-t + mu / 2)
        return float(stats.binom.cdf(u, r, wrong / (wrong + right)) * stats.beta.pdf(w, n - r, r + 1))

    expected = integrate.quad(tail, 0.1, 0.9999, epsabs=1e-13, limit=400)[0]
    assert xiang_mu_pvalue(n, r, u, mu) == pytest.approx(expected, abs=1e-9)


def test_no_errors_is_exact() -> None:
    """P[T <= 0] = (1 - E gamma)^m; the Chernoff form of others is smaller, hence not valid."""
    for m in (10, 100, 1000):
        for mu in (0.5, 1.0, 3.0):
            assert xiang_mu_pvalue(m, m, 0, mu) == pytest.approx(stats.norm.cdf(mu / 2) ** m, rel=1e-10)


def test_xiang_grows_with_canaries_at_the_expected_errors() -> None:
    sizes = [100, 300, 1000, 3000, 10_000, 30_000, 100_000]
    found = [xiang_mu(m, m, round(m * stats.norm.cdf(-0.5))) for m in sizes]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(0.986, abs=0.002)


def test_xiang_delta_inverts_epsilon() -> None:
    for n, r, u in [(1000, 1000, 300), (1000, 200, 20)]:
        for delta in (1e-4, 1e-2):
            epsilon = xiang_epsilon(n, r, u, delta)
            assert xiang_delta(n, r, u, epsilon) == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-5, 0.01, 0.4])
def test_gdp_epsilon_and_delta_invert_each_other(mu: float, delta: float) -> None:
    epsilon = gdp_epsilon(mu, delta)
    if epsilon > 0:
        assert math.log(gdp_delta(mu, epsilon)) == pytest.approx(math.log(delta), abs=1e-8)
    else:
        assert gdp_delta(mu, 0.0) <= delta


def test_gdp_delta_is_the_integral_of_the_privacy_loss() -> None:
    """delta(eps) = E[max(0, 1 - exp(eps - L))] over the loss L ~ N(mu^2/2, mu^2) of the Gaussian mechanism."""
    for mu, epsilon in [(0.5, 0.2), (1.0, 1.0), (2.0, 3.0)]:

        def gain(loss: float, mu: float = mu, epsilon: float = epsilon) -> float:
            return float((1 - math.exp(epsilon - loss)) * stats.norm.pdf(loss, mu * mu / 2, mu))

        assert gdp_delta(mu, epsilon) == pytest.approx(integrate.quad(gain, epsilon, 60)[0], abs=1e-9)


@pytest.mark.parametrize(("m", "r", "v"), [(5, 6, 1), (5, 3, 4), (5, 3, -1), (5, 2.5, 1)])
def test_impossible_counts_are_refused(m: int, r: int, v: int) -> None:
    for function in (steinke_epsilon, mahloujifar_mu, xiang_mu):
        with pytest.raises(ConfigurationError):
            function(m, r, v)


def test_delta_zero_has_no_gaussian_epsilon() -> None:
    with pytest.raises(ConfigurationError, match="0 < delta"):
        gdp_epsilon(1.0, 0.0)
    assert gdp_epsilon(1.0, 1.0) == 0.0
    assert gdp_epsilon(0.0, 0.5) == 0.0
