"""A scheduler that takes every request and never plans anything: alive, polite, and of no use."""
import os
import sys

ROOT = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "examples", "python"))

from onepath_scheduler import runner  # noqa: E402
from onepath_scheduler.books import Scheduler  # noqa: E402


class Silent(Scheduler):
    def key(self, request):
        return request.arrived_ns

    def _plan(self, now_ns):
        return False


if __name__ == "__main__":
    runner.main(runner.parser(__doc__), lambda options: Silent())
