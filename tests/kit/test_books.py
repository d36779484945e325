"""The bookkeeping of the Python schedulers against an executor that checks every rule.

One world: scheduler core, executor model, gateways; a seed decides what happens next.  Whatever
happens: exactly one end for each request, tokens right and in order, no plan refused that was not
spoiled on purpose, and nothing left over when all is done.
"""
import importlib.util
import os
import random
import sys
import unittest

SOURCE = os.environ.get("ONEPATH_SOURCE") or os.path.join(os.path.dirname(__file__), "..", "..")
sys.path.insert(0, os.path.join(SOURCE, "examples", "python"))

from model_executor import VOCAB, Executor, token_after  # noqa: E402
from onepath_scheduler import codec  # noqa: E402
from onepath_scheduler.books import NEVER, Scheduler  # noqa: E402
from onepath_scheduler.codec import FINISH, ROLE, ROW_FLAG  # noqa: E402
from onepath_scheduler.pool import BlockPool  # noqa: E402

SEED = int(os.environ.get("ONEPATH_SEED") or random.SystemRandom().randrange(1 << 32))
SEEDS = int(os.environ.get("ONEPATH_SEEDS") or 150)
EXECUTOR = 1


def example(name):
    """A scheduler class of examples/python."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(SOURCE, "examples", "python", name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PriorityAgeing = example("priority_ageing").PriorityAgeing


def recode(message):
    """What the other end decodes."""
    made = codec.decode(message.KIND, *codec.encode(message))
    made.request = message.request
    return made


def make_info(slots=4, tokens=32, parents=20, model=200, depth=1, groups=((0, 8, 0, 1),)):
    kinds, granularities, windows, packings = zip(*groups)
    return recode(codec.ExecutorInfo(
        model_name="m", vocab_size=VOCAB, model_len_max=model, slot_count=slots,
        step_tokens_max=tokens, decode_width=1, overlap_depth_max=depth, prefix_granularity=8,
        parent_count=parents, group_kinds=list(kinds), group_granularities=list(granularities),
        group_windows=list(windows), group_packings=list(packings)))


class Ask:
    """A request as its gateway sees it."""

    def __init__(self, submit):
        self.submit, self.tokens, self.end = submit, [], None


class World:
    def __init__(self, core, info, **executor):
        self.core, self.info, self.now = core, info, 1_000_000_000
        self.executor = Executor(info, **executor)
        self.asks = {}       # (gateway, request): Ask
        self.waiting = []    # answers of the executor that have not arrived
        self.figures = []

    def give(self, peer, message):
        self.now += 1000
        for to, answer in list(self.core.on_input(self.now, peer, message)):
            answer = recode(answer)
            if answer.NAME == "ADMIT":
                submits = [a.submit for (_, request), a in self.asks.items()
                           if request == answer.request and a.end is None]
                assert any(answer.length_max == s.prompt_length + s.generation_max
                           and bytes(answer.sampling) == bytes(s.sampling) for s in submits), answer
            if to == EXECUTOR and answer.NAME != "NAK":
                reply = self.executor.take(answer)
                if reply is not None:
                    self.waiting.append(reply)
            elif to > EXECUTOR:
                self.gateway(to, answer)

    def gateway(self, peer, message):
        if message.NAME == "TOKENS":
            assert len(message.requests) == len(message.token_counts) == len(message.tokens)
            for request, index, token in zip(message.requests, message.token_indices, message.tokens):
                ask = self.asks[peer, request]
                assert ask.end is None, "tokens after the end"
                assert index == ask.submit.emitted + len(ask.tokens), (index, len(ask.tokens))
                ask.tokens.append(token)
        elif message.NAME == "FINISHED":
            ask = self.asks[peer, message.request]
            assert ask.end is None, "a second end"
            ask.end = message
        else:
            self.figures.append((peer, message))

    def connect(self, gateways=(2,)):
        self.give(0, codec.PeerUp(peer=EXECUTOR, role=ROLE.EXECUTOR, name="executor", epoch=1))
        for peer in gateways:
            self.give(0, codec.PeerUp(peer=peer, role=ROLE.GATEWAY, name=f"g{peer}", epoch=1))
        self.give(EXECUTOR, self.info)

    def submit(self, request, prompt, generation, gateway=2, **fields):
        tokens = [(request * 7 + at) % VOCAB for at in range(prompt)]
        submit = recode(codec.Submit(request=request, prompt_length=prompt, generation_max=generation,
                                     tokens=tokens, sampling=b"opaque", **fields))
        self.asks.setdefault((gateway, request), Ask(submit))
        self.give(gateway, submit)
        return self.asks[gateway, request]

    def advance(self):
        """One thing that the executor does; False if it has nothing to do."""
        if self.waiting:
            self.give(EXECUTOR, self.waiting.pop(0))
        elif self.executor.flights:
            self.give(EXECUTOR, recode(self.executor.finish_step()))
        else:
            return False
        return True

    def settle(self, steps_max=20000):
        for _ in range(steps_max):
            if not self.advance():
                return
        raise AssertionError("it never comes to rest")

    def check_tokens(self, ask):
        tokens = list(ask.submit.tokens)
        for token in ask.tokens:
            assert token == token_after(tokens), "a wrong token"
            tokens.append(token)

    def check_rest(self):
        """Nothing is left when all is done."""
        self.settle()
        core = self.core
        for (gateway, request), ask in self.asks.items():
            assert ask.end is not None, f"request {request} of {gateway} has no end"
            self.check_tokens(ask)
            if ask.end.reason in (FINISH.STOP, FINISH.LENGTH):
                assert ask.end.generated_tokens <= ask.submit.emitted + len(ask.tokens)
        assert not self.executor.genuine_refusals, self.executor.genuine_refusals
        assert not core.requests and not core.slots and not core.flights and core.idle()
        if core.executor is not None:
            assert len(core.free_slots) == core.slot_count and not core.releases
            assert len(core.pool.free_parents) == core.pool.parent_count
            assert sorted(core.pool.free_parents) == list(range(1, core.pool.parent_count + 1))
        assert not self.executor.slots


class Pool(unittest.TestCase):
    def test_parents_are_bound_to_one_group_and_come_back(self):
        random.seed(SEED)
        pool, held = BlockPool(12, [4, 1, 3]), []
        for _ in range(5000):
            counts = [random.randrange(4), random.randrange(2), random.randrange(4)]
            if random.random() < 0.5 and pool.fits(counts):
                held.append([(g, pool.take(g, count)) for g, count in enumerate(counts)])
            elif held:
                for group, blocks in held.pop(random.randrange(len(held))):
                    pool.give(group, blocks)
            owners = {}
            used = [(g, b) for one in held for g, blocks in one for b in blocks]
            self.assertEqual(len(used), len(set(used)))
            for g, block in used:
                parent = 1 + (block - 1) // pool.packings[g]
                self.assertTrue(1 <= parent <= 11)
                self.assertEqual(owners.setdefault(parent, g), g)
        for one in held:
            for group, blocks in one:
                pool.give(group, blocks)
        self.assertEqual(sorted(pool.free_parents), list(range(1, 12)))
        self.assertEqual(pool.open_count, [0, 0, 0])


class Ends(unittest.TestCase):
    def world(self, core=None, gateways=(2,), flags_of=None, spoil=None, **info):
        executor = {k: v for k, v in (("flags_of", flags_of), ("spoil", spoil)) if v}
        world = World(core or Scheduler(), make_info(**info), **executor)
        world.connect(gateways)
        return world

    def test_lengths(self):
        world = self.world()
        asks = [world.submit(n, prompt, generation) for n, (prompt, generation)
                in enumerate(((1, 1), (8, 5), (33, 7), (150, 1), (9, 40)), 1)]
        world.check_rest()
        for ask in asks:
            self.assertEqual((ask.end.reason, ask.end.generated_tokens, len(ask.tokens)),
                             (FINISH.LENGTH, ask.submit.generation_max, ask.submit.generation_max))
            self.assertEqual(ask.end.prompt_tokens, ask.submit.prompt_length)

    def test_a_stop_token_counts_and_ends(self):
        world = self.world(flags_of=lambda _r, count: ROW_FLAG.STOP_TOKEN if count == 12 else 0)
        ask = world.submit(1, 10, 50)
        world.check_rest()
        self.assertEqual((ask.end.reason, ask.end.generated_tokens, len(ask.tokens)),
                         (FINISH.STOP, 3, 3))

    def test_a_nan_is_an_error_and_its_blocks_are_cleared(self):
        world = self.world(flags_of=lambda r, count: ROW_FLAG.NAN if (r, count) == (1, 12) else 0)
        ask, other = world.submit(1, 10, 50), world.submit(2, 10, 20)
        world.check_rest()
        self.assertEqual((ask.end.reason, ask.end.code, len(ask.tokens)), (FINISH.ERROR, "nan_logits", 2))
        self.assertEqual(other.end.reason, FINISH.LENGTH)
        self.assertGreaterEqual(len(world.executor.cleared), 2)

    def test_refusals_name_their_reason(self):
        world = self.world(core=Scheduler(queue_len_max=2), slots=1)
        for request, prompt, generation, fields, code in (
                (1, 150, 60, {}, "never_fits"), (2, 10, 0, {}, "invalid"),
                (3, 10, 5, {"emitted": 10}, "invalid")):
            ask = world.submit(request, prompt, generation, **fields)
            self.assertEqual((ask.end.reason, ask.end.code), (FINISH.REFUSED, code))
        asks = [world.submit(n, 10, 5) for n in range(10, 16)]
        self.assertEqual([a.end.code for a in asks if a.end], ["overloaded"] * 3)
        self.assertTrue(all(a.end.retry_after_ms > 0 for a in asks if a.end))
        world.check_rest()

    def test_what_can_never_fit_the_pool_is_refused_and_the_longest_fits(self):
        world = self.world(parents=6, model=200)
        info = [m for _, m in world.figures if m.NAME == "MODEL_INFO"][-1]
        self.assertEqual(info.prompt_len_max, 40)
        self.assertEqual(world.submit(1, 41, 1).end.code, "never_fits")
        self.assertEqual(world.submit(2, 30, 12).end.code, "never_fits")
        ask = world.submit(3, 40, 1)
        world.check_rest()
        self.assertEqual(ask.end.reason, FINISH.LENGTH)

    def test_emitted_tokens_count_on(self):
        world = self.world()
        ask = world.submit(1, 10, 5, emitted=4)
        world.check_rest()
        self.assertEqual((ask.end.prompt_tokens, ask.end.generated_tokens), (6, 9))

    def test_a_finish_ends_at_its_token_in_every_state(self):
        for steps in range(8):
            world = self.world(slots=1, tokens=8)
            first, second = world.submit(1, 20, 30), world.submit(2, 20, 3)
            for _ in range(steps):
                world.advance()
            world.give(2, codec.Finish(request=1, token_index=2, reason=FINISH.STOP))
            self.assertEqual(first.end.reason, FINISH.STOP)
            self.assertEqual(first.end.generated_tokens, min(2, len(first.tokens)))
            world.give(2, codec.Finish(request=1, token_index=0, reason=FINISH.CANCELLED))
            world.give(2, codec.Finish(request=99, token_index=0, reason=FINISH.CANCELLED))
            world.check_rest()
            self.assertEqual(second.end.reason, FINISH.LENGTH)

    def test_a_cancelled_request_that_waits(self):
        world = self.world(slots=1)
        world.submit(1, 10, 30)
        ask = world.submit(2, 10, 30)
        world.give(2, codec.Finish(request=2, token_index=0, reason=FINISH.CANCELLED))
        self.assertEqual((ask.end.reason, ask.end.code), (FINISH.CANCELLED, "cancelled"))
        world.check_rest()

    def test_a_duplicate_submit_has_no_answer_of_its_own(self):
        world = self.world()
        ask = world.submit(1, 10, 3)
        world.give(2, ask.submit)
        world.check_rest()
        world.give(2, ask.submit)
        world.check_rest()

    def test_a_queue_timeout(self):
        world = self.world(slots=1)
        world.submit(1, 10, 30)
        ask = world.submit(2, 10, 30, queue_timeout_ns=5_000_000_000)
        deadline = world.core.deadline_ns()
        self.assertLess(deadline, world.now + 5_000_000_001)
        world.now += 6_000_000_000
        world.give(0, codec.Timer(deadline_ns=deadline))
        self.assertEqual((ask.end.reason, ask.end.code), (FINISH.REFUSED, "queue_timeout"))
        world.check_rest()

    def test_a_lost_executor_ends_everything_once_and_the_next_one_works(self):
        world = self.world()
        asks = [world.submit(n, 10, 30) for n in range(1, 8)]
        for _ in range(5):
            world.advance()
        world.give(0, codec.PeerDown(peer=EXECUTOR, role=ROLE.EXECUTOR, epoch=1))
        self.assertTrue(all(a.end.code == "worker_lost" for a in asks))
        self.assertEqual(world.submit(20, 5, 5).end.code, "no_executor")
        self.assertEqual([m for _, m in world.figures if m.NAME == "MODEL_INFO"][-1].slot_count, 0)
        world.executor, world.waiting = Executor(world.info), []
        world.give(0, codec.PeerUp(peer=EXECUTOR, role=ROLE.EXECUTOR, name="executor", epoch=2))
        world.give(EXECUTOR, world.info)
        ask = world.submit(21, 10, 4)
        world.check_rest()
        self.assertEqual(ask.end.reason, FINISH.LENGTH)

    def test_a_lost_gateway_ends_its_requests_silently_and_may_come_back(self):
        world = self.world(gateways=(2, 3))
        asks = [world.submit(1, 10, 30, gateway=2), world.submit(1, 12, 9, gateway=3)]
        world.advance()
        world.give(0, codec.PeerDown(peer=2, role=ROLE.GATEWAY, epoch=1))
        world.settle()
        self.assertIsNone(asks[0].end)
        self.assertEqual(asks[1].end.reason, FINISH.LENGTH)
        del world.asks[2, 1]
        world.give(0, codec.PeerUp(peer=2, role=ROLE.GATEWAY, name="g2", epoch=2))
        ask = world.submit(1, 10, 5, gateway=2)  # the same id, resubmitted
        world.check_rest()
        self.assertEqual(ask.end.reason, FINISH.LENGTH)

    def test_drain_finishes_what_was_begun(self):
        world = self.world(slots=1)
        asks = [world.submit(n, 10, 5) for n in (1, 2)]
        world.give(0, codec.Drain())
        self.assertFalse(world.core.idle())
        self.assertEqual(world.submit(3, 10, 5).end.code, "draining")
        world.check_rest()
        self.assertTrue(all(a.end.reason == FINISH.LENGTH for a in asks))

    def test_an_executor_that_cannot_be_used_is_told_so(self):
        for change in ({"groups": ((2, 8, 0, 1),)}, {"parents": 1}, {"groups": ((0, 0, 0, 1),)}):
            world = self.world(**change)
            self.assertIsNone(world.core.executor)
            self.assertEqual(world.submit(1, 5, 5).end.code, "no_executor")

    def test_a_result_of_another_shape_is_a_fault_and_the_node_goes_on(self):
        good = codec.StepResult(step=1, token_counts=b"\1", row_flags=b"\0", tokens=[5])
        for change in ({"step": 9}, {"token_counts": b"\1\1"}, {"row_flags": b""}, {"tokens": [1, 2]},
                       {"token_counts": b"\2", "tokens": [1, 2]}, {"token_counts": b"\0", "tokens": []},
                       {"logprob_widths": b"\3"}, {"logprob_ids": [1]}):
            world = self.world()
            ask = world.submit(1, 10, 5)
            fields = {name: getattr(good, name) for name, *_ in good.FIELDS}
            world.give(EXECUTOR, recode(codec.StepResult(**{**fields, **change})))
            self.assertEqual((ask.end.reason, ask.end.code), (FINISH.ERROR, "executor_fault"), change)
            again = world.submit(2, 10, 5)
            world.check_rest()
            self.assertEqual(again.end.reason, FINISH.LENGTH)

    def test_logprobs_pass_through(self):
        world = self.world(gateways=(2, 3))
        world.submit(1, 4, 5, gateway=2)
        world.submit(2, 4, 5, gateway=3)
        seen = []
        world.gateway = lambda peer, m: seen.append((peer, m)) if m.NAME == "TOKENS" else None
        rows = len(world.core.flights[0].rows)
        self.assertEqual(rows, 1)  # the second came when a plan was under way
        world.give(EXECUTOR, recode(world.executor.finish_step()))
        flight = world.core.flights[0]
        while len(flight.rows) < 2:
            world.give(EXECUTOR, recode(world.executor.finish_step()))
            flight = world.core.flights[0]
        del seen[:]
        step = world.executor.finish_step()
        step.logprob_widths, step.logprob_ids = b"\2\1", [7, 8, 9]
        step.logprob_values = [-0.5, -1.0, -2.0]
        world.give(EXECUTOR, recode(step))
        got = {peer: (list(m.logprob_widths), list(m.logprob_ids), list(m.logprob_values))
               for peer, m in seen}
        first, second = [r.gateway for r in flight.rows]
        self.assertEqual(got, {first: ([2], [7, 8], [-0.5, -1.0]), second: ([1], [9], [-2.0])})


class Plans(unittest.TestCase):
    def test_refused_plans_cost_no_request(self):
        spoiled = []

        def spoil(plan):
            if plan.step in (2, 3, 9, 15):
                spoiled.append(plan.step)
                return True
            return False
        world = World(Scheduler(), make_info(), spoil=spoil)
        world.connect()
        asks = [world.submit(n, 20, 12) for n in range(1, 7)]
        world.check_rest()
        self.assertTrue(all(a.end.reason == FINISH.LENGTH for a in asks))
        self.assertGreaterEqual(len(spoiled), 3)

    def test_a_plan_that_is_always_refused_ends_its_requests(self):
        world = World(Scheduler(), make_info(), spoil=lambda plan: 3 in plan.extend_slots)
        world.connect()
        asks = [world.submit(n, 20, 12) for n in range(1, 7)]
        world.settle()
        self.assertTrue(all(a.end is not None for a in asks))
        self.assertIn("plan_refused", {a.end.code for a in asks})

    def test_an_executor_that_refuses_everything_is_left_alone(self):
        world = World(Scheduler(), make_info(), spoil=lambda plan: True)
        world.connect()
        number = 0
        while world.core.executor is not None:
            number += 1
            self.assertLess(number, 500)
            world.submit(number, 20, 12)
            world.settle()
        self.assertTrue(all(a.end is not None for a in world.asks.values()))

    def test_a_full_cache_retracts_and_still_gives_every_token(self):
        world = World(Scheduler(), make_info(slots=6, parents=9, model=60))
        world.connect()
        asks = [world.submit(n, 10, 40) for n in range(1, 7)]
        world.check_rest()
        self.assertTrue(all(len(a.tokens) == 40 for a in asks))
        self.assertGreater(world.core.totals["preemptions"], 0)

    def test_whole_prompts_are_split_only_if_they_must(self):
        world = World(Scheduler(whole_prompts=True), make_info(tokens=32, slots=8, parents=100))
        world.connect()
        plans, take = [], world.executor.take

        def note(message):
            if message.NAME == "PLAN":
                plans.append(message)
            return take(message)
        world.executor.take = note
        asks = [world.submit(n, 20, 3) for n in range(1, 6)] + [world.submit(9, 70, 3)]
        world.check_rest()
        self.assertTrue(all(a.end.reason == FINISH.LENGTH for a in asks))
        lengths = [n for p in plans for n in p.extend_lengths]
        self.assertEqual([n for n in lengths if n == 20], [20] * 5)
        self.assertEqual(sum(lengths), 170)

    def test_groups_that_share_parents(self):
        groups = ((0, 8, 0, 4), (0, 16, 0, 1), (1, 4, 16, 3))
        world = World(Scheduler(), make_info(slots=5, parents=26, groups=groups, model=80))
        world.connect()
        asks = [world.submit(n, 17 + n, 30) for n in range(1, 9)]
        world.check_rest()
        self.assertTrue(all(a.end.reason == FINISH.LENGTH for a in asks))

    def test_first_come_first_served(self):
        world = World(Scheduler(), make_info(slots=1))
        world.connect()
        order = []
        gateway = world.gateway
        world.gateway = lambda p, m: (order.append(m.request) if m.NAME == "FINISHED" else None,
                                      gateway(p, m))
        for n in range(1, 9):
            world.submit(n, 10, 3, priority=-n)
        world.check_rest()
        self.assertEqual(order, list(range(1, 9)))


class Ageing(unittest.TestCase):
    def order_of(self, ageing_ns, arrivals):
        """Requests (id, priority, pause before) on one slot: in which order they end."""
        world = World(PriorityAgeing(ageing_ns), make_info(slots=1, parents=50))
        world.connect()
        order, gateway = [], world.gateway
        world.gateway = lambda p, m: (order.append(m.request) if m.NAME == "FINISHED" else None,
                                      gateway(p, m))
        world.submit(1000, 10, 5)
        for request, priority, pause_ns in arrivals:
            world.now += pause_ns
            world.submit(request, 10, 2, priority=priority)
        world.check_rest()
        return order[1:]

    def test_lower_priority_goes_first_and_equals_in_order(self):
        self.assertEqual(self.order_of(10**12, [(1, 5, 0), (2, 0, 0), (3, 5, 0), (4, -3, 0)]),
                         [4, 2, 1, 3])

    def test_who_waited_long_enough_goes_before_the_more_important(self):
        second = 10**9
        self.assertEqual(self.order_of(second, [(1, 5, 0), (2, 0, 4 * second), (3, 0, 2 * second)]),
                         [2, 1, 3])

    def test_a_stream_of_important_requests_starves_nobody(self):
        world = World(PriorityAgeing(50_000), make_info(slots=1, parents=50))
        world.connect()
        world.submit(1, 10, 2)
        ask = world.submit(2, 10, 2, priority=3)
        for request in range(3, 300):
            world.submit(request, 10, 2, priority=0)
            for _ in range(4):
                world.advance()
            if ask.end is not None:
                break
        self.assertIsNotNone(ask.end)
        self.assertLess(request, 290)
        world.check_rest()


class Chaos(unittest.TestCase):
    """A seed decides sizes, arrivals, aborts, refusals, NaNs, stops, losses."""

    def one(self, seed):
        rng = random.Random(seed)
        groups = rng.choice((((0, 8, 0, 1),), ((0, 4, 0, 1),), ((0, 8, 0, 2), (0, 16, 0, 1)),
                             ((0, 16, 0, 1), (1, 8, 24, 3))))
        info = make_info(slots=rng.randrange(1, 9), tokens=rng.choice((4, 16, 64)),
                         parents=rng.randrange(14, 40), model=64, depth=rng.randrange(2),
                         groups=groups)
        core = rng.choice((Scheduler, lambda **o: PriorityAgeing(10**6, **o)))(
            queue_len_max=rng.choice((3, 100)), whole_prompts=rng.random() < 0.3)
        spoil_rate, nan_rate = rng.choice((0, 0.02, 0.1)), rng.choice((0, 0.01))

        def flags_of(_request, _count):
            roll = rng.random()
            return ROW_FLAG.NAN if roll < nan_rate else ROW_FLAG.STOP_TOKEN if roll > 0.97 else 0
        world = World(core, info, flags_of=flags_of, spoil=lambda plan: rng.random() < spoil_rate)
        gateways = (2, 3) if rng.random() < 0.5 else (2,)
        world.connect(gateways)
        request = 0
        for _ in range(400):
            roll = rng.random()
            if roll < 0.25:
                request += 1
                prompt = rng.randrange(1, 40)
                world.submit(request, prompt, rng.randrange(1, 24), rng.choice(gateways),
                             emitted=rng.randrange(prompt) if rng.random() < 0.2 else 0,
                             priority=rng.randrange(-3, 4), queue_timeout_ns=rng.choice((0, 400_000)))
            elif roll < 0.32 and request:
                peer, name = rng.choice(list(world.asks))
                world.give(peer, codec.Finish(request=name, token_index=rng.randrange(8),
                                              reason=rng.choice((FINISH.STOP, FINISH.CANCELLED))))
            elif roll < 0.325:
                world.give(0, codec.PeerDown(peer=EXECUTOR, role=ROLE.EXECUTOR, epoch=1))
                world.executor.reset()
                world.waiting = []
                world.give(0, codec.PeerUp(peer=EXECUTOR, role=ROLE.EXECUTOR, name="e", epoch=1))
                world.give(EXECUTOR, info)
            elif core.deadline_ns() <= world.now:
                world.give(0, codec.Timer(deadline_ns=core.deadline_ns()))
            else:
                world.advance()
            core.digest()
        self.assertTrue(core.deadline_ns() == NEVER or core.deadline_ns() > 0)
        world.check_rest()
        self.assertGreater(core.step, 0)

    def test_seeds(self):
        for seed in range(SEED, SEED + SEEDS):
            with self.subTest(seed=seed):
                self.one(seed)


class Hostile(unittest.TestCase):
    """Peers that send anything that decodes: answered or ignored, never an exception."""

    KINDS = (codec.Submit, codec.Finish, codec.ExecutorInfo, codec.StepResult, codec.PlanRefused, codec.Nak,
             codec.PeerUp, codec.PeerDown, codec.Timer, codec.Drain, codec.Plan, codec.ModelInfo)

    def value(self, rng, kind, limit):
        numbers = (0, 1, 2, 3, rng.randrange(9), rng.randrange(300))
        if kind in ("u32", "u64"):
            return min(limit, rng.choice((*numbers, limit if limit < 1 << 16 else 70000)))
        if kind == "i64":
            return rng.randrange(-200, 200)
        if kind == "bool":
            return rng.random() < 0.5
        if kind in ("str", "bin"):
            return ("x" if kind == "str" else b"x") * min(limit, rng.choice((0, 1, 32)))
        entries = [rng.choice((0, 1, 2, rng.randrange(9))) for _ in range(rng.randrange(5))]
        return [float(e) for e in entries] if kind == "col_f32" else entries

    def test_anything_that_decodes(self):
        for seed in range(SEED, SEED + 40):
            with self.subTest(seed=seed):
                self.one(random.Random(seed))

    def one(self, rng):
        core, now = Scheduler(), 1_000_000_000

        def give(peer, message):
            for _, answer in core.on_input(now, peer, recode(message)):
                recode(answer)
            core.deadline_ns()
            core.digest()
        give(0, codec.PeerUp(peer=1, role=ROLE.EXECUTOR, name="e", epoch=1))
        give(0, codec.PeerUp(peer=2, role=ROLE.GATEWAY, name="g", epoch=1))
        give(1, make_info())
        for _ in range(400):
            now += rng.randrange(1000)
            if rng.random() < 0.2:
                tokens = [1] * rng.randrange(1, 40)
                give(2, codec.Submit(request=rng.randrange(1, 60), prompt_length=len(tokens), tokens=tokens,
                                     generation_max=rng.randrange(1, 30)))
                continue
            cls = rng.choice(self.KINDS)
            fields = {name: self.value(rng, kind, limit) for name, kind, limit, *_ in cls.FIELDS}
            if rng.random() < 0.5 and core.flights and "step" in fields:
                fields["step"] = core.flights[0].step
            local = cls in (codec.PeerUp, codec.PeerDown, codec.Timer, codec.Drain)
            message = cls(**fields)
            message.request = rng.choice((0, 1, rng.randrange(60)))
            body, blob = codec.encode(message)
            message = codec.decode(cls.KIND, body, blob)
            message.request = rng.choice((0, 1, rng.randrange(60)))
            for _, answer in core.on_input(now, 0 if local else rng.randrange(1, 5), message):
                recode(answer)


if __name__ == "__main__":
    print(f"seed {SEED}; ONEPATH_SEED={SEED} ONEPATH_SEEDS=1 repeats one of {SEEDS}")
    unittest.main()
