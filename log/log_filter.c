#include "log_filter.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define SECOND_NS UINT64_C(1000000000)

/* "12.5" as nanoseconds, without the rounding of a double; *end is what follows. */
static bool
parse_seconds(const char *text, const char **end, uint64_t *out)
{
    uint64_t whole = 0, part = 0, unit = SECOND_NS;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (whole > UINT64_MAX / SECOND_NS / 20) {
            return false;
        }
        whole = whole * 10 + (uint64_t)(*at - '0');
    }
    if (at == text) {
        return false;
    }
    if (*at == '.') {
        for (at++; *at >= '0' && *at <= '9'; at++) {
            unit /= 10;
            part += unit * (uint64_t)(*at - '0');
        }
    }
    *out = whole * SECOND_NS + part;
    *end = at;
    return true;
}

static proto_status_t
parse_date(const char *text, log_bound_t *out)
{
    struct tm parts;
    memset(&parts, 0, sizeof parts);
    uint64_t seconds_ns = 0;
    const char *at = strptime(text, "%Y-%m-%dT%H:%M:", &parts);
    if (at == NULL || !parse_seconds(at, &at, &seconds_ns) || seconds_ns > 61 * SECOND_NS ||
        (*at != '\0' && strcmp(at, "Z") != 0)) {
        return STATUS_ERR_INVALID;
    }
    time_t minutes = timegm(&parts);
    if (minutes < 0) {
        return STATUS_ERR_INVALID;
    }
    *out = (log_bound_t){LOG_BOUND_REALTIME, (uint64_t)minutes * SECOND_NS + seconds_ns};
    return STATUS_OK;
}

proto_status_t
log_bound_parse(const char *text, log_bound_t *out)
{
    if (strchr(text, 'T') != NULL) {
        return parse_date(text, out);
    }
    const char *end = NULL;
    uint64_t time_ns = 0;
    if (text[0] == '\0' || strspn(text, "0123456789.s") != strlen(text)) {
        return STATUS_ERR_INVALID;
    }
    if (strpbrk(text, ".s") == NULL) {
        if (strlen(text) > 19) {
            return STATUS_ERR_INVALID;
        }
        *out = (log_bound_t){LOG_BOUND_SEQUENCE, strtoull(text, NULL, 10)};
        return STATUS_OK;
    }
    if (!parse_seconds(text, &end, &time_ns) || (*end != '\0' && strcmp(end, "s") != 0)) {
        return STATUS_ERR_INVALID;
    }
    *out = (log_bound_t){LOG_BOUND_MONOTONIC, time_ns};
    return STATUS_OK;
}

proto_status_t
log_filter_set_type(log_filter_t *self, const char *name)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t i = 0; i < count; i++) {
        if (strcasecmp(messages[i].name, name) == 0) {
            self->kind = messages[i].kind;
            return STATUS_OK;
        }
    }
    for (uint32_t kind = 1; kind < PROTO_LOG_KIND_COUNT; kind++) {
        if (strcasecmp(proto_log_kind_name((proto_log_kind_t)kind), name) == 0) {
            self->record_kind = (proto_log_kind_t)kind;
            return STATUS_OK;
        }
    }
    return STATUS_ERR_NOT_FOUND;
}

static uint64_t
value_of(log_bound_form_t form, const log_set_item_t *item)
{
    switch (form) {
    case LOG_BOUND_SEQUENCE:
        return item->record.sequence;
    case LOG_BOUND_MONOTONIC:
        return item->record.time_ns;
    case LOG_BOUND_REALTIME:
        return item->realtime_ns;
    case LOG_BOUND_NONE:
        break;
    }
    return 0;
}

bool
log_filter_is_behind(const log_filter_t *self, const log_set_item_t *item)
{
    return self->to.form != LOG_BOUND_NONE && value_of(self->to.form, item) > self->to.value;
}

bool
log_message_names(const log_message_t *message, uint64_t request)
{
    if (message->header.request == request) {
        return true;
    }
    if (message->has_body && message->header.kind == PROTO_KIND_TOKENS) {
        const proto_column_u64_t *requests = &message->body.tokens.requests;
        for (uint32_t i = 0; i < requests->count; i++) {
            if (requests->data[i] == request) {
                return true;
            }
        }
    }
    return false;
}

bool
log_filter_match(const log_filter_t *self, const log_set_item_t *item, const log_message_t *message)
{
    if (self->from.form != LOG_BOUND_NONE && value_of(self->from.form, item) < self->from.value) {
        return false;
    }
    if (log_filter_is_behind(self, item) ||
        (self->record_kind != 0 && item->record.kind != self->record_kind)) {
        return false;
    }
    if (self->kind != PROTO_KIND_NONE && (message == NULL || message->header.kind != self->kind)) {
        return false;
    }
    return self->request == 0 || (message != NULL && log_message_names(message, self->request));
}
