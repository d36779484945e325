#!/usr/bin/env python3
"""Priorities with ageing: nothing starves.

    python3 priority_ageing.py --endpoint ipc:///tmp/my-scheduler --ageing 2
    onepath serve MODEL --scheduler ipc:///tmp/my-scheduler

Lower `priority` goes first.  A request gains one priority level for each --ageing seconds that it
waits.  What counts at a time t is priority - (t - arrived) / ageing; t is the same for all that are
compared, so priority * ageing + arrived gives the same order, never changes, and needs no sorting
again while time goes by.  A request of priority p waits at most for those of priority q < p that
come within (p - q) * ageing after it: later ones are behind it.
"""
from onepath_scheduler import runner
from onepath_scheduler.books import Scheduler


class PriorityAgeing(Scheduler):
    def __init__(self, ageing_ns, **options):
        super().__init__(**options)
        self.ageing_ns = ageing_ns

    def key(self, request):
        return request.priority * self.ageing_ns + request.arrived_ns

    def victim(self, requests):
        """The least important one; among equals, the one with the least work done."""
        return max(requests, key=lambda r: (r.order, -r.known, r.number))


def make(options):
    return PriorityAgeing(int(options.ageing * 1e9), slot_count_max=options.max_batch,
                          queue_len_max=options.queue_len, whole_prompts=options.whole_prompts)


if __name__ == "__main__":
    parser = runner.parser(__doc__)
    parser.add_argument("--ageing", type=float, default=5.0,
                        help="seconds of waiting that are worth one level of priority (5)")
    parser.add_argument("--max-batch", type=int, default=4096, help="requests at once (the executor's)")
    parser.add_argument("--queue-len", type=int, default=1024, help="requests that may wait (1024)")
    parser.add_argument("--whole-prompts", action="store_true",
                        help="a prompt is split only if it is longer than a step")
    runner.main(parser, make)
