#!/usr/bin/env python3
"""First come, first served.

    python3 fcfs.py --endpoint ipc:///tmp/my-scheduler
    onepath serve MODEL --scheduler ipc:///tmp/my-scheduler

Requests take slots in the order in which they came; prompts are computed in that order too, chunk
by chunk next to the rows that decode.  When the cache is full the youngest request gives way.
"""
from onepath_scheduler import runner
from onepath_scheduler.books import Scheduler


class Fcfs(Scheduler):
    def key(self, request):
        return request.arrived_ns


def make(options):
    return Fcfs(slot_count_max=options.max_batch, queue_len_max=options.queue_len,
                whole_prompts=options.whole_prompts)


if __name__ == "__main__":
    parser = runner.parser(__doc__)
    parser.add_argument("--max-batch", type=int, default=4096, help="requests at once (the executor's)")
    parser.add_argument("--queue-len", type=int, default=1024, help="requests that may wait (1024)")
    parser.add_argument("--whole-prompts", action="store_true",
                        help="a prompt is split only if it is longer than a step")
    runner.main(parser, make)
