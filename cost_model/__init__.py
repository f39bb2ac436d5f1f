"""The cost model: judges candidates without lowering them, by closed forms, analytic latency and a learned ranker."""

from cost_model.model import CostModel as CostModel
