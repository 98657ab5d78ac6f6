"""The page about a study: one HTML file that opens from disk, and its figures one by one.

:mod:`evenhand.page.figures` draws, :mod:`evenhand.page.document` puts the page together,
:mod:`evenhand.page.report` writes it. Needs plotly (the extra ``plots``).
"""
