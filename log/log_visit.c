#include "log_visit.h"

#include <string.h>

proto_status_t
log_set_visit(log_set_t *set, log_visit_fn *visit, void *context)
{
    log_decoder_t decoder = {0};
    proto_status_t status;
    for (;;) {
        log_set_item_t item;
        log_message_t message;
        status = log_set_next(set, &item);
        if (status != STATUS_OK) {
            break;
        }
        proto_status_t decoded = log_decoder_decode(&decoder, &item.record, &message);
        if (decoded == STATUS_ERR_NO_MEMORY) {
            status = decoded;
            break;
        }
        status = visit(context, &item, decoded == STATUS_OK ? &message : NULL);
        if (status != STATUS_OK) {
            break;
        }
    }
    log_decoder_fini(&decoder);
    return status == STATUS_END ? STATUS_OK : status;
}

void
log_inputs_pass(log_inputs_t *self, const proto_log_record_t *record)
{
    if (record->sequence == 1) {
        self->is_known = true;
    }
    if (record->kind == PROTO_LOG_IN || record->kind == PROTO_LOG_TIMER) {
        self->count++;
    } else if (record->kind == PROTO_LOG_SNAPSHOT && record->part_count > 0 &&
               record->parts[0].size_bytes >= PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES) {
        memcpy(&self->count, record->parts[0].data + 16, sizeof self->count);
        self->is_known = true;
    } else if (record->kind == PROTO_LOG_DROP) {
        self->is_known = false; /* nobody knows how many of the missing ones were inputs */
    }
}
