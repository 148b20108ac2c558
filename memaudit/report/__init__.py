"""The evidence of an audit: a versioned report, its checks and its renderings. No model, no training library.

``build`` makes a report from plain data, ``schema`` says what is in it, ``store`` writes, reads and verifies
it,
``html`` and ``markdown`` render it, ``gate`` judges it, ``compare`` sets two side by side.
"""
