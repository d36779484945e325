/* A snapshot's state part of any content, for the scheduler's and the executor's core.  The first
 * byte says whose, the next two how many zeros the secret part has.  What is taken must hold every
 * invariant and pack to the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "actor_executor_core.h"
#include "actor_scheduler_core.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);
const char *__asan_default_options(void);

/* A large shape is an answer (no memory), not a finding. */
const char *
__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=32";
}

static void
examine(const actor_core_ops_t *ops, const void *core, proto_bytes_t state)
{
    ops->check(core);
    volatile uint64_t sink = ops->deadline_ns(core) ^ ops->digest(core);
    (void)sink;
    proto_stats_t stats = {0};
    ops->stats(core, &stats);
    proto_heartbeat_t heartbeat = {0};
    ops->progress(core, UINT64_MAX, &heartbeat);
    (void)ops->idle(core);
    uint8_t *again = malloc(state.size_bytes + 1);
    if (again == NULL) {
        abort();
    }
    proto_pack_t out = {.out = again, .capacity_bytes = state.size_bytes};
    proto_pack_t secret = {0};
    ops->save(core, &out, &secret);
    if (out.size_bytes != state.size_bytes || memcmp(again, state.data, state.size_bytes) != 0) {
        abort();
    }
    free(again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static const uint8_t zeros[UINT16_MAX + 1];
    if (size_bytes < 3) {
        return 0;
    }
    proto_bytes_t secret = {zeros, data[1] | (size_t)data[2] << 8};
    proto_bytes_t state = {data + 3, size_bytes - 3};
    proto_error_t error = {""};
    proto_status_t status;
    if (data[0] % 2 == 0) {
        actor_scheduler_core_t *core = NULL;
        status = actor_scheduler_core_restore(state, secret, &core, &error);
        if (status == STATUS_OK) {
            examine(actor_scheduler_core_ops(core), core, state);
        }
        actor_scheduler_core_destroy(&core);
    } else {
        actor_executor_core_t *core = NULL;
        status = actor_executor_core_restore(state, secret, &core, &error);
        if (status == STATUS_OK) {
            examine(actor_executor_core_ops(core), core, state);
        }
        actor_executor_core_destroy(&core);
    }
    if (status != STATUS_OK && error.detail[0] == '\0') {
        abort();
    }
    return 0;
}
