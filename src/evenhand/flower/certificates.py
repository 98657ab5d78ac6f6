"""The documentation of earlier versions imports it from here; now it is ``evenhand.flower``'s."""

from evenhand.flower.tryout.certificates import write_certificates

__all__ = ["write_certificates"]
