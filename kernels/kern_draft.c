#include "kern_draft.h"

void
kern_draft_commit_host(const void *args, kern_share_t *share)
{
    const kern_draft_commit_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        const int32_t *from = a->candidates + b * a->stride;
        int32_t *to = a->future_inputs + (size_t)a->write_slots[b] * a->width + 1;
        uint32_t kept = 0;
        while (kept < a->count && kept + 1 < a->width && from[kept] >= 0 &&
               (uint32_t)from[kept] < a->vocabulary) {
            to[kept] = from[kept];
            kept++;
        }
        if (kept < a->count && kept + 1 < a->width && from[kept] != -1 && a->dropped != NULL) {
            *a->dropped += 1;
        }
        for (; kept + 1 < a->width; kept++) {
            to[kept] = -1;
        }
    }
}
