"""The report on a study, one HTML file that opens offline, and its figures.

:mod:`evenhand.page.figures` draws the figures, :mod:`evenhand.page.document` assembles the page,
:mod:`evenhand.page.report` writes it. Needs plotly (the extra ``plots``).
"""
