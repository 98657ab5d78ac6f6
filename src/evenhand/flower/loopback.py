"""The documentation of earlier versions imports it from here; now it is ``evenhand.flower``'s."""

from evenhand.flower.tryout.loopback import Loopback

__all__ = ["Loopback"]
