"""memaudit report: a page, an annex or a model card section from a report."""

from __future__ import annotations

ALIASES = {"-o": "--output"}


def report(
    report: str,
    html: str | None = None,
    annex: bool = False,
    model_card: bool = False,
    output: str | None = None,
) -> int:
    """Render a report. Without --html and --model-card the compliance annex is printed as Markdown.

    Args:
        report: the report's file.
        html: write one self-contained HTML page there; nothing in it loads anything.
        annex: the compliance annex (EDPB Opinion 28/2024) as Markdown.
        model_card: the section for a hub model card as Markdown.
        output: file for the Markdown; the screen when not given.
    """
    from memaudit.files import write_atomic
    from memaudit.report.markdown import annex_markdown
    from memaudit.report.markdown import model_card as card
    from memaudit.report.store import load_report

    found = load_report(report)
    if html is not None:
        from memaudit.report.page import html as page

        write_atomic(html, page(found))
        print(f"wrote {html}")
    parts = []
    if model_card:
        parts.append(card(found))
    if annex or not (model_card or html is not None):
        parts.append(annex_markdown(found))
    if parts and output is not None:
        write_atomic(output, "\n".join(parts))
        print(f"wrote {output}")
    elif parts:
        print("\n".join(parts), end="")
    return 0
