#include "log_cut.h"

#include <string.h>

#include "log_redact.h"
#include "log_visit.h"

typedef struct {
    const log_cut_options_t *options;
    log_redactor_t redactor;
    log_out_t *out;
    log_cut_counts_t *counts;
} cut_t;

bool
log_cut_is_frame(const proto_log_record_t *record)
{
    return record->kind == PROTO_LOG_CHANNEL_DEF || record->kind == PROTO_LOG_ENV ||
           record->kind == PROTO_LOG_CLOCK;
}

static proto_status_t
visit(void *context, const log_set_item_t *item, const log_message_t *message)
{
    cut_t *self = context;
    self->counts->read++;
    bool is_wanted = !item->record.is_made &&
                     (self->options->filter == NULL || log_cut_is_frame(&item->record) ||
                      log_filter_match(self->options->filter, item, message));
    if (!is_wanted) {
        return STATUS_OK;
    }
    proto_log_record_t record = item->record;
    if (self->options->redact) {
        proto_status_t status = log_redactor_redact(&self->redactor, &item->record, &record);
        if (status != STATUS_OK) {
            return status;
        }
        self->counts->redacted += (record.flags & PROTO_LOG_FLAG_REDACTED) != 0 ? 1U : 0U;
    }
    self->counts->kept++;
    return log_out_append(self->out, item->header, &record);
}

proto_status_t
log_cut(log_set_t *set, const log_cut_options_t *options, log_out_t *out, log_cut_counts_t *counts)
{
    cut_t self = {.options = options, .out = out, .counts = counts};
    memset(counts, 0, sizeof *counts);
    proto_status_t status = log_set_visit(set, visit, &self);
    log_redactor_fini(&self.redactor);
    return status;
}
