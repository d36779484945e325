#include "log_diff.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log_diff_side.h"
#include "log_print.h"
#include "proto_require.h"

/* Fields that differ between two runs of the same thing. */
static const char *const default_ignored[] = {
    "duration_ns", "queue_ns", "deadline_ns",    "step_age_ns", "cpu_ns",
    "busy_ns",     "epoch",    "resident_bytes", "progress",
};
/* What depends on who else was there. */
static const char *const aligned_ignored[] = {"cause",    "slot",    "step",
                                              "exchange", "request", "requests"};

typedef struct {
    const log_diff_options_t *options;
    log_field_options_t fields;
    const char *ignored[LOG_DIFF_IGNORED_MAX];
    FILE *out;
    log_diff_result_t *result;
    const char *actor; /* that is compared */
} diff_t;

static void
add_ignored(diff_t *self, const char *const *names, uint32_t count)
{
    for (uint32_t i = 0; i < count && self->fields.ignored_count < LOG_DIFF_IGNORED_MAX; i++) {
        self->ignored[self->fields.ignored_count++] = names[i];
    }
}

static void
choose_fields(diff_t *self)
{
    const log_diff_options_t *options = self->options;
    self->fields = (log_field_options_t){.ignore_private = options->ignore_private,
                                         .hide_private = !options->show_private,
                                         .ignored = self->ignored,
                                         .tolerance = options->tolerance};
    add_ignored(self, options->ignored, options->ignored_count);
    if (!options->no_defaults) {
        add_ignored(self, default_ignored, sizeof default_ignored / sizeof default_ignored[0]);
    }
    if (options->align_requests) {
        add_ignored(self, aligned_ignored, sizeof aligned_ignored / sizeof aligned_ignored[0]);
    }
}

/* ---- comparing two messages ------------------------------------------------------------------ */

static bool
bytes_are_same(const proto_bytes_t *a, const proto_bytes_t *b)
{
    return a->size_bytes == b->size_bytes &&
           (a->size_bytes == 0 || memcmp(a->data, b->data, a->size_bytes) == 0);
}

/* True if they differ; *out says where. */
static bool
messages_differ(const diff_t *self, const log_diff_cursor_t *a, const log_diff_cursor_t *b,
                log_field_diff_t *out)
{
    const log_message_t *left = &a->message, *right = &b->message;
    memset(out, 0, sizeof *out);
    bool out_a = a->item.record.kind == PROTO_LOG_OUT, out_b = b->item.record.kind == PROTO_LOG_OUT;
    if (out_a != out_b || left->header.kind != right->header.kind) {
        (void)snprintf(out->path, sizeof out->path, "message");
        (void)snprintf(out->left, sizeof out->left, "%s%s", out_a ? "send " : "",
                       proto_kind_name(left->header.kind));
        (void)snprintf(out->right, sizeof out->right, "%s%s", out_b ? "send " : "",
                       proto_kind_name(right->header.kind));
        return true;
    }
    if (log_field_diff_header(&left->header, &right->header, &self->fields, out)) {
        return true;
    }
    /* Most messages are the same to the byte; TOKENS carries requests that were renamed. */
    if (left->header.kind != PROTO_KIND_TOKENS && left->has_body == right->has_body &&
        bytes_are_same(&left->body_bytes, &right->body_bytes) &&
        bytes_are_same(&left->blob_bytes, &right->blob_bytes)) {
        return false;
    }
    if (left->has_body && right->has_body) {
        return log_field_diff(left->header.kind, &left->body, &right->body, &self->fields, out);
    }
    /* What does not decode is compared as bytes. */
    bool is_same =
        left->has_body == right->has_body &&
        left->body_bytes.size_bytes == right->body_bytes.size_bytes &&
        (left->body_bytes.size_bytes == 0 ||
         memcmp(left->body_bytes.data, right->body_bytes.data, left->body_bytes.size_bytes) == 0);
    if (!is_same) {
        (void)snprintf(out->path, sizeof out->path, "body");
        (void)snprintf(out->left, sizeof out->left, "%s, %zu bytes",
                       left->has_body ? "decodes" : "undecodable", left->body_bytes.size_bytes);
        (void)snprintf(out->right, sizeof out->right, "%s, %zu bytes",
                       right->has_body ? "decodes" : "undecodable", right->body_bytes.size_bytes);
    }
    return !is_same;
}

/* ---- reporting ------------------------------------------------------------------------------- */

static void
print_at(const diff_t *self, const char *mark, const log_diff_place_t *place)
{
    log_print_options_t options = {.form = LOG_PRINT_TEXT,
                                   .show_private = self->options->show_private};
    log_printer_t *printer = NULL;
    log_decoder_t decoder = {0};
    log_set_item_t item;
    proto_log_reader_t *reader = NULL;
    if (log_printer_new(&options, &printer) != STATUS_OK) {
        return;
    }
    if (log_diff_place_read(place, &reader, &item) == STATUS_OK) {
        log_message_t message;
        bool has_message = log_decoder_decode(&decoder, &item.record, &message) == STATUS_OK;
        fprintf(self->out, "%s ", mark);
        log_printer_print(printer, self->out, &item, has_message ? &message : NULL);
    }
    proto_log_reader_close(&reader);
    log_decoder_fini(&decoder);
    log_printer_destroy(&printer);
}

static void
print_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            fputc('\\', out);
        }
        fputc((unsigned char)*at < 0x20 ? '.' : *at, out);
    }
    fputc('"', out);
}

static void
report_json(const diff_t *self, uint64_t number, const log_diff_cursor_t *a,
            const log_diff_cursor_t *b, const log_field_diff_t *field)
{
    fprintf(self->out, "{\"actor\":\"%s\",\"message\":%" PRIu64, self->actor, number);
    if (a->has_message) {
        fprintf(self->out, ",\"a_seq\":%" PRIu64, a->item.record.sequence);
    }
    if (b->has_message) {
        fprintf(self->out, ",\"b_seq\":%" PRIu64, b->item.record.sequence);
    }
    fputs(",\"path\":", self->out);
    print_quoted(self->out, field->path);
    fputs(",\"a\":", self->out);
    print_quoted(self->out, field->left);
    fputs(",\"b\":", self->out);
    print_quoted(self->out, field->right);
    fprintf(self->out, ",\"more\":%u}\n", (unsigned)field->more_count);
}

static void
report(const diff_t *self, uint64_t number, const log_diff_cursor_t *a, const log_diff_cursor_t *b,
       const log_field_diff_t *field)
{
    self->result->differences++;
    if (self->options->json) {
        report_json(self, number, a, b, field);
        return;
    }
    fprintf(self->out, "%s: message %" PRIu64 " differs: %s is %s in A, %s in B", self->actor,
            number, field->path, field->left, field->right);
    if (field->more_count > 0) {
        fprintf(self->out, " (and %u more fields)", (unsigned)field->more_count);
    }
    fputc('\n', self->out);
    uint32_t context = self->options->context != 0 ? self->options->context : 3;
    for (uint32_t back = context < LOG_DIFF_CONTEXT_MAX ? context : LOG_DIFF_CONTEXT_MAX; back > 0;
         back--) {
        const log_diff_place_t *place = log_diff_cursor_recent(a, back);
        if (place != NULL) {
            print_at(self, " ", place);
        }
    }
    if (a->has_message) {
        print_at(self, "A", &a->place);
    } else {
        fprintf(self->out, "A (ends)\n");
    }
    if (b->has_message) {
        print_at(self, "B", &b->place);
    } else {
        fprintf(self->out, "B (ends)\n");
    }
}

/* ---- one pair of incarnations ---------------------------------------------------------------- */

/* In order; LOG_TABLE_NONE = every message, else those of one request of each side. */
static proto_status_t
compare_in_order(diff_t *self, log_diff_cursor_t *a, log_diff_cursor_t *b, int32_t in_a,
                 int32_t in_b)
{
    for (uint64_t number = 1;; number++) {
        proto_status_t status = log_diff_cursor_next(a, in_a);
        if (status == STATUS_OK) {
            status = log_diff_cursor_next(b, in_b);
        }
        if (status != STATUS_OK) {
            return status;
        }
        if (!a->has_message && !b->has_message) {
            return STATUS_OK;
        }
        log_field_diff_t field = {.path = "message"};
        bool differ = true;
        if (a->has_message && b->has_message) {
            differ = messages_differ(self, a, b, &field);
        } else {
            (void)snprintf(field.left, sizeof field.left, "%s",
                           a->has_message ? proto_kind_name(a->message.header.kind) : "(ends)");
            (void)snprintf(field.right, sizeof field.right, "%s",
                           b->has_message ? proto_kind_name(b->message.header.kind) : "(ends)");
        }
        if (differ) {
            report(self, number, a, b, &field);
            return STATUS_OK;
        }
        self->result->compared++;
    }
}

/* A key for each request: of its prompt, and how many before it had the same one. */
static uint64_t *
prompt_keys(const log_diff_cursor_t *cursor)
{
    uint32_t count = cursor->requests.count;
    log_table_t prompts = {0};
    uint32_t *seen = calloc((size_t)count + 1, sizeof seen[0]);
    uint64_t *keys = malloc(((size_t)count + 1) * sizeof keys[0]);
    bool is_good = seen != NULL && keys != NULL;
    for (uint32_t i = 0; i < count && is_good; i++) {
        int32_t prompt = log_table_add(&prompts, cursor->sums[i].first);
        is_good = prompt != LOG_TABLE_NONE;
        if (is_good) {
            keys[i] = log_table_mix(cursor->sums[i].first + log_table_mix(++seen[prompt]));
        }
    }
    log_table_fini(&prompts);
    free(seen);
    if (!is_good) {
        free(keys);
        return NULL;
    }
    return keys;
}

/* partners[i] = the request of B that has the same key as request i of A; `count_b` = none. */
static bool
match_keys(const uint64_t *keys_a, uint32_t count_a, const uint64_t *keys_b, uint32_t count_b,
           uint32_t *partners)
{
    log_table_t table = {0};
    uint32_t *requests = malloc(((size_t)count_b + 1) * sizeof requests[0]);
    bool is_good = requests != NULL;
    for (uint32_t i = 0; i < count_b && is_good; i++) {
        uint32_t before = table.count;
        int32_t place = log_table_add(&table, keys_b[i]);
        is_good = place != LOG_TABLE_NONE;
        if (is_good && table.count > before) {
            requests[place] = i;
        }
    }
    for (uint32_t i = 0; i < count_a && is_good; i++) {
        int32_t place = log_table_find(&table, keys_a[i]);
        partners[i] = place != LOG_TABLE_NONE ? requests[place] : count_b;
    }
    log_table_fini(&table);
    free(requests);
    return is_good;
}

/* Same prompts find each other; what is left is paired in order.  The caller frees *out_p. */
static proto_status_t
find_partners(const log_diff_cursor_t *a, const log_diff_cursor_t *b, uint32_t **out_p)
{
    uint32_t count_a = a->requests.count, count_b = b->requests.count;
    uint64_t *keys_a = prompt_keys(a), *keys_b = prompt_keys(b);
    uint32_t *partners = malloc(((size_t)count_a + 1) * sizeof partners[0]);
    uint8_t *taken = calloc((size_t)count_b + 1, 1);
    bool is_good = keys_a != NULL && keys_b != NULL && partners != NULL && taken != NULL &&
                   match_keys(keys_a, count_a, keys_b, count_b, partners);
    for (uint32_t i = 0; i < count_a && is_good; i++) {
        taken[partners[i]] = 1;
    }
    uint32_t next = 0;
    for (uint32_t i = 0; i < count_a && is_good; i++) {
        while (next < count_b && taken[next] != 0) {
            next++;
        }
        if (partners[i] == count_b && next < count_b) {
            partners[i] = next++;
        }
    }
    free(keys_a);
    free(keys_b);
    free(taken);
    if (!is_good) {
        free(partners);
        return STATUS_ERR_NO_MEMORY;
    }
    *out_p = partners;
    return STATUS_OK;
}

/* Reads both sides again, for the messages of one request. */
static proto_status_t
compare_request(diff_t *self, log_diff_cursor_t *a, log_diff_cursor_t *b, uint32_t in_a,
                uint32_t in_b)
{
    proto_status_t status = log_diff_cursor_rewind(a);
    if (status == STATUS_OK) {
        status = log_diff_cursor_rewind(b);
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (!self->options->json) {
        fprintf(self->out, "request %u of %s in A, %u in B:\n", (unsigned)in_a + 1, self->actor,
                (unsigned)in_b + 1);
    }
    return compare_in_order(self, a, b, (int32_t)in_a, (int32_t)in_b);
}

/* Aligned: sums of each request's messages tell which request differs, a second reading where. */
static proto_status_t
compare_aligned(diff_t *self, log_diff_cursor_t *a, log_diff_cursor_t *b)
{
    proto_status_t status = log_diff_cursor_sum(a, &self->fields);
    if (status == STATUS_OK) {
        status = log_diff_cursor_sum(b, &self->fields);
    }
    uint32_t *partners = NULL;
    if (status == STATUS_OK) {
        status = find_partners(a, b, &partners);
    }
    if (status != STATUS_OK) {
        return status;
    }
    bool found = false;
    for (uint32_t i = 0; i < a->requests.count && !found; i++) {
        static const log_diff_sum_t nothing;
        const log_diff_sum_t *left = &a->sums[i];
        const log_diff_sum_t *right =
            partners[i] < b->requests.count ? &b->sums[partners[i]] : &nothing;
        found = left->sum != right->sum || left->count != right->count;
        if (found) {
            status = compare_request(self, a, b, i, partners[i]);
        } else {
            self->result->compared += left->count;
        }
    }
    free(partners);
    if (!found && b->requests.count > a->requests.count) {
        self->result->differences++;
        fprintf(self->out,
                self->options->json ? "{\"actor\":\"%s\",\"requests_more_in_b\":%u}\n"
                                    : "%s: B has %u more requests\n",
                self->actor, (unsigned)(b->requests.count - a->requests.count));
    }
    return status;
}

static proto_status_t
compare_pair(diff_t *self, const log_diff_side_t *a, const log_diff_side_t *b,
             const log_diff_stream_t *left, const log_diff_stream_t *right, proto_error_t *error)
{
    log_diff_cursor_t cursors[2];
    memset(cursors, 0, sizeof cursors);
    self->actor = left->name;
    proto_status_t status = log_diff_cursor_open(&cursors[0], a, left, error);
    if (status == STATUS_OK) {
        status = log_diff_cursor_open(&cursors[1], b, right, error);
    }
    cursors[0].by_row = cursors[1].by_row = self->options->align_requests;
    if (status == STATUS_OK) {
        status = self->options->align_requests ? compare_aligned(self, &cursors[0], &cursors[1])
                                               : compare_in_order(self, &cursors[0], &cursors[1],
                                                                  LOG_TABLE_NONE, LOG_TABLE_NONE);
    }
    for (int i = 0; i < 2; i++) {
        self->result->damages += cursors[i].set != NULL ? log_set_damage_count(cursors[i].set) : 0;
        log_diff_cursor_fini(&cursors[i]);
    }
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void
report_alone(diff_t *self, const log_diff_stream_t *stream, const char *side)
{
    self->result->differences++;
    if (self->options->json) {
        fprintf(self->out, "{\"actor\":\"%s\",\"only_in\":\"%s\"}\n", stream->name, side);
    } else {
        fprintf(self->out, "%s: this incarnation is only in %s\n", stream->name, side);
    }
}

proto_status_t
log_diff(const log_diff_side_t *a, const log_diff_side_t *b, const log_diff_options_t *options,
         FILE *out, log_diff_result_t *result, proto_error_t *error)
{
    require(options->tolerance <= 0 || !options->align_requests);
    diff_t self = {.options = options, .out = out, .result = result};
    memset(result, 0, sizeof *result);
    choose_fields(&self);
    log_diff_stream_t *streams[2] = {NULL, NULL};
    uint32_t counts[2] = {0, 0};
    proto_status_t status = log_diff_streams(a, options->actor, &streams[0], &counts[0], error);
    if (status == STATUS_OK) {
        status = log_diff_streams(b, options->actor, &streams[1], &counts[1], error);
    }
    uint32_t left = 0, right = 0;
    while (status == STATUS_OK && (left < counts[0] || right < counts[1])) {
        int order = left == counts[0] ? 1
                    : right == counts[1]
                        ? -1
                        : log_diff_stream_order(&streams[0][left], &streams[1][right]);
        if (order < 0) {
            report_alone(&self, &streams[0][left++], "A");
        } else if (order > 0) {
            report_alone(&self, &streams[1][right++], "B");
        } else {
            status = compare_pair(&self, a, b, &streams[0][left++], &streams[1][right++], error);
        }
    }
    free(streams[0]);
    free(streams[1]);
    return status;
}
