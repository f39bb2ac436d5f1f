"""Building, verifying and timing candidates in worker processes. `results.FAULTS` is the table of failures."""

from autosched.measure.measurer import Measurer
from autosched.measure.problem import Problem, make_problem
from autosched.measure.results import FAULTS, Failure, FinalMeasurement, Job, Measurement

__all__ = ["FAULTS", "Failure", "FinalMeasurement", "Job", "Measurement", "Measurer", "Problem", "make_problem"]
