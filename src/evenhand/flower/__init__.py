"""evenhand on Flower: the same methods in a real federation. Needs the extra ``flower``."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ImportError("evenhand.flower needs Flower, which is not installed: pip install 'evenhand[flower]'")
