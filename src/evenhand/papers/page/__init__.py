"""The page of ``evenhand reproduce``: published tables and figures beside ours."""

from evenhand.papers.page.document import page, write_page

__all__ = ["page", "write_page"]
