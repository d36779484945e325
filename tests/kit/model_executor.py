"""An executor without a device that believes nothing: every rule of a plan, in the order of
docs/scheduler-protocol.md.  A token is a hash of all tokens before it."""
import hashlib

from onepath_scheduler import codec
from onepath_scheduler.codec import MODE, ROW_FLAG, RULE

VOCAB = 30000


def token_after(tokens):
    raw = b"".join(int(t).to_bytes(4, "little") for t in tokens)
    return int.from_bytes(hashlib.blake2b(raw, digest_size=4).digest(), "little") % VOCAB


class Slot:
    def __init__(self, request, tokens, length_max):
        self.request, self.tokens, self.length_max = request, list(tokens), length_max
        self.pending, self.decodable, self.tables = 0, False, {}


class Refused(Exception):
    def __init__(self, rule, slot, detail):
        super().__init__(f"{RULE.name(rule)}: {detail}")
        self.rule, self.slot, self.detail = rule, slot, detail


class Executor:
    """`flags_of(request, token count)` says how a sampled row ends; `spoil(plan)` may refuse one."""

    def __init__(self, info, flags_of=lambda request, count: 0, spoil=lambda plan: False):
        self.info, self.flags_of, self.spoil = info, flags_of, spoil
        self.reset()
        self.genuine_refusals = []
        self.cleared = []

    def reset(self):
        self.slots, self.flights, self.applied, self.needs_full = {}, [], 0, False

    def take(self, message):
        """What the scheduler sends; returns an answer that comes at once, or None."""
        if message.NAME == "RESET":
            self.reset()
        elif message.NAME == "ADMIT":
            assert 1 <= message.slot <= self.info.slot_count and message.slot not in self.slots
            assert len(message.tokens) == message.prompt_length >= 1
            assert message.length_max <= self.info.model_len_max
            self.slots[message.slot] = Slot(message.request, message.tokens, message.length_max)
        elif message.NAME == "PLAN":
            try:
                if self.spoil(message):
                    raise Refused(RULE.TOKEN_RANGE, 0, "spoiled")
                self.check(message)
            except Refused as refused:
                if refused.detail != "spoiled" and not (refused.rule == RULE.STALE and self.needs_full):
                    self.genuine_refusals.append(str(refused))
                self.needs_full = True
                return codec.PlanRefused(step=message.step, applied_step=self.applied,
                                         rule=refused.rule, slot=refused.slot, detail=refused.detail)
            self.apply(message)
        else:
            raise AssertionError(message)
        return None

    # ---- the rules --------------------------------------------------------------------------------

    def check(self, plan):
        info = self.info
        if plan.step <= self.applied or (plan.base_step and (self.needs_full
                                                             or plan.base_step != self.applied)):
            raise Refused(RULE.STALE, 0, f"base {plan.base_step}, applied {self.applied}")
        patches = len(plan.patch_slots)
        if not patches == len(plan.patch_groups) == len(plan.patch_columns) == len(plan.patch_counts) \
                or sum(plan.patch_counts) != len(plan.patch_blocks) \
                or len(plan.clear_groups) != len(plan.clear_blocks) \
                or not len(plan.extend_slots) == len(plan.extend_begins) == len(plan.extend_lengths) \
                == len(plan.extend_samples):
            raise Refused(RULE.SHAPE, 0, "columns differ")
        rows = len(plan.extend_slots) + len(plan.decode_slots)
        if len(self.flights) > info.overlap_depth_max or rows > info.slot_count \
                or sum(plan.extend_lengths) + len(plan.decode_slots) > info.step_tokens_max:
            raise Refused(RULE.BUDGET, 0, f"{len(self.flights)} in flight, {rows} rows")
        if plan.width != 1:
            raise Refused(RULE.WIDTH, 0, str(plan.width))
        tables = {slot: {g: dict(t) for g, t in s.tables.items()} for slot, s in self.slots.items()}
        for slot in plan.release_slots:
            self.range(slot)
            tables.pop(slot, None)
        if plan.base_step == 0:
            tables = {slot: {} for slot in tables}
        self.patch(plan, tables)
        self.tables = tables
        self.counts = {}
        for table in tables.values():
            for g, columns in table.items():
                for block in columns.values():
                    if block:
                        self.counts[g, block] = self.counts.get((g, block), 0) + 1
        for g, block in zip(plan.clear_groups, plan.clear_blocks):
            if not 1 <= block < self.blocks(g):
                raise Refused(RULE.BLOCK_RANGE, 0, f"clear of {block}")
            if self.counts.get((g, block), 0) > 1:
                raise Refused(RULE.WRITE_SHARED, 0, f"clear of {block}")
        self.check_rows(plan, tables)

    def range(self, slot):
        if not 1 <= slot <= self.info.slot_count:
            raise Refused(RULE.SLOT_RANGE, slot, str(slot))

    def blocks(self, group):
        return 1 + (self.info.parent_count - 1) * self.info.group_packings[group]

    def patch(self, plan, tables):
        at = 0
        for slot, g, column, count in zip(plan.patch_slots, plan.patch_groups, plan.patch_columns,
                                          plan.patch_counts):
            self.range(slot)
            if slot not in tables:
                raise Refused(RULE.SLOT_EMPTY, slot, "patch")
            if g >= len(self.info.group_kinds):
                raise Refused(RULE.GROUP_RANGE, slot, str(g))
            if (column + count) > -(-self.info.model_len_max // self.info.group_granularities[g]):
                raise Refused(RULE.COLUMN_RANGE, slot, f"{column}+{count}")
            for block in plan.patch_blocks[at:at + count]:
                if block >= self.blocks(g):
                    raise Refused(RULE.BLOCK_RANGE, slot, str(block))
                tables[slot].setdefault(g, {})[column] = block
                column += 1
            at += count

    def check_rows(self, plan, tables):
        seen = set()

        def row(slot):
            self.range(slot)
            if slot not in tables:
                raise Refused(RULE.SLOT_EMPTY, slot, "row")
            if slot in seen:
                raise Refused(RULE.SLOT_TWICE, slot, "row")
            seen.add(slot)
            return self.slots[slot]

        for slot, begin, length, samples in zip(plan.extend_slots, plan.extend_begins,
                                                plan.extend_lengths, plan.extend_samples):
            s = row(slot)
            end = begin + length
            if s.pending or length == 0 or end > len(s.tokens) or (samples and end != len(s.tokens)):
                raise Refused(RULE.TOKEN_RANGE, slot, f"{begin}+{length} of {len(s.tokens)}, "
                                                      f"{s.pending} in flight")
            if samples and end + 1 > s.length_max:
                raise Refused(RULE.LENGTH_LIMIT, slot, str(end + 1))
            self.cover(tables[slot], slot, begin, end)
        for slot in plan.decode_slots:
            s = row(slot)
            length = len(s.tokens) + s.pending
            if not s.decodable:
                raise Refused(RULE.TOKEN_RANGE, slot, "decode before the prompt is complete")
            if length + 1 > s.length_max:
                raise Refused(RULE.LENGTH_LIMIT, slot, str(length + 1))
            self.cover(tables[slot], slot, length - 1, length)

    def cover(self, table, slot, begin, end):
        used = {}
        for (g, block) in self.counts:
            used.setdefault(1 + (block - 1) // self.info.group_packings[g], set()).add(g)
        for g, granularity in enumerate(self.info.group_granularities):
            for column in range(0, (end - 1) // granularity + 1):
                block = table.get(g, {}).get(column, 0)
                if not block:
                    raise Refused(RULE.COLUMN_MISSING, slot, f"group {g} column {column}")
                parent = 1 + (block - 1) // self.info.group_packings[g]
                if column >= begin // granularity and (self.counts[g, block] != 1
                                                       or used[parent] != {g}):
                    raise Refused(RULE.WRITE_SHARED, slot, f"group {g} block {block}")

    # ---- work -------------------------------------------------------------------------------------

    def apply(self, plan):
        for slot in plan.release_slots:
            self.slots.pop(slot, None)
        for slot, table in self.tables.items():
            self.slots[slot].tables = table
        self.cleared += list(zip(plan.clear_groups, plan.clear_blocks))
        self.applied, self.needs_full = plan.step, False
        rows = []
        for slot, samples in zip(plan.extend_slots, plan.extend_samples):
            s = self.slots[slot]
            s.decodable = bool(samples)
            s.pending = int(samples)
            rows.append((s, bool(samples)))
        for slot in plan.decode_slots:
            self.slots[slot].pending += 1
            rows.append((self.slots[slot], True))
        self.flights.append((plan.step, rows, sum(plan.extend_lengths) + len(plan.decode_slots)))

    def finish_step(self):
        """The result of the oldest step."""
        step, rows, count = self.flights.pop(0)
        tokens, counts, flags = [], [], []
        for s, samples in rows:
            flag = 0
            if samples:
                s.pending -= 1
                flag = self.flags_of(s.request, len(s.tokens))
                if not flag & ROW_FLAG.NAN:
                    tokens.append(token_after(s.tokens))
                    s.tokens.append(tokens[-1])
            counts.append(int(samples and not flag & ROW_FLAG.NAN))
            flags.append(flag)
        return codec.StepResult(step=step, mode=MODE.MIXED if rows else MODE.IDLE, computed_tokens=count,
                                token_counts=bytes(counts), row_flags=bytes(flags), tokens=tokens)
