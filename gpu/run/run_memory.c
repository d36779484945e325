/* The cache's share of the memory. */
#include "run_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_messages.h"
#include "proto_require.h"

enum {
    SHARE_PERCENT = 50, /* of what is left after the fixed part: other processes live here too */
};

static const uint64_t available_guess = UINT64_C(4) << 30;

static uint64_t
read_number(const char *path, const char *key)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    char line[256];
    uint64_t value = 0;
    size_t key_len = strlen(key);
    while (value == 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, key_len) == 0) {
            value = strtoull(line + key_len, NULL, 10); /* 0 for "max" */
        }
    }
    (void)fclose(file);
    return value;
}

uint64_t
run_memory_available_bytes(void)
{
    uint64_t available = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    if (available == 0) {
        available = available_guess;
    }
    /* A container's own limit, where there is one. */
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "");
    if (limit > used && limit - used < available) {
        available = limit - used;
    }
    return available;
}

uint64_t
run_memory_total_bytes(void)
{
    uint64_t total = read_number("/proc/meminfo", "MemTotal:") * 1024;
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    if (limit > 0 && (limit < total || total == 0)) {
        total = limit;
    }
    return total > 0 ? total : UINT64_MAX;
}

/* Parents for every slot at full length, with room for the steps that run ahead. */
static uint64_t
parents_wanted(const cache_plan_t *plan, const run_memory_request_t *request)
{
    uint64_t parents = 0;
    for (uint32_t g = 0; g < cache_plan_group_count(plan); g++) {
        const cache_group_t *group = cache_plan_group(plan, g);
        uint64_t tokens = (uint64_t)request->model_len_max + 2 * request->width;
        uint64_t kept = (uint64_t)group->window + request->step_tokens_max + group->granularity;
        if (group->kind == CACHE_KIND_SLIDING && kept < tokens) {
            tokens = kept;
        }
        if (group->kind == CACHE_KIND_STATE) {
            /* What is read, what is written, what the step ahead writes; and a checkpoint at the
             * end of each chunk of a prompt. */
            uint64_t kept_columns = 3 + tokens / request->step_tokens_max;
            uint64_t kept_tokens = kept_columns * group->granularity;
            tokens = kept_tokens < tokens ? kept_tokens : tokens;
        }
        uint64_t columns = (tokens + group->granularity - 1) / group->granularity;
        uint64_t blocks = columns * request->slot_count;
        parents += (blocks + group->packing - 1) / group->packing;
    }
    return parents;
}

proto_status_t
run_memory_solve(const cache_plan_t *plan, const run_memory_request_t *request,
                 run_memory_answer_t *out)
{
    require(request->slot_count > 0);
    uint64_t parent_bytes = cache_plan_parent_bytes(plan);
    uint64_t budget = request->cache_size_bytes;
    if (budget == 0) {
        uint64_t left = request->available_bytes > request->fixed_bytes
                            ? request->available_bytes - request->fixed_bytes
                            : 0;
        budget = left / 100 * SHARE_PERCENT;
    }
    uint64_t affordable = budget / parent_bytes;
    affordable = affordable > 0 ? affordable - 1 : 0; /* the null parent */
    uint64_t wanted = parents_wanted(plan, request);
    uint64_t count = request->cache_size_bytes == 0 && wanted < affordable ? wanted : affordable;
    uint32_t packing_max = 1;
    for (uint32_t g = 0; g < cache_plan_group_count(plan); g++) {
        uint32_t packing = cache_plan_group(plan, g)->packing;
        packing_max = packing > packing_max ? packing : packing_max;
    }
    uint64_t count_max = (PROTO_BLOCKS_MAX - 1) / packing_max;
    count = count > count_max ? count_max : count;
    if (count < cache_plan_group_count(plan)) {
        return STATUS_ERR_NO_MEMORY;
    }
    out->parent_count = (uint32_t)count;
    out->wanted_count = wanted > UINT32_MAX ? UINT32_MAX : (uint32_t)wanted;
    out->parent_bytes = parent_bytes;
    out->budget_bytes = budget;
    out->token_capacity = count * cache_plan_prefix_granularity(plan);
    if (cache_plan_group_count(plan) > 1) {
        /* Groups share parents: counted in requests of full length. */
        out->token_capacity = count * request->slot_count / (wanted > 0 ? wanted : 1);
        out->token_capacity *= request->model_len_max;
    }
    return STATUS_OK;
}

static double
mib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0);
}

void
run_memory_describe(const run_memory_request_t *request, const run_memory_answer_t *answer,
                    char *out, size_t out_size_bytes)
{
    uint64_t full = answer->token_capacity / request->model_len_max;
    (void)snprintf(out, out_size_bytes,
                   "cache: %.1f MiB = (%" PRIu32 " blocks + 1) x %.2f MiB, %" PRIu64
                   " tokens (%s: %.1f MiB of %.1f MiB available less %.1f MiB fixed; %" PRIu32
                   " slots of %" PRIu32 " tokens would need %.1f MiB); %" PRIu64
                   " requests of full length fit at once",
                   mib((uint64_t)(answer->parent_count + 1) * answer->parent_bytes),
                   answer->parent_count, mib(answer->parent_bytes), answer->token_capacity,
                   request->cache_size_bytes == 0 ? "chosen" : "as asked",
                   mib(answer->budget_bytes), mib(request->available_bytes),
                   mib(request->fixed_bytes), request->slot_count, request->model_len_max,
                   mib((uint64_t)answer->wanted_count * answer->parent_bytes), full);
}
