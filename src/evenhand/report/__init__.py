"""The page about a study: one HTML file that opens from disk, and its figures one by one.

:mod:`evenhand.report.figures` draws, :mod:`evenhand.report.page` puts the page together. Needs
``pip install 'evenhand[plots]'``.
"""
