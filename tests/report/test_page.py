"""The HTML page in a real browser: nothing logged, nothing requested, figures there, readable on a phone."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from memaudit.report.build import AuditInputs, build_report
from memaudit.report.figures import figures
from memaudit.report.markdown import annex_markdown, model_card
from memaudit.report.page import html
from memaudit.report.schema import Report
from tests.report.browser import Browser, require_chromium
from tests.report.inputs_for_tests import by_hand, whole_inputs

NAMES = ["roc", "scores", "repetition", "timeline", "extraction"]
NASTY = '<img src="https://example.com/x.png" onerror="console.error(1)">'


@pytest.fixture(scope="module")
def report() -> Report:
    return build_report(whole_inputs(model={"name_or_path": NASTY}, warnings=(NASTY,)))


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html(report), encoding="utf-8")
    return path


def need_a_browser() -> None:
    """Skip without a browser on a machine that cannot install one; in CI that is a failure."""
    try:
        require_chromium()
    except RuntimeError as error:
        if os.environ.get("CI", "").lower() in ("", "0", "false"):
            pytest.skip(str(error))
        pytest.fail(str(error))


@pytest.mark.parametrize(("width", "phone"), [(1200, False), (390, True)])
def test_in_a_browser(page: Path, tmp_path: Path, width: int, phone: bool) -> None:
    need_a_browser()
    with Browser(width=width, height=1000, phone=phone) as browser:
        browser.open(page)
        assert browser.console() == []
        assert browser.requests() == [page.resolve().as_uri()]
        shown = browser.run(
            "return [...document.querySelectorAll('figure')].map(f => [f.id, f.querySelector('svg')"
            ".getBoundingClientRect().width, f.querySelector('svg').getBoundingClientRect().height,"
            " f.querySelector('svg').querySelectorAll('path, use').length])"
        )
        assert [row[0] for row in shown] == [f"figure-{name}" for name in NAMES]
        for name, wide, high, parts in shown:
            assert 250 < wide <= width and high > 80 and parts > 20, name
        # Nothing is wider than the window, so nobody has to scroll sideways to read.
        assert browser.run("return document.documentElement.scrollWidth - window.innerWidth") <= 0
        first = browser.run(
            "return [...document.querySelectorAll('h1, h2')].slice(1, 3).map(h => h.textContent)"
        )
        assert first == ["Membership", "Regurgitation"]
        assert (
            browser.run("return document.querySelectorAll('img, script, iframe, link[href^=http]').length")
            == 0
        )
        assert browser.screenshot(tmp_path / "page.png").stat().st_size > 20_000
        assert browser.pdf(tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_figures_have_names_descriptions_and_numbers(report: Report) -> None:
    drawn = figures(report)
    assert [figure.name for figure in drawn] == NAMES
    seen: set[str] = set()
    for figure in drawn:
        svg = ElementTree.fromstring(figure.svg)
        assert svg.get("role") == "img" and len(svg.get("aria-label", "")) > 40
        space = "{http://www.w3.org/2000/svg}"
        assert svg.findtext(f"{space}title") == figure.title and svg.findtext(f"{space}desc")
        ids = [element.get("id") for element in svg.iter() if element.get("id")]
        assert len(ids) == len(set(ids)) and not seen & set(ids)
        seen |= {str(name) for name in ids}
        assert figure.table.rows and all(len(row) == len(figure.table.columns) for row in figure.table.rows)


def test_the_tables_hold_the_reports_numbers(report: Report) -> None:
    tables = {figure.name: figure.table for figure in figures(report)}
    tiers = {row[0]: row for row in tables["repetition"].rows}
    for name, tier in report.membership.by_repetition.items():
        assert tiers[name][1:4] == (str(tier.n), str(tier.detected), f"{tier.tpr:.3g}")
    groups = {row[0]: row for row in tables["scores"].rows}
    assert sum(int(row[-1]) for name, row in groups.items() if name.startswith("members")) == (
        report.membership.n_detected
    )
    assert int(groups["controls"][1]) == 100
    assert [row[0] for row in tables["timeline"].rows] == ["5", "10"]


def test_a_report_without_scores_still_makes_a_page() -> None:
    manifest, _ = by_hand([1.0], [0.0])
    scores = {canary.id: float("nan") for canary in manifest.canaries}
    empty = build_report(AuditInputs(manifest=manifest, scores={"x": scores}, headline_attack="x"))
    page = html(empty)
    assert figures(empty) == [] and "Not established." in page and "k-00000, m-00000" in page


def test_text_from_outside_is_escaped(report: Report, page: Path) -> None:
    assert "<img" not in page.read_text()
    for text in (annex_markdown(report), model_card(report)):
        assert "<img" not in text


def test_the_page_is_the_same_for_the_same_report(report: Report) -> None:
    assert html(report) == html(report)


def test_annex_and_card_hold_the_verdicts(report: Report) -> None:
    annex, card = annex_markdown(report), model_card(report)
    assert annex.count("\n## ") == 7 and "paragraph 55(i)" in annex
    for text in (annex, card):
        assert report.verdicts.membership.answer in text and report.verdicts.regurgitation.answer in text
    assert card.startswith("## Memorisation audit")
