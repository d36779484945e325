#include "sched_fake.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum { BLOCKS_MAX = 65536 };

typedef struct {
    uint64_t request;
    const sched_fake_request_t *owner; /* stop_at and nan_at */
    uint32_t prompt_length;
    uint32_t known;    /* tokens in `tokens` */
    uint32_t computed; /* tokens in the cache */
    uint32_t hashed;   /* pages whose hash is known */
    bool is_spoiled;   /* a row of it gave a NaN: what rows in flight read is no matter */
    uint8_t chain[PROTO_HASH_SIZE_BYTES];
    int32_t tokens[FAKE_LENGTH_MAX];
} slot_t;

typedef struct {
    uint64_t step;
    uint32_t rows;
    uint32_t hashes;
    uint32_t computed;
    uint32_t extends;
    uint8_t counts[FAKE_SLOTS_MAX];
    uint8_t flags[FAKE_SLOTS_MAX];
    uint32_t width;
    uint8_t drafted[FAKE_SLOTS_MAX];
    uint8_t draft_hits[FAKE_SLOTS_MAX];
    int32_t tokens[FAKE_SLOTS_MAX * FAKE_WIDTH_MAX];
    uint32_t token_count;
    uint32_t hash_rows[FAKE_SLOTS_MAX];
    uint32_t hash_pages[FAKE_SLOTS_MAX];
    uint8_t hash_bytes[FAKE_SLOTS_MAX * PROTO_HASH_SIZE_BYTES];
} step_t;

struct sched_fake {
    sched_fake_options_t options;
    proto_executor_info_t info;
    slot_t *slots;     /* [slot_count + 1] */
    uint32_t *tables;  /* [slot_count + 1][group][columns] */
    uint64_t *content; /* [group][block][granularity] */
    uint32_t columns[4];
    uint64_t applied;
    bool awaits_full;
    bool refuses_next;
    bool drafts_come;
    uint64_t cost_ns[2]; /* of a step: narrow, wide */
    step_t steps[FAKE_STEPS_MAX + 1];
    uint32_t step_first;
    uint32_t step_count;
    uint64_t clear_count;
};

static uint64_t
mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Digest of tokens [0, length). */
static uint64_t
history(const int32_t *tokens, uint32_t length)
{
    uint64_t digest = 1;
    for (uint32_t i = 0; i < length; i++) {
        digest = mix(digest ^ (uint32_t)tokens[i]) + 1;
    }
    return digest;
}

int32_t
sched_fake_next(const int32_t *tokens, uint32_t length)
{
    return (int32_t)(history(tokens, length) % 50000);
}

uint32_t
sched_fake_accepted(const int32_t *tokens, uint32_t length, uint32_t width)
{
    return 1 + (uint32_t)(mix(history(tokens, length) + 17) % width);
}

void
sched_fake_prompt(sched_fake_request_t *request, uint32_t family, uint32_t shared,
                  uint32_t page_tokens)
{
    for (uint32_t i = 0; i < request->prompt_length; i++) {
        uint64_t seed = i < shared ? family : request->id + 1000003;
        request->tokens[i] = (int32_t)(mix(seed * 7919 + i) % 50000);
    }
    static const uint8_t key[PROTO_HASH_SIZE_BYTES];
    const uint8_t *previous = NULL;
    for (uint32_t p = 0; p < request->prompt_length / page_tokens; p++) {
        uint8_t *out = request->hashes + p * PROTO_HASH_SIZE_BYTES;
        proto_page_hash(key, previous, (proto_bytes_t){0}, request->tokens + p * page_tokens,
                        page_tokens, out);
        previous = out;
    }
}

sched_fake_t *
sched_fake_new(const sched_fake_options_t *options)
{
    sched_fake_t *self = calloc(1, sizeof *self);
    require(self != NULL);
    require(options->slot_count <= FAKE_SLOTS_MAX);
    require(options->width <= FAKE_WIDTH_MAX);
    self->options = *options;
    self->options.width = options->width == 0 ? 1 : options->width;
    sched_fake_set_drafts(self, true, 1000, 1300);
    uint32_t stride = 0;
    for (uint32_t g = 0; g < options->group_count; g++) {
        uint32_t positions = options->model_len_max + self->options.width - 1;
        self->columns[g] = (positions + options->granularities[g] - 1) / options->granularities[g];
        stride += self->columns[g];
        require((options->parent_count - 1) * options->packings[g] < BLOCKS_MAX);
    }
    self->slots = calloc(options->slot_count + 1, sizeof *self->slots);
    self->tables = calloc((size_t)(options->slot_count + 1) * stride, sizeof *self->tables);
    size_t cells = 0;
    for (uint32_t g = 0; g < options->group_count; g++) {
        cells += (size_t)(1 + (options->parent_count - 1) * options->packings[g]) *
                 options->granularities[g];
    }
    self->content = calloc(cells, sizeof *self->content);
    require(self->slots != NULL && self->tables != NULL && self->content != NULL);
    static const uint8_t key[PROTO_HASH_SIZE_BYTES];
    self->info = (proto_executor_info_t){
        .model_name = proto_text("fake"),
        .fingerprint = proto_text("model=fake"),
        .vocab_size = 50000,
        .model_len_max = options->model_len_max,
        .slot_count = options->slot_count,
        .step_tokens_max = options->step_tokens_max,
        .decode_width = self->options.width,
        .overlap_depth_max = options->overlap_depth_max,
        .prefix_granularity = options->page_tokens,
        .parent_count = options->parent_count,
        .group_kinds = {self->options.kinds, options->group_count},
        .group_granularities = {self->options.granularities, options->group_count},
        .group_windows = {self->options.windows, options->group_count},
        .group_packings = {self->options.packings, options->group_count},
        .page_hash_key = {key, sizeof key},
    };
    return self;
}

void
sched_fake_destroy(sched_fake_t **self_p)
{
    sched_fake_t *self = *self_p;
    if (self != NULL) {
        free(self->slots);
        free(self->tables);
        free(self->content);
        free(self);
        *self_p = NULL;
    }
}

const proto_executor_info_t *
sched_fake_info(const sched_fake_t *self)
{
    return &self->info;
}

static uint32_t *
table_of(sched_fake_t *self, uint32_t slot, uint32_t group)
{
    uint32_t stride = 0;
    uint32_t offset = 0;
    for (uint32_t g = 0; g < self->options.group_count; g++) {
        offset += g < group ? self->columns[g] : 0;
        stride += self->columns[g];
    }
    return self->tables + (size_t)slot * stride + offset;
}

static uint64_t *
content_of(sched_fake_t *self, uint32_t group, uint32_t block)
{
    size_t at = 0;
    for (uint32_t g = 0; g < group; g++) {
        at += (size_t)(1 + (self->options.parent_count - 1) * self->options.packings[g]) *
              self->options.granularities[g];
    }
    return self->content + at + (size_t)block * self->options.granularities[group];
}

void
sched_fake_admit(sched_fake_t *self, const sched_admission_t *admission,
                 const sched_fake_request_t *request)
{
    require(admission->slot >= 1 && admission->slot <= self->options.slot_count);
    slot_t *slot = &self->slots[admission->slot];
    require(slot->request == 0);
    require(admission->request == request->id);
    *slot = (slot_t){.request = request->id, .owner = request};
    slot->prompt_length = request->prompt_length;
    slot->known = request->prompt_length;
    memcpy(slot->tokens, request->tokens, request->prompt_length * sizeof *slot->tokens);
    slot->hashed = request->prompt_length / self->options.page_tokens;
    if (slot->hashed > 0) {
        memcpy(slot->chain, request->hashes + (slot->hashed - 1) * PROTO_HASH_SIZE_BYTES,
               PROTO_HASH_SIZE_BYTES);
    }
}

/* References to a block from all tables. */
static uint32_t
reference_count(sched_fake_t *self, uint32_t group, uint32_t block)
{
    uint32_t count = 0;
    for (uint32_t s = 1; s <= self->options.slot_count; s++) {
        const uint32_t *table = table_of(self, s, group);
        for (uint32_t c = 0; c < self->columns[group]; c++) {
            count += table[c] == block ? 1 : 0;
        }
    }
    return count;
}

/* What a state group keeps of the state after `length` tokens. */
static uint64_t
state_after(const slot_t *slot, uint32_t length)
{
    return history(slot->tokens, length) ^ 0x57a7e;
}

/* The state before `begin` is where it has to be, and the row may write columns [first, last]. */
static void
check_states(sched_fake_t *self, uint32_t slot_index, uint32_t g, uint32_t begin, uint32_t first,
             uint32_t last)
{
    const slot_t *slot = &self->slots[slot_index];
    uint32_t granularity = self->options.granularities[g];
    const uint32_t *table = table_of(self, slot_index, g);
    if (begin > 0) {
        uint32_t block = table[(begin - 1) / granularity];
        require(block != 0);
        require(content_of(self, g, block)[0] == state_after(slot, begin));
    }
    for (uint32_t c = first; c <= last && c < self->columns[g]; c++) {
        require(table[c] != 0);
        require(reference_count(self, g, table[c]) == 1);
    }
}

/* Reads what position `begin` attends to, then writes [begin, kept) and, of a decoding row, on to
 * `decode_end`, which it does not go on with (0 = a chunk); aborts on wrong content. */
static void
forward(sched_fake_t *self, uint32_t slot_index, uint32_t begin, uint32_t kept, uint32_t decode_end)
{
    slot_t *slot = &self->slots[slot_index];
    uint32_t end = decode_end != 0 ? decode_end : kept;
    require(begin < kept && kept <= end && kept <= slot->known);
    if (slot->is_spoiled) {
        return;
    }
    for (uint32_t g = 0; g < self->options.group_count; g++) {
        uint32_t granularity = self->options.granularities[g];
        const uint32_t *table = table_of(self, slot_index, g);
        uint32_t first = 0;
        if (self->options.kinds[g] == 1 && begin >= self->options.windows[g]) {
            first = begin - self->options.windows[g] + 1;
        }
        for (uint32_t p = self->options.kinds[g] == 2 ? begin : first; p < begin; p++) {
            require(table[p / granularity] != 0);
            uint64_t expected = history(slot->tokens, p + 1);
            require(content_of(self, g, table[p / granularity])[p % granularity] == expected);
        }
        for (uint32_t p = begin; p < end && self->options.kinds[g] != 2; p++) {
            if (p / granularity >= self->columns[g]) {
                continue; /* beyond the longest request: the device writes it nowhere */
            }
            uint32_t block = table[p / granularity];
            require(block != 0);
            require(reference_count(self, g, block) == 1);
            content_of(self, g, block)[p % granularity] =
                p < kept ? history(slot->tokens, p + 1) : 0xdead;
        }
        if (self->options.kinds[g] == 2) {
            /* A chunk leaves its last state, a decoding row one of those that it computes: the
             * columns behind that one hold nothing. */
            uint32_t last = (end - 1) / granularity;
            check_states(self, slot_index, g, begin, decode_end != 0 ? begin / granularity : last,
                         last);
            uint32_t column = (kept - 1) / granularity;
            content_of(self, g, table[column])[0] = state_after(slot, kept);
            for (uint32_t c = column + 1; c <= last && c < self->columns[g]; c++) {
                content_of(self, g, table[c])[0] = 0xdead;
            }
        }
    }
    slot->computed = kept;
}

/* The tokens of a row that samples: `most` at most. */
static void
sample(sched_fake_t *self, uint32_t slot_index, step_t *step, uint32_t most)
{
    slot_t *slot = &self->slots[slot_index];
    uint32_t row = step->rows;
    step->counts[row] = 0;
    step->flags[row] = 0;
    while (step->counts[row] < most && step->flags[row] == 0) {
        uint32_t generated = slot->known - slot->prompt_length + 1;
        if (slot->owner->nan_at == generated) {
            step->flags[row] = PROTO_ROW_NAN;
            step->token_count -= step->counts[row];
            slot->known -= step->counts[row];
            step->counts[row] = 0;
            return;
        }
        int32_t token = sched_fake_next(slot->tokens, slot->known);
        slot->tokens[slot->known++] = token;
        step->tokens[step->token_count++] = token;
        step->counts[row]++;
        step->flags[row] = slot->owner->stop_at == generated ? PROTO_ROW_STOP_TOKEN : 0;
    }
}

/* A decoding row: the input is the last known token; as many drafts are right as it accepts, and
 * one token more is sampled. */
static void
decode(sched_fake_t *self, uint32_t slot_index, step_t *step)
{
    slot_t *slot = &self->slots[slot_index];
    uint32_t begin = slot->known - 1;
    uint32_t width = step->width;
    uint32_t right = sched_fake_accepted(slot->tokens, slot->known, self->options.width) - 1;
    right = self->drafts_come ? right : 0;
    uint32_t tested = self->drafts_come ? (width > 1 ? width - 1 : 1) : 0;
    sample(self, slot_index, step, 1 + (width > 1 ? right : 0));
    step->drafted[step->rows] = (uint8_t)tested;
    step->draft_hits[step->rows] = (uint8_t)(right < tested ? right : tested);
    bool is_nan = (step->flags[step->rows] & PROTO_ROW_NAN) != 0;
    uint32_t kept = is_nan ? begin + 1 : begin + step->counts[step->rows];
    forward(self, slot_index, begin, kept, begin + width);
    slot->is_spoiled = slot->is_spoiled || is_nan;
    step->computed += width;
}

static void
hash_pages(sched_fake_t *self, uint32_t slot_index, step_t *step)
{
    static const uint8_t key[PROTO_HASH_SIZE_BYTES];
    slot_t *slot = &self->slots[slot_index];
    uint32_t page = self->options.page_tokens;
    if (self->options.withhold_hashes) {
        return;
    }
    while ((slot->hashed + 1) * page <= slot->computed && step->hashes < FAKE_SLOTS_MAX) {
        proto_page_hash(key, slot->hashed == 0 ? NULL : slot->chain, (proto_bytes_t){0},
                        slot->tokens + slot->hashed * page, page, slot->chain);
        step->hash_rows[step->hashes] = step->rows;
        step->hash_pages[step->hashes] = slot->hashed++;
        memcpy(step->hash_bytes + step->hashes * PROTO_HASH_SIZE_BYTES, slot->chain,
               PROTO_HASH_SIZE_BYTES);
        step->hashes++;
    }
}

static void
apply_tables(sched_fake_t *self, const proto_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->release_slots.count; i++) {
        uint32_t slot = plan->release_slots.data[i];
        require(slot >= 1 && slot <= self->options.slot_count);
        self->slots[slot].request = 0;
        for (uint32_t g = 0; g < self->options.group_count; g++) {
            memset(table_of(self, slot, g), 0, self->columns[g] * sizeof(uint32_t));
        }
    }
    for (uint32_t slot = 1; plan->base_step == 0 && slot <= self->options.slot_count; slot++) {
        for (uint32_t g = 0; g < self->options.group_count; g++) {
            memset(table_of(self, slot, g), 0, self->columns[g] * sizeof(uint32_t));
        }
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < plan->patch_slots.count; i++) {
        uint32_t slot = plan->patch_slots.data[i];
        uint32_t group = plan->patch_groups.data[i];
        uint32_t column = plan->patch_columns.data[i];
        uint32_t count = plan->patch_counts.data[i];
        require(slot >= 1 && slot <= self->options.slot_count);
        require(self->slots[slot].request != 0);
        require(group < self->options.group_count);
        require(column + count <= self->columns[group]);
        require(at + count <= plan->patch_blocks.count);
        for (uint32_t k = 0; k < count; k++) {
            uint32_t block = plan->patch_blocks.data[at + k];
            require(block <= (self->options.parent_count - 1) * self->options.packings[group]);
            table_of(self, slot, group)[column + k] = block;
        }
        at += count;
    }
    require(at == plan->patch_blocks.count);
    for (uint32_t i = 0; i < plan->clear_blocks.count; i++) {
        uint32_t group = plan->clear_groups.data[i];
        memset(content_of(self, group, plan->clear_blocks.data[i]), 0,
               self->options.granularities[group] * sizeof(uint64_t));
        self->clear_count++;
    }
}

static void
run_rows(sched_fake_t *self, const proto_plan_t *plan, step_t *step)
{
    bool seen[FAKE_SLOTS_MAX + 1] = {false};
    for (uint32_t i = 0; i < plan->extend_slots.count; i++, step->rows++) {
        uint32_t slot = plan->extend_slots.data[i];
        uint32_t end = plan->extend_begins.data[i] + plan->extend_lengths.data[i];
        require(self->slots[slot].request != 0 && !seen[slot]);
        seen[slot] = true;
        forward(self, slot, plan->extend_begins.data[i], end, 0);
        step->computed += plan->extend_lengths.data[i];
        if (plan->extend_samples.data[i] != 0) {
            require(end == self->slots[slot].known);
            sample(self, slot, step, 1);
            self->slots[slot].is_spoiled = step->flags[step->rows] == PROTO_ROW_NAN;
        } else {
            step->counts[step->rows] = 0;
            step->flags[step->rows] = 0;
        }
        hash_pages(self, slot, step);
    }
    step->extends = plan->extend_slots.count;
    for (uint32_t i = 0; i < plan->decode_slots.count; i++, step->rows++) {
        uint32_t slot = plan->decode_slots.data[i];
        require(self->slots[slot].request != 0 && !seen[slot]);
        seen[slot] = true;
        decode(self, slot, step);
        hash_pages(self, slot, step);
    }
    require(step->computed <= self->options.step_tokens_max);
}

bool
sched_fake_plan(sched_fake_t *self, const proto_plan_t *plan, proto_plan_refused_t *refused)
{
    require(plan->step > self->applied);
    bool stale = plan->base_step != 0 && (self->awaits_full || plan->base_step != self->applied);
    if (stale || self->refuses_next) {
        require(self->refuses_next || self->awaits_full); /* the core never sends a stale plan */
        *refused = (proto_plan_refused_t){
            .step = plan->step,
            .applied_step = self->applied,
            .rule = stale ? PROTO_RULE_STALE : PROTO_RULE_BUDGET,
        };
        self->refuses_next = false;
        self->awaits_full = true;
        return false;
    }
    require(self->step_count <= self->options.overlap_depth_max);
    step_t *step = &self->steps[(self->step_first + self->step_count) % (FAKE_STEPS_MAX + 1)];
    bool is_narrow = self->options.tells_drafts && plan->width == 1;
    require(is_narrow || plan->width == self->options.width);
    *step = (step_t){.step = plan->step, .width = plan->width};
    apply_tables(self, plan);
    run_rows(self, plan, step);
    self->step_count++;
    self->applied = plan->step;
    self->awaits_full = false;
    return true;
}

void
sched_fake_set_drafts(sched_fake_t *self, bool come, uint64_t narrow_ns, uint64_t wide_ns)
{
    self->drafts_come = come;
    self->cost_ns[0] = narrow_ns;
    self->cost_ns[1] = wide_ns;
}

void
sched_fake_refuse_next(sched_fake_t *self)
{
    self->refuses_next = true;
}

bool
sched_fake_result(sched_fake_t *self, proto_step_result_t *out)
{
    if (self->step_count == 0) {
        return false;
    }
    step_t *step = &self->steps[self->step_first];
    self->step_first = (self->step_first + 1) % (FAKE_STEPS_MAX + 1);
    self->step_count--;
    *out = (proto_step_result_t){
        .step = step->step,
        .mode = step->rows == 0 ? PROTO_STEP_IDLE : PROTO_STEP_DECODE_EAGER,
        .duration_ns = self->cost_ns[step->width > 1],
        .drafted = {step->drafted, self->options.tells_drafts ? step->rows : 0},
        .draft_hits = {step->draft_hits, self->options.tells_drafts ? step->rows : 0},
        .computed_tokens = step->computed,
        .token_counts = {step->counts, step->rows},
        .row_flags = {step->flags, step->rows},
        .hash_rows = {step->hash_rows, step->hashes},
        .hash_pages = {step->hash_pages, step->hashes},
        .hash_bytes = {step->hash_bytes, step->hashes * PROTO_HASH_SIZE_BYTES},
        .tokens = {step->tokens, step->token_count},
    };
    return true;
}

uint64_t
sched_fake_clear_count(const sched_fake_t *self)
{
    return self->clear_count;
}

uint32_t
sched_fake_block(const sched_fake_t *self, uint32_t slot, uint32_t group, uint32_t column)
{
    return table_of((sched_fake_t *)(uintptr_t)self, slot, group)[column];
}

uint32_t
sched_fake_used_count(const sched_fake_t *self)
{
    uint32_t count = 0;
    for (uint32_t s = 1; s <= self->options.slot_count; s++) {
        count += self->slots[s].request != 0 ? 1 : 0;
    }
    return count;
}
