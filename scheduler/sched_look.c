/* The open requests one after the other, for people. */
#include "sched_internal.h"

static uint32_t
block_count(const sched_core_t *self, uint32_t slot)
{
    uint32_t count = 0;
    for (uint32_t g = 0; slot != 0 && g < self->group_count; g++) {
        const sched_extent_t *extent = sched_extent(self, slot, g);
        count += extent->column_count - extent->expired_count;
    }
    return count;
}

bool
sched_core_look(const sched_core_t *self, uint64_t now_ns, uint64_t *at, sched_seen_t *out)
{
    while (*at < self->entry_count) {
        const sched_entry_t *entry = &self->entries[(*at)++];
        if (!entry->in_use || entry->state == SCHED_STATE_FINISHED) {
            continue;
        }
        *out = (sched_seen_t){
            .request = entry->request,
            .owner = entry->owner,
            .priority = entry->priority,
            .prompt_length = entry->prompt_length,
            .generation_max = entry->generation_max,
            .generated_count = entry->emitted,
            .slot = entry->slot,
            .block_count = block_count(self, entry->slot),
        };
        if (entry->slot != 0) {
            out->computed_count = self->slots[entry->slot].computed;
            out->generated_count += self->slots[entry->slot].generated;
        }
        proto_status_t status =
            sched_core_why(self, now_ns, entry->owner, entry->request, &out->why);
        require(status == STATUS_OK);
        return true;
    }
    return false;
}
