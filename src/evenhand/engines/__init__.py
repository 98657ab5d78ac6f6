"""Engines run the work of clients: training, questions and evaluation."""

from evenhand.engines import processes
from evenhand.engines.auto import choose
from evenhand.engines.base import Engine, Exchange
from evenhand.engines.loop import Loop
from evenhand.engines.vmap import Vmap

__all__ = ["Engine", "Exchange", "Loop", "Vmap", "choose", "processes"]
