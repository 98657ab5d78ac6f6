"""Experiment trackers, as callbacks: ``callbacks=[eh.track.TensorBoard("runs/board")]``."""

from evenhand.track.mlflow import MLflow
from evenhand.track.tensorboard import TensorBoard
from evenhand.track.tracker import Tracker

__all__ = ["MLflow", "TensorBoard", "Tracker"]
