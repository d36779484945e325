/* The width of the next plan: 1, or the executor's own.
 *
 * A wide step costs more and gives more tokens if candidates stand.  Both are measured.  What a row
 * would gain is an average of its last candidates: in a wide step those of its window, in a narrow
 * one the first that was proposed, which the executor compares with the token that came.  So a
 * plan is made wide before anything was risked, and narrow again when candidates stop coming,
 * whatever the reason.  What a step costs is kept by width and by the number of rows. */
#include "sched_internal.h"

enum {
    ONE = 1024,         /* a share of 1 */
    RATE = 4,           /* a new figure weighs a quarter, */
    HIT_RATE = 8,       /* a right candidate an eighth: one alone is no reason */
    KEEP_PERCENT = 102, /* a wide plan stays wide while it gains anything, */
    TURN_PERCENT = 108, /* a narrow one becomes wide when it gains this */
    RETRY_SHIFT = 9,    /* a promising width that measured badly is forgiven by this each step */
};

/* Beyond it a step is as long as can be: products stay within 64 bits. */
static const uint64_t COST_MAX_NS = UINT64_C(1) << 36;

static uint32_t
bucket_of(uint32_t rows)
{
    uint32_t bucket = 0;
    while (rows > 1 && bucket + 1 < SCHED_COST_BUCKETS) {
        rows /= 2;
        bucket++;
    }
    return bucket;
}

/* Tokens of a wide row, in parts of ONE: the first, and each next one if all before it stood. */
static uint32_t
expected_tokens(const sched_core_t *self, uint32_t slot)
{
    uint32_t hit = self->spans[slot].draft_hit;
    uint32_t tokens = ONE;
    uint32_t share = ONE;
    for (uint32_t i = 1; i < self->width && share > 0; i++) {
        share = share * hit / ONE;
        tokens += share;
    }
    return tokens;
}

/* Whether a wide step of these rows gains. */
static bool
gains(sched_core_t *self, uint64_t tokens, uint32_t rows)
{
    sched_drafts_t *drafts = &self->drafts;
    uint32_t bucket = bucket_of(rows);
    uint64_t narrow_ns = drafts->cost_ns[0][bucket];
    uint64_t *wide_ns = &drafts->cost_ns[1][bucket];
    if (narrow_ns == 0) {
        return false; /* measure that first */
    }
    if (*wide_ns == 0) {
        return tokens * 4 > (uint64_t)rows * ONE * 5; /* not known: if it promises a quarter */
    }
    /* More rows never cost less.  What looks so was measured in another hour, and while all plans
     * are wide nobody measures narrow ones. */
    uint64_t least_ns = narrow_ns + narrow_ns / 8;
    uint64_t cost_ns = *wide_ns > least_ns ? *wide_ns : least_ns;
    uint32_t percent = drafts->is_wide ? KEEP_PERCENT : TURN_PERCENT;
    if (tokens * narrow_ns / ONE * 100 > rows * cost_ns * percent) {
        return true;
    }
    if (tokens * 4 > (uint64_t)rows * ONE * 5) {
        *wide_ns -= *wide_ns >> RETRY_SHIFT;
    }
    return false;
}

uint32_t
sched_width_choose(sched_core_t *self)
{
    sched_drafts_t *drafts = &self->drafts;
    if (self->width == 1 || !drafts->is_told) {
        return self->width;
    }
    uint32_t rows = self->decoding.count;
    if (rows == 0) {
        return 1;
    }
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < rows; i++) {
        tokens += expected_tokens(self, self->decoding.items[i]);
    }
    drafts->is_wide = gains(self, tokens, rows);
    return drafts->is_wide ? self->width : 1;
}

bool
sched_width_fits(const sched_core_t *self, const sched_step_t *step,
                 const proto_step_result_t *result)
{
    uint32_t count = result->drafted.count;
    if (result->draft_hits.count != count || (count != 0 && count != step->row_count)) {
        return false;
    }
    for (uint32_t r = 0; r < count; r++) {
        uint32_t drafted = result->drafted.data[r];
        if ((drafted > 0 && drafted >= self->width) || result->draft_hits.data[r] > drafted) {
            return false;
        }
    }
    return true;
}

static void
learn_cost(sched_core_t *self, const sched_step_t *step, uint64_t duration_ns)
{
    bool is_wide = step->rows[0].length > 1;
    duration_ns = duration_ns < COST_MAX_NS ? duration_ns : COST_MAX_NS;
    uint64_t *cost = &self->drafts.cost_ns[is_wide][bucket_of(step->row_count)];
    if (*cost == 0) {
        *cost = duration_ns;
        return;
    }
    /* One that was disturbed says little. */
    uint64_t sample = duration_ns < 2 * *cost ? duration_ns : 2 * *cost;
    /* Up at once: what measured well once must not be believed for long. */
    uint32_t rate = is_wide && sample > *cost ? 2 : RATE;
    *cost = *cost - *cost / rate + sample / rate;
}

void
sched_width_learn(sched_core_t *self, const sched_step_t *step, const proto_step_result_t *result)
{
    self->figures.drafts_ignored += result->draft_ignored;
    if (result->drafted.count == 0 || self->width == 1) {
        return;
    }
    self->drafts.is_told = true;
    bool is_wide = false;
    for (uint32_t r = step->extend_count; r < step->row_count; r++) {
        const sched_row_t *row = &step->rows[r];
        uint32_t drafted = result->drafted.data[r];
        uint32_t hits = result->draft_hits.data[r];
        if (row->length > 1) {
            is_wide = true;
            self->figures.drafts_proposed += drafted;
            self->figures.drafts_accepted += hits;
            self->figures.drafts_missing += drafted == 0 ? 1 : 0;
        }
        if (self->slots[row->slot].serial != row->serial) {
            continue;
        }
        uint32_t *share = &self->spans[row->slot].draft_hit;
        for (uint32_t i = 0; i < hits; i++) {
            *share += (ONE - *share) / HIT_RATE;
        }
        if (hits < drafted || drafted == 0) {
            *share -= *share / RATE;
        }
    }
    self->figures.wide_steps += is_wide ? 1 : 0;
    if (step->extend_count == 0 && step->row_count > 0) {
        learn_cost(self, step, result->duration_ns);
    }
}

void
sched_width_save(const sched_core_t *self, proto_pack_t *out)
{
    proto_pack_bool(out, self->drafts.is_told);
    proto_pack_bool(out, self->drafts.is_wide);
    const uint64_t *cost_ns = &self->drafts.cost_ns[0][0];
    uint32_t known = 0; /* a bit for each cost: most are not known */
    for (uint32_t i = 0; i < 2 * SCHED_COST_BUCKETS; i++) {
        known |= (cost_ns[i] != 0 ? 1u : 0u) << i;
    }
    proto_pack_u32(out, known);
    for (uint32_t i = 0; i < 2 * SCHED_COST_BUCKETS; i++) {
        if (cost_ns[i] != 0) {
            proto_pack_u64(out, cost_ns[i]);
        }
    }
}

void
sched_width_load(sched_core_t *self, proto_unpack_t *in)
{
    self->drafts.is_told = proto_unpack_bool(in);
    self->drafts.is_wide = proto_unpack_bool(in);
    uint64_t *cost_ns = &self->drafts.cost_ns[0][0];
    uint32_t known = proto_unpack_u32_max(in, (1u << 2 * SCHED_COST_BUCKETS) - 1);
    for (uint32_t i = 0; i < 2 * SCHED_COST_BUCKETS; i++) {
        cost_ns[i] = (known >> i & 1) != 0 ? proto_unpack_u64_max(in, COST_MAX_NS) : 0;
        if ((known >> i & 1) != 0 && cost_ns[i] == 0) {
            proto_unpack_fail(in);
        }
    }
}
