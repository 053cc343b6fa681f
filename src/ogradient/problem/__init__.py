"""What is sampled: functions, data, and what a step sees of them."""

from ogradient.problem.problem import Measure, Problem

__all__ = ["Measure", "Problem"]
