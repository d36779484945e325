"""The cores call nothing that could tell two runs apart: `pure.py ARCHIVE...`.

Looks at the undefined symbols of every object of the planning library and of the scheduler's and
the executor's core; shells and devices beside them in the archives are not cores.
"""
import re
import subprocess
import sys

SHELLS = {"actor_scheduler.c.o", "actor_scheduler_look.c.o", "actor_executor.c.o", "actor_executor_device.c.o",
          "actor_executor_null.c.o", "actor_executor_queue.c.o", "actor_executor_wish.c.o",
          "actor_executor_group.c.o", "actor_executor_kv.c.o", "actor_executor_rank.c.o"}
OWN = re.compile(r"(sched|proto|actor_scheduler|actor_executor)_\w+$|actor_outbox_push$")
# Memory at the start, bytes, text.  No clock, no random number, no file, socket, thread, locale.
ALLOWED = re.compile(
    r"(malloc|calloc|aligned_alloc|free|mem(cpy|move|set|cmp|chr)|str(len|cmp)|v?snprintf)$|"
    r"__(v?snprintf|memcpy|memset)_chk$|__stack_chk_fail$|_GLOBAL_OFFSET_TABLE_$|"
    r"__(asan|ubsan|tsan|sanitizer)_\w+$")
# Of proto/ a core may not ask the time.
CLOCK = re.compile(r"proto_clock_\w+$")


def main():
    found = 0
    seen = 0
    for archive in sys.argv[1:]:
        lines = subprocess.run(["nm", "-A", archive], check=True, capture_output=True,
                               text=True).stdout.splitlines()
        for line in lines:
            match = re.match(r".*:(\S+\.o):\s+U (\S+)$", line)
            if not match or match.group(1) in SHELLS:
                continue
            member, symbol = match.groups()
            seen += 1
            if CLOCK.match(symbol) or not (OWN.match(symbol) or ALLOWED.match(symbol)):
                print(f"{archive}: {member} calls {symbol}")
                found += 1
    if seen < 100:
        print(f"only {seen} symbols seen: the archives are not those of the cores")
        return 1
    return 1 if found else 0


sys.exit(main())
