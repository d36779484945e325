/* The driver of the executor tests. */
#include "gpu_driver.h"

#include <check.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "run_inspect.h"

static _Atomic uint64_t allocations;

/* The test's own thread counts only inside the executor's calls: libcheck allocates too. */
static _Thread_local bool is_outside;

/* The linker sends every call of the project's objects here (--wrap). */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__real_mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
void *__wrap_mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset);

static void
count_allocation(void)
{
    if (!is_outside) {
        atomic_fetch_add(&allocations, 1);
    }
}

void *
__wrap_malloc(size_t size)
{
    count_allocation();
    return __real_malloc(size);
}

void *
__wrap_calloc(size_t count, size_t size)
{
    count_allocation();
    return __real_calloc(count, size);
}

void *
__wrap_realloc(void *memory, size_t size)
{
    count_allocation();
    return __real_realloc(memory, size);
}

void *
__wrap_aligned_alloc(size_t align, size_t size)
{
    count_allocation();
    return __real_aligned_alloc(align, size);
}

void *
__wrap_mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset)
{
    count_allocation();
    return __real_mmap(address, length, prot, flags, fd, offset);
}

uint64_t
driver_allocation_count(void)
{
    return atomic_load(&allocations);
}

bool
driver_device_is_cuda(void)
{
    const char *device = getenv("ONEPATH_TEST_DEVICE");
    return device != NULL && strncmp(device, "cuda", 4) == 0;
}

void
driver_open(driver_t *self, const run_executor_options_t *options)
{
    static char error[1024];
    run_executor_options_t filled = *options;
    memset(self, 0, sizeof *self);
    filled.error = error;
    filled.error_size_bytes = sizeof error;
    if (filled.device == NULL) {
        filled.device = getenv("ONEPATH_TEST_DEVICE"); /* NULL: the host */
    }
    if (filled.thread_count == 0) {
        filled.thread_count = 2;
    }
    is_outside = false;
    proto_status_t status = run_executor_new(&filled, &self->executor);
    is_outside = true;
    ck_assert_msg(status == STATUS_OK, "run_executor_new: %s: %s", proto_status_name(status),
                  error);
    run_executor_info(self->executor, &self->info);
    self->width = self->info.decode_width;
    uint32_t granularity = self->info.group_granularities.data[0];
    uint32_t len_max = self->info.model_len_max + 2 * self->info.decode_width;
    self->columns = (len_max + granularity - 1) / granularity;
    if (self->columns > DRIVER_COLUMNS_MAX) {
        self->columns = DRIVER_COLUMNS_MAX;
    }
    ck_assert_uint_le(self->info.slot_count, DRIVER_SLOTS_MAX);
    for (uint32_t slot = 1; slot <= self->info.slot_count; slot++) {
        for (uint32_t i = 0; i < self->columns; i++) {
            uint32_t block = 1 + (slot - 1) * self->columns + i;
            self->blocks[slot][i] = block < self->info.parent_count ? block : 0;
        }
    }
    /* A parent block serves one group at a time: the others get parents beyond those of group 0. */
    self->group_count = self->info.group_kinds.count;
    ck_assert_uint_le(self->group_count, DRIVER_GROUPS_MAX);
    uint32_t packing = self->info.group_packings.data[0];
    uint32_t parents = (self->info.slot_count * self->columns + packing - 1) / packing;
    for (uint32_t group = 1; group < self->group_count; group++) {
        self->offsets[group] = parents * self->info.group_packings.data[group];
    }
}

static void
add_patch(driver_patches_t *patches, uint32_t slot, uint32_t group, uint32_t count)
{
    ck_assert_uint_lt(patches->count, DRIVER_PATCHES_MAX);
    patches->slots[patches->count] = slot;
    patches->groups[patches->count] = (uint8_t)group;
    patches->columns[patches->count] = 0;
    patches->counts[patches->count++] = count;
    patches->block_count += count;
}

void
driver_patch_slot(const driver_t *self, uint32_t slot, driver_patches_t *patches)
{
    for (uint32_t group = 0; group < self->group_count; group++) {
        uint32_t *blocks = patches->blocks + patches->block_count;
        for (uint32_t i = 0; i < self->columns; i++) {
            uint32_t block = self->blocks[slot][i];
            blocks[i] = block == 0 ? 0 : block + self->offsets[group];
        }
        add_patch(patches, slot, group, self->columns);
    }
}

/* Holes where a sliding group's window has passed before position `begin`. */
static void
patch_expired(const driver_t *self, uint32_t slot, uint32_t begin, driver_patches_t *patches)
{
    for (uint32_t group = 0; group < self->group_count; group++) {
        uint32_t window = self->info.group_windows.data[group];
        if (window == 0 || begin < window) {
            continue;
        }
        uint32_t count = (begin - window + 1) / self->info.group_granularities.data[group];
        if (count > 0) {
            memset(patches->blocks + patches->block_count, 0, count * sizeof *patches->blocks);
            add_patch(patches, slot, group, count);
        }
    }
}

void
driver_patch_launch(const driver_patches_t *patches, proto_step_launch_t *launch)
{
    launch->patch_slots = (proto_column_u32_t){patches->slots, patches->count};
    launch->patch_groups = (proto_column_u8_t){patches->groups, patches->count};
    launch->patch_columns = (proto_column_u32_t){patches->columns, patches->count};
    launch->patch_counts = (proto_column_u32_t){patches->counts, patches->count};
    launch->patch_blocks = (proto_column_u32_t){patches->blocks, patches->block_count};
}

void
driver_close(driver_t *self)
{
    run_executor_destroy(&self->executor);
}

void
driver_setup(driver_t *self, uint32_t slot, const int32_t *tokens, uint32_t token_count,
             const proto_sampling_t *sampling)
{
    static uint8_t body[16384];
    size_t body_bytes = 0;
    if (sampling != NULL) {
        proto_body_t any = {.sampling = *sampling};
        uint8_t blob[64];
        size_t blob_bytes = 0;
        ck_assert_int_eq(proto_body_encode(PROTO_KIND_SAMPLING, &any, body, sizeof body,
                                           &body_bytes, blob, sizeof blob, &blob_bytes),
                         STATUS_OK);
    }
    proto_slot_setup_t setup = {
        .slot = slot,
        .tokens = {tokens, token_count},
        .sampling = {body, (uint32_t)body_bytes},
    };
    is_outside = false;
    proto_status_t status = run_executor_slot_setup(self->executor, &setup);
    is_outside = true;
    ck_assert_int_eq(status, STATUS_OK);
    self->is_patched[slot] = false;
}

proto_status_t
driver_try_launch(driver_t *self, const driver_extend_t *extends, uint32_t extend_count,
                  const uint32_t *decodes, uint32_t decode_count)
{
    uint32_t slots[DRIVER_SLOTS_MAX];
    uint32_t begins[DRIVER_SLOTS_MAX];
    uint32_t lengths[DRIVER_SLOTS_MAX];
    uint8_t samples[DRIVER_SLOTS_MAX];
    int32_t next_ids[DRIVER_SLOTS_MAX];
    static int32_t tokens[DRIVER_TOKENS_MAX * 4];
    static driver_patches_t patches;
    patches.count = 0;
    patches.block_count = 0;
    uint32_t token_count = 0;
    for (uint32_t i = 0; i < extend_count; i++) {
        const driver_extend_t *extend = &extends[i];
        slots[i] = extend->slot;
        begins[i] = extend->begin;
        lengths[i] = extend->length;
        samples[i] = extend->sample;
        next_ids[i] = extend->next == NULL ? -1 : *extend->next;
        memcpy(tokens + token_count, extend->tokens, extend->length * sizeof *tokens);
        token_count += extend->length;
        if (!self->is_patched[extend->slot]) {
            self->is_patched[extend->slot] = true;
            driver_patch_slot(self, extend->slot, &patches);
        }
        if (self->drop_expired) {
            patch_expired(self, extend->slot, extend->begin, &patches);
        }
    }
    proto_step_launch_t launch = {
        .step = self->step + 1,
        .width = self->width,
        .extend_slots = {slots, extend_count},
        .extend_begins = {begins, extend_count},
        .extend_lengths = {lengths, extend_count},
        .extend_samples = {samples, extend_count},
        .extend_tokens = {tokens, token_count},
        .decode_slots = {decodes, decode_count},
        .extend_next_ids = {next_ids, extend_count},
        .draft_slot = self->draft_slot,
    };
    driver_patch_launch(&patches, &launch);
    is_outside = false;
    proto_status_t status = run_executor_launch(self->executor, &launch);
    is_outside = true;
    if (status == STATUS_OK) {
        self->step++;
    }
    return status;
}

void
driver_launch(driver_t *self, const driver_extend_t *extends, uint32_t extend_count,
              const uint32_t *decodes, uint32_t decode_count)
{
    proto_status_t status = driver_try_launch(self, extends, extend_count, decodes, decode_count);
    ck_assert_msg(status == STATUS_OK, "launch: %s %s", proto_status_name(status),
                  run_executor_fault(self->executor));
}

static double
now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void
driver_collect(driver_t *self, driver_result_t *out)
{
    proto_step_done_t done;
    double deadline = now_s() + 60.0;
    is_outside = false;
    proto_status_t status;
    while ((status = run_executor_collect(self->executor, &done)) == STATUS_AGAIN &&
           now_s() < deadline) {
        (void)sched_yield();
    }
    is_outside = true;
    ck_assert_msg(status != STATUS_AGAIN, "a step did not end within 60 s");
    ck_assert_msg(status == STATUS_OK, "collect: %s %s", proto_status_name(status),
                  run_executor_fault(self->executor));
    out->step = done.step;
    out->mode = (proto_step_mode_t)done.mode;
    out->row_count = done.token_counts.count;
    out->draft_ignored = done.draft_ignored;
    uint32_t at = 0;
    uint32_t entry = 0;
    for (uint32_t row = 0; row < out->row_count; row++) {
        out->counts[row] = done.token_counts.data[row];
        out->flags[row] = done.row_flags.data[row];
        out->drafted[row] = done.drafted.count > 0 ? done.drafted.data[row] : 0;
        out->hits[row] = done.draft_hits.count > 0 ? done.draft_hits.data[row] : 0;
        out->tokens[row] = out->counts[row] > 0 ? done.tokens.data[at] : -1;
        ck_assert_uint_le(out->counts[row], self->info.decode_width);
        for (uint32_t i = 0; i < out->counts[row]; i++) {
            out->windows[row][i] = done.tokens.data[at++];
        }
        uint8_t width = done.logprob_widths.data[row];
        uint32_t entries = (uint32_t)width * out->counts[row];
        out->logprob_widths[row] = width;
        ck_assert_uint_le(entry + entries, DRIVER_LOGPROBS_MAX);
        memcpy(out->logprob_ids + entry, done.logprob_ids.data + entry, entries * sizeof(int32_t));
        memcpy(out->logprob_values + entry, done.logprob_values.data + entry,
               entries * sizeof(float));
        entry += entries;
    }
    ck_assert_uint_eq(at, done.tokens.count);
    ck_assert_uint_eq(entry, done.logprob_ids.count);
}

void
driver_step(driver_t *self, const driver_extend_t *extends, uint32_t extend_count,
            const uint32_t *decodes, uint32_t decode_count, driver_result_t *out)
{
    driver_launch(self, extends, extend_count, decodes, decode_count);
    driver_collect(self, out);
}

int32_t
driver_prefill(driver_t *self, uint32_t slot, const int32_t *tokens, uint32_t count, uint32_t chunk)
{
    driver_result_t result = {0};
    for (uint32_t at = 0; at < count; at += chunk) {
        uint32_t length = count - at < chunk ? count - at : chunk;
        driver_extend_t extend = {.slot = slot,
                                  .begin = at,
                                  .length = length,
                                  .sample = at + length == count,
                                  .tokens = tokens + at,
                                  .next = at + length == count ? NULL : tokens + at + length};
        driver_step(self, &extend, 1, NULL, 0, &result);
        ck_assert_uint_eq(result.counts[0], extend.sample);
    }
    return result.tokens[0];
}

int32_t
driver_decode_one(driver_t *self, uint32_t slot)
{
    driver_result_t result;
    driver_step(self, NULL, 0, &slot, 1, &result);
    return result.tokens[0];
}

void
driver_logits(driver_t *self, float *out, size_t count, uint32_t rows_expected)
{
    uint32_t rows = 0;
    ck_assert_int_eq(run_inspect_logits(self->executor, out, count, &rows), STATUS_OK);
    ck_assert_uint_eq(rows, rows_expected);
}

void
driver_random_tokens(uint32_t seed, uint32_t vocabulary, int32_t *out, uint32_t count)
{
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (uint32_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        out[i] = (int32_t)((state >> 33) % vocabulary);
    }
}

const char *
driver_fixture(const char *name)
{
    static char path[512];
    const char *source = getenv("ONEPATH_SOURCE");
    (void)snprintf(path, sizeof path, "%s/tests/models/fixtures/%s", source == NULL ? "." : source,
                   name);
    return path;
}
