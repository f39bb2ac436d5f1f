"""Judging candidates without lowering them: closed forms, an analytic latency and a learned ranker."""

from cost_model.model import CostModel as CostModel
