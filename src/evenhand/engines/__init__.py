"""Engines run the work of clients: training, questions and evaluation."""

from evenhand.engines import processes
from evenhand.engines.auto import choose
from evenhand.engines.base import Engine, Exchange
from evenhand.engines.loop import Loop
from evenhand.engines.masked import DropOut, Masked
from evenhand.engines.vmap import Vmap

__all__ = ["DropOut", "Engine", "Exchange", "Loop", "Masked", "Vmap", "choose", "processes"]
