"""Draws with their names and numbers, in memory and on disk."""

from ogradient.trace.trace import Trace, in_order_of, leaf_names, load

__all__ = ["Trace", "in_order_of", "leaf_names", "load"]
