"""Draws with their names and numbers, in memory and on disk."""

from ogradient.trace.trace import Trace, in_order_of, load

__all__ = ["Trace", "in_order_of", "load"]
