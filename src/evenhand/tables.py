"""Projects written by earlier versions of ``evenhand flower new`` import it from here."""

from evenhand.data.tables.files import read_table

__all__ = ["read_table"]
