#include "log_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

void
log_decoder_fini(log_decoder_t *self)
{
    free(self->blob);
    memset(self, 0, sizeof *self);
}

/* The blob, copied where it does not lie as the decoder needs it. */
static proto_status_t
align_blob(log_decoder_t *self, proto_bytes_t *blob)
{
    if (blob->size_bytes == 0 || proto_blob_is_aligned(*blob)) {
        return STATUS_OK;
    }
    if (blob->size_bytes > self->blob_capacity_bytes) {
        free(self->blob);
        self->blob_capacity_bytes = 0;
        size_t rounded =
            (blob->size_bytes + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN * PROTO_COLUMN_ALIGN;
        self->blob = aligned_alloc(PROTO_COLUMN_ALIGN, rounded);
        if (self->blob == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->blob_capacity_bytes = rounded;
    }
    memcpy(self->blob, blob->data, blob->size_bytes);
    blob->data = self->blob;
    return STATUS_OK;
}

static proto_bytes_t
part(const proto_log_record_t *record, uint32_t index)
{
    return index < record->part_count ? record->parts[index] : (proto_bytes_t){NULL, 0};
}

proto_status_t
log_decoder_decode(log_decoder_t *self, const proto_log_record_t *record, log_message_t *out)
{
    require(out != NULL);
    out->has_body = false;
    out->blob_read = NULL;
    out->error.detail[0] = '\0';
    if (record->kind == PROTO_LOG_TIMER) {
        out->header = (proto_header_t){.version = PROTO_SCHEMA_VERSION, .kind = PROTO_KIND_TIMER};
        out->body_bytes = part(record, 0);
        out->blob_bytes = (proto_bytes_t){NULL, 0};
    } else if (record->kind == PROTO_LOG_IN || record->kind == PROTO_LOG_OUT) {
        proto_status_t status = proto_header_decode(part(record, 0), &out->header);
        if (status != STATUS_OK) {
            return status;
        }
        out->body_bytes = part(record, 1);
        out->blob_bytes = part(record, 2);
    } else {
        return STATUS_ERR_NOT_FOUND;
    }
    out->table = proto_message_find(out->header.kind);
    if (out->table == NULL) {
        (void)snprintf(out->error.detail, sizeof out->error.detail,
                       "message number %u is not known to this build", (unsigned)out->header.kind);
        return STATUS_OK;
    }
    proto_bytes_t blob = out->blob_bytes;
    if (align_blob(self, &blob) != STATUS_OK) {
        return STATUS_ERR_NO_MEMORY;
    }
    out->blob_read = blob.data;
    out->has_body = proto_body_decode(out->header.kind, out->body_bytes, blob, &out->body,
                                      &out->error) == STATUS_OK;
    return STATUS_OK;
}
