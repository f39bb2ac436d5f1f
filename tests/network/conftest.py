"""Results of all calls in these tests have guards."""

from tests.guards import guarded_results

__all__ = ["guarded_results"]
