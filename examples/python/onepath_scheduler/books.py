"""All of a scheduler but its policy: requests, slots, blocks, plans, results, ends.

Subclass Scheduler and override what you care about:

    key(request)            order of admission and of prefill; smaller goes first, constant
    victim(requests)        who loses its blocks when nothing else can run
    prefill_length(...)     how much of a prompt goes into a step

The rest follows docs/scheduler-protocol.md: at most 1 + overlap depth plans in flight; decode rows
go first; an admitted request gets the blocks of its whole prompt; a request that grows takes one
more; after a refused plan its requests start over from their tokens and the next plan is full.
There is no prefix cache: every prompt is computed.  Sliding-window groups are kept whole, which is
correct and takes more blocks than needed; groups with states are refused.

A core reads no clock and draws no random number: the same inputs give the same outputs, live and in
replay.  Long because it is one state machine.
"""
import hashlib
import heapq
from array import array
from collections import OrderedDict, deque

from . import codec
from .codec import FINISH, ROLE, ROW_FLAG, RULE, STATUS
from .pool import BlockPool

LOCAL = 0  # the peer number of our own runner
NEVER = codec.U64_MAX
WAITING, PREFILLING, DECODING, ENDED = "waiting", "prefilling", "decoding", "ended"

REFUSALS_MAX = 3        # refused plans in a row that end a request
REFUSALS_IN_ALL_MAX = 16  # without a good step between: the executor is at fault
FAULTS_MAX = 3          # of an executor, without a good step between
ENDED_KEPT = 4096       # ended requests that a late SUBMIT is recognised by
WAITING_BYTES_MAX = 64 << 20
LOAD_INTERVAL_NS = 250_000_000
QUEUE_TIMEOUT_NS = 600_000_000_000


class Request:
    """One request.  Tokens [0, known) are with the executor; `length` counts those in flight too."""

    __slots__ = ("id", "gateway", "prompt_length", "generation_max", "emitted", "priority",
                 "arrived_ns", "deadline_ns", "number", "order", "submit", "state", "slot",
                 "generated", "computed", "length", "length_max", "blocks", "covered", "in_flight",
                 "broken", "refusals", "queue_ns")

    def __init__(self, gateway, submit, now_ns, number, timeout_ns):
        self.id, self.gateway, self.submit, self.number = submit.request, gateway, submit, number
        self.prompt_length, self.emitted = submit.prompt_length, submit.emitted
        self.generation_max, self.priority = submit.generation_max, submit.priority
        self.length_max = self.prompt_length + self.generation_max
        self.arrived_ns, self.deadline_ns = now_ns, min(now_ns + timeout_ns, NEVER)
        self.order = None       # what key() said
        self.state, self.slot = WAITING, 0
        self.generated = 0      # tokens given since SUBMIT
        self.computed = 0       # tokens whose computation is planned, while prefilling
        self.length = 0         # tokens including those in flight, while decoding
        self.blocks = ()        # block ids by group and column
        self.covered = 0        # tokens that the blocks hold
        self.in_flight = 0      # rows in plans without a result
        self.broken = False     # a plan with a row of it was refused
        self.refusals = 0
        self.queue_ns = 0

    @property
    def known(self):
        return self.prompt_length + self.generated

    def __lt__(self, other):
        return (self.order, self.number) < (other.order, other.number)


class Flight:
    """A plan without a result: its rows in order, extends first."""

    __slots__ = ("step", "rows", "extends", "releases", "clears")

    def __init__(self, step):
        self.step, self.rows, self.extends = step, [], []
        self.releases, self.clears = [], []


class Tables:
    """The patches of one plan."""

    def __init__(self):
        self.slots, self.groups, self.columns = array("I"), array("B"), array("I")
        self.counts, self.blocks = array("I"), array("I")

    def add(self, slot, group, column, blocks):
        if blocks:
            self.slots.append(slot)
            self.groups.append(group)
            self.columns.append(column)
            self.counts.append(len(blocks))
            self.blocks.extend(blocks)


class Scheduler:
    # ---- policy: override these -------------------------------------------------------------------

    def key(self, request):
        """Smaller goes first.  Asked once, when the request arrives; must be comparable."""
        return request.arrived_ns

    def victim(self, requests):
        """Who of these loses its blocks: the one that would be admitted last."""
        return max(requests)

    def prefill_length(self, request, left, budget, is_first):
        """How many of the `left` tokens of a prompt go into this step, which has room for `budget`.
        `is_first`: no other prompt is in the step.  0 = none, and none behind it."""
        if self.whole_prompts and left > budget and not is_first:
            return 0
        return min(left, budget)

    # ---- making -----------------------------------------------------------------------------------

    def __init__(self, slot_count_max=4096, queue_len_max=1024, whole_prompts=False):
        self.slot_count_max, self.queue_len_max = slot_count_max, queue_len_max
        self.whole_prompts = whole_prompts
        self.peers = {}              # peer number: (role, epoch)
        self.requests = {}           # (gateway, id): Request
        self.ended = OrderedDict()   # the last ones: (gateway, id)
        self.waiting = []            # heap of Requests; ended ones are skipped
        self.waiting_count = self.waiting_bytes = self.arrivals = 0
        self.deadlines = []          # heap of (deadline, number, Request)
        self.draining = False
        self.executor, self.executor_epoch, self.info = None, 0, None
        self.faults = 0
        self.step = 0
        self.load_next_ns, self.load_due = 0, False
        self.totals = dict.fromkeys(("steps", "plans_refused", "graph_steps", "eager_steps",
                                     "prompt_tokens", "generation_tokens", "preemptions",
                                     "above_ladder_steps"), 0)
        self.out, self.ends = [], []
        self._forget_executor()

    def _forget_executor(self):
        self.pool, self.flights = None, deque()
        self.slots, self.free_slots = {}, []   # slot: Request; numbers that are free
        self.prefilling, self.decoding = [], []
        self.releases, self.clears, self.zeroes = [], [], []  # for the next plan
        self.base, self.recovering, self.refused_in_all = 0, False, 0

    # ---- what the runner calls --------------------------------------------------------------------

    def on_input(self, now_ns, peer, message):
        """One input; returns the messages to send, in order, as (peer, message)."""
        self.out, self.ends = [], []
        handler = (self._LOCAL if peer == LOCAL else self._WIRE).get(message.KIND)
        if handler is not None:
            tokens = handler(self, now_ns, peer, message)
            while self._plan(now_ns):
                pass
            if tokens:
                self.out.extend(tokens)  # after the plan, which somebody waits for
            self.out.extend(self.ends)
            self._send_load(now_ns)
        return self.out

    def deadline_ns(self):
        """When a TIMER is wanted; NEVER if none is."""
        deadline = self.load_next_ns if self.load_due else NEVER
        while self.deadlines and self.deadlines[0][2].state != WAITING:
            heapq.heappop(self.deadlines)
        return min(deadline, self.deadlines[0][0]) if self.deadlines else deadline

    def idle(self):
        """After DRAIN: whether everything that was begun has ended."""
        return not self.requests

    def digest(self):
        """A number made of the state: two runs that differ differ in it, soon."""
        state = (self.step, self.base, self.arrivals, self.waiting_count, len(self.requests),
                 sorted(self.slots), self.free_slots[-8:], self.executor, self.recovering,
                 self.pool.free_parents[-8:] if self.pool else None, tuple(self.totals.values()),
                 [flight.step for flight in self.flights])
        return int.from_bytes(hashlib.blake2b(repr(state).encode(), digest_size=8).digest(), "little")

    # ---- links and time ---------------------------------------------------------------------------

    def _on_peer_up(self, _now_ns, _peer, up):
        self.peers[up.peer] = (up.role, up.epoch)
        if up.role == ROLE.GATEWAY:
            self._send_model_info(up.peer)
            self.load_due = True

    def _on_peer_down(self, _now_ns, _peer, down):
        role, _epoch = self.peers.pop(down.peer, (ROLE.NONE, 0))
        if role == ROLE.GATEWAY:
            for request in [r for r in self.requests.values() if r.gateway == down.peer]:
                self._leave(request)  # nobody wants its answer
            for name in [n for n in self.ended if n[0] == down.peer]:
                del self.ended[name]  # the number may soon be another gateway's
        elif down.peer == self.executor:
            self._lose_executor("worker_lost", "the executor was lost")

    def _on_timer(self, now_ns, _peer, _timer):
        while self.deadlines and self.deadlines[0][0] <= now_ns:
            request = heapq.heappop(self.deadlines)[2]
            if request.state == WAITING:
                waited = (now_ns - request.arrived_ns) / 1e9
                request.queue_ns = now_ns - request.arrived_ns
                self._end(request, FINISH.REFUSED, STATUS.ERR_DEADLINE, "queue_timeout",
                          f"no slot within {waited:.1f} s")

    def _on_drain(self, _now_ns, _peer, _drain):
        self.draining = True

    # ---- the executor -----------------------------------------------------------------------------

    def _on_executor_info(self, _now_ns, peer, info):
        role, epoch = self.peers.get(peer, (ROLE.NONE, 0))
        if role != ROLE.EXECUTOR:
            return
        if self.executor is not None:
            if peer == self.executor or epoch <= self.executor_epoch:
                return
            self._lose_executor("worker_lost", "a newer executor took over")
        self.faults = 0
        self.info = info
        self._attach(peer, epoch, info.sequence)

    def _info_problem(self, info):
        groups = len(info.group_kinds)
        if groups == 0 or not (len(info.group_granularities) == len(info.group_windows) ==
                               len(info.group_packings) == groups):
            return "the columns of its cache groups differ in length, or are empty"
        if any(kind not in (0, 1) for kind in info.group_kinds):
            return "a cache group with states is not supported by this scheduler"
        if min(info.group_granularities) < 1 or min(info.group_packings) < 1:
            return "a granularity or a packing of 0"
        if info.parent_count < 2 or info.slot_count < 1 or info.step_tokens_max < 1 \
                or info.model_len_max < 2:
            return "an empty pool, no slots, no tokens in a step or no context"
        if info.decode_width != 1:
            return f"decode rows of {info.decode_width} tokens are not supported by this scheduler"
        return None

    def _attach(self, peer, epoch, sequence):
        problem = self._info_problem(self.info)
        if problem is not None:
            self._complain(peer, sequence, codec.ExecutorInfo.KIND, STATUS.ERR_UNSUPPORTED, problem)
            return
        info = self.info
        self.executor, self.executor_epoch = peer, epoch
        self.pool = BlockPool(info.parent_count, info.group_packings)
        self.granularities = list(info.group_granularities)
        # Decode rows always fit a step, and leave a quarter of it to prompts.
        self.slot_count = min(info.slot_count, self.slot_count_max,
                              max(1, info.step_tokens_max * 3 // 4))
        self.free_slots = list(range(self.slot_count, 0, -1))
        self.prompt_length_max = self._longest_prompt()
        # Whatever it holds is not ours: rows of an earlier scheduler.
        self.out.append((peer, codec.Reset(detail="a scheduler attaches")))
        self._tell_gateways()

    def _counts(self, tokens):
        return [-(-tokens // granularity) for granularity in self.granularities]

    def _longest_prompt(self):
        low, high = 0, self.info.model_len_max - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.pool.parents_needed(self._counts(middle)) <= self.pool.parent_count:
                low = middle
            else:
                high = middle - 1
        return low

    def _lose_executor(self, code, detail):
        self.executor = None
        for request in list(self.requests.values()):
            self._end(request, FINISH.ERROR, STATUS.ERR_PEER_LOST, code,
                      f"{detail} after {request.generated} tokens")
        self._forget_executor()
        self._tell_gateways()

    def _complain(self, peer, sequence, kind, status, detail):
        """NAK to the peer, and to our own runner, which logs it."""
        for to in (peer, LOCAL):
            self.out.append((to, codec.Nak(sequence=sequence, kind=kind, status=status,
                                           detail=detail)))

    def _on_fault(self, message, detail):
        """The executor broke the protocol: its requests end, it starts over with nothing."""
        peer, epoch = self.executor, self.executor_epoch
        self._complain(peer, message.sequence, message.KIND, STATUS.ERR_MALFORMED, detail)
        self._lose_executor("executor_fault", detail)
        self.faults += 1
        if self.faults <= FAULTS_MAX:
            self._attach(peer, epoch, message.sequence)

    def _on_nak(self, _now_ns, peer, nak):
        if peer == self.executor and nak.kind in (codec.Plan.KIND, codec.Reset.KIND):
            self._on_fault(nak, "it could not read a plan")  # no result will ever come for it

    # ---- gateways ---------------------------------------------------------------------------------

    def _gateways(self):
        return [peer for peer, (role, _) in self.peers.items() if role == ROLE.GATEWAY]

    def _tell_gateways(self):
        for peer in self._gateways():
            self._send_model_info(peer)

    def _send_model_info(self, peer):
        message = codec.ModelInfo(queue_len_max=self.queue_len_max)
        if self.executor is not None:
            info = self.info
            message = codec.ModelInfo(
                model_name=info.model_name, fingerprint=info.fingerprint, vocab_size=info.vocab_size,
                model_len_max=info.model_len_max, prompt_len_max=self.prompt_length_max,
                slot_count=self.slot_count, queue_len_max=self.queue_len_max,
                prefix_granularity=info.prefix_granularity,
                token_capacity=min(self.pool.block_count(g) * granularity
                                   for g, granularity in enumerate(self.granularities)),
                page_hash_key=info.page_hash_key)
        self.out.append((peer, message))

    def _send_load(self, now_ns):
        if not self.load_due or now_ns < self.load_next_ns:
            return
        self.load_due, self.load_next_ns = False, now_ns + LOAD_INTERVAL_NS
        totals = self.totals
        for peer in self._gateways():
            self.out.append((peer, codec.Load(
                running=len(self.slots), waiting=self.waiting_count,
                blocks_total=self.pool.block_count(0) if self.pool else 0,
                blocks_free=self.pool.free_count(0) if self.pool else 0, **totals)))

    def _submit_problem(self, submit):
        """(status, code, sentence) or None."""
        prompt, generation = submit.prompt_length, submit.generation_max
        if self.executor is None:
            return STATUS.ERR_REFUSED, "no_executor", "no executor is attached"
        if self.draining:
            return STATUS.ERR_REFUSED, "draining", "the scheduler is ending"
        if prompt == 0 or generation == 0 or submit.emitted >= prompt \
                or len(submit.tokens) != prompt:
            return (STATUS.ERR_INVALID, "invalid",
                    f"a prompt of {prompt} tokens, {len(submit.tokens)} given, "
                    f"{submit.emitted} of them generated before, {generation} to generate")
        pages = prompt // max(1, self.info.prefix_granularity)
        if len(submit.page_hashes) not in (0, pages * codec.LIMITS["hash_size"]):
            return (STATUS.ERR_INVALID, "invalid",
                    f"{len(submit.page_hashes)} bytes of page hashes for {pages} pages")
        if prompt + generation > self.info.model_len_max:
            return (STATUS.ERR_NEVER_FITS, "never_fits",
                    f"{prompt + generation} tokens, the limit is {self.info.model_len_max}")
        needed = self.pool.parents_needed(self._counts(prompt + generation - 1))
        if needed > self.pool.parent_count:
            return (STATUS.ERR_NEVER_FITS, "never_fits",
                    f"{needed} blocks, the limit is {self.pool.parent_count}")
        if self.waiting_count >= self.queue_len_max:
            return (STATUS.ERR_OVERLOADED, "overloaded",
                    f"{self.waiting_count + 1} requests, the limit is {self.queue_len_max}")
        if self.waiting_bytes + 4 * prompt > WAITING_BYTES_MAX:
            return (STATUS.ERR_OVERLOADED, "overloaded",
                    f"{self.waiting_bytes + 4 * prompt} bytes of waiting prompts, the limit is "
                    f"{WAITING_BYTES_MAX}")
        return None

    def _on_submit(self, now_ns, peer, submit):
        name = (peer, submit.request)
        if self.peers.get(peer, (ROLE.NONE,))[0] != ROLE.GATEWAY:
            return
        if name in self.requests or name in self.ended:
            return  # a duplicate: its first copy gets the answer
        problem = self._submit_problem(submit) if submit.request else \
            (STATUS.ERR_INVALID, "invalid", "no request id")
        if problem is not None:
            status, code, detail = problem
            later = status in (STATUS.ERR_OVERLOADED, STATUS.ERR_REFUSED)
            self.ends.append((peer, codec.Finished(
                request=submit.request, reason=FINISH.REFUSED, status=status, code=code,
                prompt_tokens=max(0, submit.prompt_length - submit.emitted),
                detail=detail, retry_after_ms=1000 if later else 0)))
            return
        self.arrivals += 1
        request = Request(peer, submit, now_ns, self.arrivals,
                          submit.queue_timeout_ns or QUEUE_TIMEOUT_NS)
        request.order = self.key(request)
        self.requests[name] = request
        heapq.heappush(self.waiting, request)
        heapq.heappush(self.deadlines, (request.deadline_ns, request.number, request))
        self.waiting_count += 1
        self.waiting_bytes += 4 * request.prompt_length
        self.load_due = True

    def _on_finish(self, _now_ns, peer, finish):
        request = self.requests.get((peer, finish.request))
        if request is None:
            return
        request.generated = min(request.generated, max(0, finish.token_index - request.emitted))
        if finish.reason in (FINISH.STOP, FINISH.LENGTH):
            self._end(request, finish.reason)
        else:
            self._end(request, FINISH.CANCELLED, STATUS.ERR_CANCELLED, "cancelled", "cancelled")

    # ---- ends -------------------------------------------------------------------------------------

    def _end(self, request, reason, status=STATUS.OK, code="", detail=""):
        """The one terminal answer; sent after the tokens of this input."""
        self.ends.append((request.gateway, codec.Finished(
            request=request.id, reason=reason, status=status, code=code, detail=detail,
            prompt_tokens=request.prompt_length - request.emitted,
            generated_tokens=request.emitted + request.generated, queue_ns=request.queue_ns,
            retry_after_ms=1000 if status in (STATUS.ERR_PEER_LOST, STATUS.ERR_DEADLINE) else 0)))
        self._leave(request)

    def _leave(self, request):
        """Takes a request out of the books.  Rows of it may still be in flight."""
        name = (request.gateway, request.id)
        del self.requests[name]
        self.ended[name] = True
        if len(self.ended) > ENDED_KEPT:
            self.ended.popitem(last=False)
        if request.state == WAITING:
            self._unqueue(request)
        request.state = ENDED
        if request.slot:
            self._give_blocks(request)
            del self.slots[request.slot]
            self.releases.append(request.slot)
        self.load_due = True

    def _unqueue(self, request):
        self.waiting_count -= 1
        self.waiting_bytes -= 4 * request.prompt_length
        request.submit = None
        if len(self.waiting) > 2 * self.waiting_count + 64:  # mostly of requests that ended
            self.waiting = [r for r in self.waiting if r.state == WAITING and r is not request]
            heapq.heapify(self.waiting)
        if len(self.deadlines) > 2 * self.waiting_count + 64:
            self.deadlines = [d for d in self.deadlines if d[2].state == WAITING and d[2] is not request]
            heapq.heapify(self.deadlines)

    # ---- blocks -----------------------------------------------------------------------------------

    def _grow(self, request, tokens, tables, reserve=0):
        """Blocks up to so many tokens; False if they are not there."""
        counts = [count - len(held) for count, held in zip(self._counts(tokens), request.blocks)]
        if not self.pool.fits(counts, reserve):
            return False
        for group, count in enumerate(counts):
            if count > 0:
                taken = self.pool.take(group, count)
                tables.add(request.slot, group, len(request.blocks[group]), taken)
                request.blocks[group].extend(taken)
        request.covered = min(len(held) * granularity for held, granularity
                              in zip(request.blocks, self.granularities))
        return True

    def _give_blocks(self, request):
        if self.pool is not None:
            for group, held in enumerate(request.blocks):
                self.pool.give(group, held)
        request.blocks = [[] for _ in self.granularities]
        request.covered = 0

    def _retract(self, request):
        """Takes its blocks away; prompt and answer so far will be computed again."""
        for group, held in enumerate(request.blocks):
            self.zeroes.append((request.slot, group, len(held)))
        self._give_blocks(request)
        if request.state == DECODING:
            self.prefilling.append(request)
        self.decoding = [r for r in self.decoding if r is not request]
        request.state, request.computed, request.length = PREFILLING, 0, 0

    # ---- plans ------------------------------------------------------------------------------------

    def _plan(self, now_ns):
        """Makes and sends the next plan, if there is something to plan and room for it."""
        if self.executor is None or len(self.flights) > self.info.overlap_depth_max:
            return False
        if self.recovering:
            if self.flights:
                return False  # results of good plans first: only then it is known where rows stand
            self._recover()
        if not (self.slots or self.waiting_count or self.releases):
            return False
        tables, flight = Tables(), Flight(self.step + 1)
        for slot, group, count in self.zeroes:
            if slot in self.slots:
                tables.add(slot, group, 0, bytes(count))
        budget = self.info.step_tokens_max
        decode_slots, starved = self._add_decodes(flight, tables)
        budget -= len(decode_slots)
        self._admit(now_ns, tables, budget)
        extends = self._add_extends(flight, tables, budget)
        if not flight.rows and not tables.slots:
            if not self.releases:
                return self._make_room(starved)
            if self.flights:
                return False  # nothing to compute: the releases can wait for the next result
        self._send_plan(flight, tables, decode_slots, extends)
        return True

    def _add_decodes(self, flight, tables):
        """A row for every request that has tokens left to generate and a block for the next."""
        rows, slots, starved, changed = flight.rows, array("I"), False, False
        for request in self.decoding:
            length = request.length
            if request.state != DECODING or length >= request.length_max:
                changed = True  # ended, or its last token is on its way
            elif length > request.covered and not self._grow(request, length, tables):
                starved = True
            else:
                request.length = length + 1
                request.in_flight += 1
                rows.append(request)
                slots.append(request.slot)
        if changed:
            self.decoding = [r for r in self.decoding
                             if r.state == DECODING and r.length < r.length_max]
        return slots, starved

    def _admit(self, now_ns, tables, budget):
        """Slots and blocks for waiting requests, in order; the first that does not fit holds the
        queue, so nobody starves behind smaller ones."""
        if any(not request.covered for request in self.prefilling if request.state == PREFILLING):
            return  # who lost its blocks goes first
        budget -= sum(r.known - r.computed for r in self.prefilling if r.state == PREFILLING)
        while self.waiting and self.free_slots and budget > 0:
            request = self.waiting[0]
            if request.state != WAITING:
                heapq.heappop(self.waiting)
                continue
            reserve = 1 + self.pool.parent_count // 100 if self.slots else 0
            request.slot, request.blocks = self.free_slots[-1], [[] for _ in self.granularities]
            if not self._grow(request, request.prompt_length, tables, reserve):
                request.slot, request.blocks = 0, ()
                return
            heapq.heappop(self.waiting)
            self.free_slots.pop()
            self.slots[request.slot] = request
            self.prefilling.append(request)
            request.state, request.queue_ns = PREFILLING, now_ns - request.arrived_ns
            submit = request.submit
            self.out.append((self.executor, codec.Admit(
                request=request.id, slot=request.slot, prompt_length=request.prompt_length,
                length_max=request.length_max, tokens=submit.tokens, sampling=submit.sampling,
                page_hashes=submit.page_hashes)))
            self._unqueue(request)
            budget -= request.prompt_length

    def _add_extends(self, flight, tables, budget):
        """Chunks of prompts, in order.  The last chunk of a prompt samples a token."""
        if not self.prefilling:
            return ()
        extends, left = [], []
        extend_rows = []
        for request in sorted(r for r in self.prefilling if r.state == PREFILLING):
            left.append(request)
            if budget <= 0:
                continue
            if not request.covered and not self._grow(
                    request, request.known, tables, 1 if self.decoding or extend_rows else 0):
                budget = 0  # lost its blocks before, and goes before all behind it
                continue
            count = self.prefill_length(request, request.known - request.computed, budget,
                                        not extend_rows)
            if count <= 0:
                budget = 0
                continue
            samples = request.computed + count == request.known
            extends.append((request.slot, request.computed, count, samples))
            extend_rows.append(request)
            flight.extends.append((count, samples))
            request.computed += count
            request.in_flight += 1
            budget -= count
            if samples:
                left.pop()
                request.state, request.length = DECODING, request.known + 1
                self.decoding.append(request)
        self.prefilling = left
        flight.rows[:0] = extend_rows
        return extends

    def _make_room(self, starved):
        """Nothing can be planned.  If nothing is in flight either, somebody must give way."""
        if self.flights or not (starved or self.prefilling):
            return False
        holders = [r for r in self.slots.values() if r.covered]
        if not holders:
            return False
        self._retract(self.victim(holders))
        self.totals["preemptions"] += 1
        return True  # plan again

    def _send_plan(self, flight, tables, decode_slots, extends):
        plan = codec.Plan(step=flight.step, base_step=self.base, width=1, decode_slots=decode_slots)
        if self.base == 0:  # full: every table from its begin
            tables = Tables()
            for slot, request in self.slots.items():
                for group, held in enumerate(request.blocks):
                    tables.add(slot, group, 0, held)
        if tables.slots:
            plan.patch_slots, plan.patch_groups = tables.slots, tables.groups
            plan.patch_columns, plan.patch_counts = tables.columns, tables.counts
            plan.patch_blocks = tables.blocks
        if self.releases:
            plan.release_slots = array("I", self.releases)
        if self.clears:
            plan.clear_groups = bytes(group for group, _ in self.clears)
            plan.clear_blocks = array("I", (block for _, block in self.clears))
        if extends:
            plan.extend_slots = array("I", (row[0] for row in extends))
            plan.extend_begins = array("I", (row[1] for row in extends))
            plan.extend_lengths = array("I", (row[2] for row in extends))
            plan.extend_samples = bytes(row[3] for row in extends)
        flight.releases, flight.clears = self.releases, self.clears
        self.releases, self.clears, self.zeroes = [], [], []
        self.step = self.base = flight.step
        self.totals["steps"] += 1
        self.load_due = True
        self.flights.append(flight)
        self.out.append((self.executor, plan))

    # ---- results ----------------------------------------------------------------------------------

    def _result_problem(self, flight, result):
        rows = len(flight.rows)
        counts, flags, widths = result.token_counts, result.row_flags, result.logprob_widths
        if result.step != flight.step:
            return f"the result of step {result.step}, not of {flight.step}"
        if len(counts) != rows or len(flags) != rows or (len(widths) and len(widths) != rows):
            return "a step result of another shape than its plan"
        if sum(counts) != len(result.tokens):
            return "token counts and tokens of a step result differ"
        logprobs = sum(map(int.__mul__, counts, widths)) if len(widths) else 0
        if logprobs != len(result.logprob_ids) or logprobs != len(result.logprob_values):
            return "logprob widths and logprobs of a step result differ"
        for index, (count, flag) in enumerate(zip(counts, flags)):
            samples = index >= len(flight.extends) or flight.extends[index][1]
            if count != samples and not flag & ROW_FLAG.NAN:
                return f"{count} tokens in a row that samples {int(samples)}"
        return None

    def _on_step_result(self, _now_ns, peer, result):
        if peer != self.executor:
            return None
        if not self.flights or result.step < self.flights[0].step:
            return None  # of before a reset
        flight = self.flights[0]
        problem = self._result_problem(flight, result)
        if problem is not None:
            self._on_fault(result, problem)
            return None
        self.flights.popleft()
        self.faults = self.refused_in_all = 0
        self.free_slots.extend(flight.releases)
        mode = codec.MODE.name(result.mode)
        self.totals["graph_steps"] += mode == "DECODE_GRAPH"
        self.totals["eager_steps"] += mode in ("DECODE_EAGER", "DECODE_ABOVE")
        self.totals["above_ladder_steps"] += mode == "DECODE_ABOVE"
        self.totals["prompt_tokens"] += sum(count for count, _ in flight.extends)
        self.load_due = True
        return self._take_rows(flight, result)

    def _take_rows(self, flight, result):
        """Counts the tokens of each row; returns the TOKENS that pass them on, one a gateway."""
        kept = {}  # gateway: request ids, token indices, row numbers
        for number, (request, count, flags) in enumerate(
                zip(flight.rows, result.token_counts, result.row_flags)):
            request.in_flight -= 1
            if request.state == ENDED:
                continue  # a row that was planned before the end was known: its token is dropped
            if not request.broken:
                request.refusals = 0
            if flags & ROW_FLAG.NAN:
                self.clears.extend((group, block) for group, held in enumerate(request.blocks)
                                   for block in held)
                self._end(request, FINISH.ERROR, STATUS.ERR_INTERNAL, "nan_logits",
                          f"the model's logits held a NaN at token {request.generated}")
            elif count:
                rows = kept.get(request.gateway)
                if rows is None:
                    rows = kept[request.gateway] = (array("Q"), array("I"), [])
                rows[0].append(request.id)
                rows[1].append(request.emitted + request.generated)
                rows[2].append(number)
                request.generated += 1
                if flags & ROW_FLAG.STOP_TOKEN:
                    self._end(request, FINISH.STOP)
                elif request.generated >= request.generation_max:
                    self._end(request, FINISH.LENGTH)
        messages = []
        for gateway, (ids, indices, numbers) in kept.items():
            self.totals["generation_tokens"] += len(ids)
            tokens = codec.Tokens(step=result.step, requests=ids, token_indices=indices,
                                  token_counts=b"\1" * len(ids))
            self._pass_columns(tokens, numbers, result)
            messages.append((gateway, tokens))
        return messages

    @staticmethod
    def _pass_columns(tokens, numbers, result):
        """Tokens and logprobs of the rows `numbers`, unread."""
        counts, widths = result.token_counts, result.logprob_widths
        if len(numbers) == len(result.tokens):  # all of them
            tokens.tokens = result.tokens
            tokens.logprob_ids, tokens.logprob_values = result.logprob_ids, result.logprob_values
            if len(widths):
                tokens.logprob_widths = bytes(widths[number] for number in numbers)
            return
        wanted, at, logprob_at = set(numbers), 0, 0
        ids, values, logprobs = array("i"), array("f"), array("i")
        for number, count in enumerate(counts):
            width = widths[number] if len(widths) else 0
            if number in wanted:
                ids.extend(result.tokens[at:at + count])
                end = logprob_at + count * width
                logprobs.extend(result.logprob_ids[logprob_at:end])
                values.extend(result.logprob_values[logprob_at:end])
            at += count
            logprob_at += count * width
        tokens.tokens, tokens.logprob_ids, tokens.logprob_values = ids, logprobs, values
        if logprobs:
            tokens.logprob_widths = bytes(widths[number] for number in numbers)

    # ---- refused plans ----------------------------------------------------------------------------

    def _on_plan_refused(self, _now_ns, peer, refused):
        flight = next((f for f in self.flights if f.step == refused.step), None)
        if peer != self.executor or flight is None:
            return
        self.flights.remove(flight)
        self.totals["plans_refused"] += 1
        self.refused_in_all += 1
        self.load_due = True
        for request in flight.rows:
            request.in_flight -= 1
            if request.state != ENDED:
                request.broken = True
                # What follows a refused plan is stale, which says nothing about its own requests.
                request.refusals += refused.rule != RULE.STALE
        self.releases = flight.releases + self.releases
        self.clears = flight.clears + self.clears
        self.recovering = True
        self.out.append((LOCAL, codec.Nak(
            sequence=refused.sequence, kind=codec.Plan.KIND, status=STATUS.ERR_REFUSED,
            detail=codec.text(f"{RULE.name(refused.rule)}: {refused.detail}"))))
        request = self.slots.get(refused.slot)
        if refused.rule == RULE.SLOT_EMPTY and request is not None:
            self._end(request, FINISH.ERROR, STATUS.ERR_REFUSED, "plan_refused",
                      "the executor could not take it in")
        if self.refused_in_all > REFUSALS_IN_ALL_MAX:
            self._on_fault(refused, "it refuses every plan")

    def _recover(self):
        """No plan is in flight any more: the requests of refused ones start over."""
        self.recovering, self.base = False, 0
        for request in [r for r in self.slots.values() if r.broken]:
            request.broken = False
            if request.refusals >= REFUSALS_MAX:
                self._end(request, FINISH.ERROR, STATUS.ERR_REFUSED, "plan_refused",
                          "the executor refused its plans")
            else:
                self._retract(request)
        self.zeroes = []  # a full plan empties every table

    # ---- which message goes where -----------------------------------------------------------------

    _LOCAL = {codec.PeerUp.KIND: _on_peer_up, codec.PeerDown.KIND: _on_peer_down,
              codec.Timer.KIND: _on_timer, codec.Drain.KIND: _on_drain}
    _WIRE = {codec.Submit.KIND: _on_submit, codec.Finish.KIND: _on_finish,
             codec.ExecutorInfo.KIND: _on_executor_info, codec.StepResult.KIND: _on_step_result,
             codec.PlanRefused.KIND: _on_plan_refused, codec.Nak.KIND: _on_nak}
