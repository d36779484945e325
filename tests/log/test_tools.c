/* What each tool says about a log whose every number is known. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log_cut.h"
#include "log_diff.h"
#include "log_export.h"
#include "log_maker.h"
#include "log_print.h"
#include "log_redact.h"
#include "log_slice.h"
#include "log_stats.h"
#include "log_survey.h"
#include "log_trace.h"
#include "log_visit.h"
#include "proto_log_recover.h"

enum { REQUESTS = 5 };

static char folder[512];
static char source[600];
static char target[600];
static maker_log_t options;

static void
set_up(void)
{
    maker_folder(folder, sizeof folder);
    (void)snprintf(source, sizeof source, "%s/a", folder);
    (void)snprintf(target, sizeof target, "%s/b", folder);
    log_out_t *out = NULL; /* makes the folder as a side effect of being opened */
    ck_assert_int_eq(log_out_open(source, &out, NULL), STATUS_OK);
    ck_assert_int_eq(log_out_commit(out), STATUS_OK);
    log_out_close(&out);
    options = (maker_log_t){.directory = source, .request_count = REQUESTS};
}

static void
tear_down(void)
{
    maker_remove(folder);
}

static log_set_t *
open_set(const char *path)
{
    log_set_t *set = NULL;
    ck_assert_int_eq(log_set_open(&path, 1, NULL, &set, NULL), STATUS_OK);
    return set;
}

/* What a tool printed. */
static char printed[1 << 20];

static FILE *
begin_print(void)
{
    memset(printed, 0, sizeof printed);
    FILE *out = fmemopen(printed, sizeof printed, "w");
    ck_assert_ptr_nonnull(out);
    return out;
}

/* ---- slice ----------------------------------------------------------------------------------- */

typedef struct {
    uint64_t request;
    uint64_t counts[128];
} census_t;

static proto_status_t
take_census(void *context, const log_set_item_t *item, const log_message_t *message)
{
    census_t *census = context;
    (void)item;
    if (message != NULL) {
        census->counts[message->header.kind]++;
        ck_assert(message->has_body);
        if (message->header.request != 0) {
            ck_assert_uint_eq(message->header.request, census->request);
        }
    }
    return STATUS_OK;
}

/* All that concerns the request, from the HTTP request to the release of its slot, and of others
 * nothing. */
START_TEST(a_slice_holds_one_request_and_all_of_it)
{
    options.request_base = UINT64_C(1) << 63;
    (void)maker_log_write(&options);
    log_set_t *set = open_set(source);
    log_out_t *out = NULL;
    ck_assert_int_eq(log_out_open(target, &out, NULL), STATUS_OK);
    static log_slice_counts_t counts;
    census_t census = {.request = options.request_base + 3};
    ck_assert_int_eq(log_slice(set, census.request, out, &counts), STATUS_OK);
    ck_assert_int_eq(log_out_commit(out), STATUS_OK);
    log_out_close(&out);
    log_set_close(&set);
    set = open_set(target);
    ck_assert_int_eq(log_set_visit(set, take_census, &census), STATUS_OK);
    ck_assert_uint_eq(log_set_damage_count(set), 0);
    log_set_close(&set);
    const uint64_t *found = census.counts;
    ck_assert_uint_eq(found[PROTO_KIND_HTTP_REQUEST], 1);
    ck_assert_uint_eq(found[PROTO_KIND_SUBMIT], 2);
    ck_assert_uint_eq(found[PROTO_KIND_ADMIT], 2);
    ck_assert_uint_eq(found[PROTO_KIND_SLOT_SETUP], 1);
    ck_assert_uint_eq(found[PROTO_KIND_PLAN], 2 * (MAKER_ANSWER_LEN + 1)); /* and the release */
    ck_assert_uint_eq(found[PROTO_KIND_STEP_LAUNCH], MAKER_ANSWER_LEN);
    ck_assert_uint_eq(found[PROTO_KIND_STEP_DONE], MAKER_ANSWER_LEN);
    ck_assert_uint_eq(found[PROTO_KIND_STEP_RESULT], 2 * MAKER_ANSWER_LEN);
    ck_assert_uint_eq(found[PROTO_KIND_TOKENS], 2 * MAKER_ANSWER_LEN);
    ck_assert_uint_eq(found[PROTO_KIND_HTTP_TOKENS], MAKER_ANSWER_LEN);
    ck_assert_uint_eq(found[PROTO_KIND_FINISHED], 2);
    ck_assert_uint_eq(found[PROTO_KIND_HTTP_END], 1);
    ck_assert_uint_eq(found[PROTO_KIND_LOAD], 0);
    for (uint32_t kind = 0; kind < 128; kind++) {
        ck_assert_uint_eq(found[kind], counts.message_counts[kind]);
    }
}
END_TEST

/* Whatever the inputs were: no log is written whose sequences go back. */
START_TEST(a_record_out_of_order_is_refused_with_the_numbers)
{
    log_out_t *out = NULL;
    ck_assert_int_eq(log_out_open(target, &out, NULL), STATUS_OK);
    proto_log_header_t header = {.name = "scheduler", .epoch = 5};
    proto_log_record_t record = {.kind = PROTO_LOG_DROP, .sequence = 6};
    ck_assert_int_eq(log_out_append(out, &header, &record), STATUS_OK);
    record.kind = PROTO_LOG_NOTE; /* a DROP has the sequence of the record behind it */
    ck_assert_int_eq(log_out_append(out, &header, &record), STATUS_OK);
    ck_assert_int_eq(log_out_append(out, &header, &record), STATUS_ERR_REFUSED);
    record.sequence = 4;
    ck_assert_int_eq(log_out_append(out, &header, &record), STATUS_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(log_out_error(out), "record 4 of scheduler"));
    ck_assert_ptr_nonnull(strstr(log_out_error(out), "behind record 6"));
    log_out_close(&out);
}
END_TEST

START_TEST(a_slice_of_nobody_is_refused)
{
    (void)maker_log_write(&options);
    log_set_t *set = open_set(source);
    log_out_t *out = NULL;
    static log_slice_counts_t counts;
    ck_assert_int_eq(log_out_open(target, &out, NULL), STATUS_OK);
    ck_assert_int_eq(log_slice(set, 99, out, &counts), STATUS_ERR_NOT_FOUND);
    log_out_close(&out);
    log_set_close(&set);
    /* Nothing is left of it. */
    proto_error_t error = {{0}};
    const char *path = target;
    ck_assert_int_eq(log_set_open(&path, 1, NULL, &set, &error), STATUS_ERR_NOT_FOUND);
}
END_TEST

/* ---- redact and cut -------------------------------------------------------------------------- */

static void
cut_into(const char *path, const log_cut_options_t *what, log_cut_counts_t *counts)
{
    log_set_t *set = open_set(source);
    log_out_t *out = NULL;
    ck_assert_int_eq(log_out_open(path, &out, NULL), STATUS_OK);
    ck_assert_int_eq(log_cut(set, what, out, counts), STATUS_OK);
    ck_assert_int_eq(log_out_commit(out), STATUS_OK);
    log_out_close(&out);
    log_set_close(&set);
}

static bool
file_holds(const char *path, const void *needle, size_t size_bytes)
{
    size_t file_size;
    uint8_t *data = maker_read(path, &file_size);
    bool found = memmem(data, file_size, needle, size_bytes) != NULL;
    free(data);
    return found;
}

/* In the bytes of the files, wherever they might be. */
static uint32_t
count_private(const char *directory)
{
    static const char *const actors[] = {"gateway", "scheduler", "executor"};
    uint32_t found = 0;
    maker_log_t where = options;
    where.directory = directory;
    for (size_t actor = 0; actor < 3; actor++) {
        char path[700];
        maker_log_path(&where, actors[actor], path, sizeof path);
        for (int32_t request = 1; request <= REQUESTS; request++) {
            for (int32_t i = 0; i < MAKER_PROMPT_LEN; i++) {
                int32_t token = MAKER_TOKEN_BASE + 1000 * request + i;
                found += file_holds(path, &token, sizeof token);
            }
            for (int32_t i = 0; i < MAKER_ANSWER_LEN; i++) {
                int32_t token = MAKER_ANSWER_BASE + 1000 * request + i;
                found += file_holds(path, &token, sizeof token);
            }
        }
        found += file_holds(path, "saltsalt", 8);
        found += file_holds(path, "secret prompt", 13);
    }
    return found;
}

START_TEST(nothing_private_is_left_in_a_redacted_log)
{
    (void)maker_log_write(&options);
    ck_assert_uint_gt(count_private(source), 3 * REQUESTS * MAKER_PROMPT_LEN);
    log_cut_options_t what = {.redact = true};
    log_cut_counts_t counts;
    cut_into(target, &what, &counts);
    ck_assert_uint_eq(count_private(target), 0);
    ck_assert_uint_eq(counts.kept, counts.read);
    ck_assert_uint_gt(counts.redacted, 0);
    /* All else is the same, and everything decodes. */
    const char *a = source, *b = target;
    log_diff_side_t left = {&a, 1}, right = {&b, 1};
    log_diff_options_t compare = {.ignore_private = true, .no_defaults = true};
    log_diff_result_t result;
    FILE *out = begin_print();
    ck_assert_int_eq(log_diff(&left, &right, &compare, out, &result, NULL), STATUS_OK);
    ck_assert_uint_eq(result.differences, 0);
    ck_assert_uint_gt(result.compared, 100);
    compare.ignore_private = false;
    ck_assert_int_eq(log_diff(&left, &right, &compare, out, &result, NULL), STATUS_OK);
    ck_assert_uint_eq(result.differences, 3);
    (void)fclose(out);
}
END_TEST

/* A body of a newer version may hold anything in the fields that this build does not know. */
START_TEST(what_cannot_be_judged_is_left_out)
{
    log_redactor_t redactor = {0};
    proto_log_record_t redacted;
    uint8_t head[PROTO_HEADER_SIZE_MAX];
    proto_header_t header = {.version = 2, .kind = PROTO_KIND_BYE};
    size_t head_size = proto_header_encode(&header, head);
    uint8_t body[] = {0x92, 0xa2, 'o', 'k', 0xa6, 's', 'e', 'c', 'r', 'e', 't'};
    proto_log_record_t record = {.kind = PROTO_LOG_IN,
                                 .part_count = 2,
                                 .parts = {{head, head_size}, {body, sizeof body}}};
    ck_assert_int_eq(log_redactor_redact(&redactor, &record, &redacted), STATUS_OK);
    ck_assert_uint_eq(redacted.part_count, 1);
    ck_assert_uint_eq(redacted.flags, PROTO_LOG_FLAG_REDACTED | PROTO_LOG_FLAG_CUT);
    body[0] = 0x91; /* one field: known; what follows it is no message */
    record.parts[1].size_bytes = 4;
    ck_assert_int_eq(log_redactor_redact(&redactor, &record, &redacted), STATUS_OK);
    ck_assert_uint_eq(redacted.part_count, 2);
    ck_assert_uint_eq(redacted.flags, 0);
    record.parts[1].size_bytes = 3;
    ck_assert_int_eq(log_redactor_redact(&redactor, &record, &redacted), STATUS_OK);
    ck_assert_uint_eq(redacted.part_count, 1);
    record.kind = (proto_log_kind_t)77;
    ck_assert_int_eq(log_redactor_redact(&redactor, &record, &redacted), STATUS_OK);
    ck_assert_uint_eq(redacted.part_count, 0);
    log_redactor_fini(&redactor);
}
END_TEST

/* The redactor zeros columns, text and bytes: a private number would need more. */
START_TEST(the_list_has_no_private_numbers)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t at = 0; at < messages[i].field_count; at++) {
            const proto_field_t *field = &messages[i].fields[at];
            ck_assert(!field->is_private || field->type >= PROTO_FIELD_STR);
            ck_assert(!field->is_private || !messages[i].is_map);
        }
    }
}
END_TEST

START_TEST(a_cut_keeps_the_range_and_its_frame)
{
    (void)maker_log_write(&options);
    log_filter_t filter = {.from = {LOG_BOUND_SEQUENCE, 20}, .to = {LOG_BOUND_SEQUENCE, 29}};
    log_cut_options_t what = {.filter = &filter};
    log_cut_counts_t counts;
    cut_into(target, &what, &counts);
    ck_assert_uint_eq(counts.kept, 3 * (1 + 10)); /* CHANNEL_DEF of each actor comes along */
    char path[700];
    maker_log_t where = options;
    where.directory = target;
    maker_log_path(&where, "scheduler", path, sizeof path);
    log_survey_t survey;
    ck_assert_int_eq(log_survey_segment(path, &survey, NULL), STATUS_OK);
    ck_assert_uint_eq(survey.record_count, 11);
    ck_assert_uint_eq(survey.gap_count, 1);
    ck_assert_uint_eq(survey.missing_count, 18);
    ck_assert_uint_eq(survey.last_sequence, 29);
    ck_assert_int_eq(survey.status, STATUS_END);
}
END_TEST

START_TEST(nothing_is_written_over)
{
    (void)maker_log_write(&options);
    log_out_t *out = NULL;
    proto_error_t error = {{0}};
    ck_assert_int_eq(log_out_open(source, &out, &error), STATUS_ERR_REFUSED);
    char path[700];
    maker_log_path(&options, "scheduler", path, sizeof path);
    ck_assert_int_eq(log_out_open(path, &out, &error), STATUS_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(error.detail, "exists"));
    /* One file cannot hold two actors. */
    (void)snprintf(path, sizeof path, "%s/one.alog", folder);
    ck_assert_int_eq(log_out_open(path, &out, &error), STATUS_OK);
    log_set_t *set = open_set(source);
    log_cut_options_t what = {0};
    log_cut_counts_t counts;
    ck_assert_int_eq(log_cut(set, &what, out, &counts), STATUS_ERR_INVALID);
    log_out_close(&out);
    log_set_close(&set);
}
END_TEST

/* ---- diff ------------------------------------------------------------------------------------ */

static void
write_other(const maker_log_t *other)
{
    log_out_t *out = NULL;
    ck_assert_int_eq(log_out_open(target, &out, NULL), STATUS_OK);
    ck_assert_int_eq(log_out_commit(out), STATUS_OK);
    log_out_close(&out);
    (void)maker_log_write(other);
}

static log_diff_result_t
compare(log_diff_options_t what)
{
    const char *a = source, *b = target;
    log_diff_side_t left = {&a, 1}, right = {&b, 1};
    log_diff_result_t result;
    FILE *out = begin_print();
    ck_assert_int_eq(log_diff(&left, &right, &what, out, &result, NULL), STATUS_OK);
    (void)fclose(out);
    return result;
}

/* Another run: other epochs, other ids, other times; the same otherwise. */
START_TEST(runs_that_differ_in_ids_and_times_are_the_same)
{
    (void)maker_log_write(&options);
    maker_log_t other = {.directory = target,
                         .request_count = REQUESTS,
                         .request_base = 5000,
                         .epoch = 0x99};
    write_other(&other);
    log_diff_result_t result = compare((log_diff_options_t){0});
    ck_assert_uint_eq(result.differences, 0);
    ck_assert_uint_gt(result.compared, 100);
}
END_TEST

START_TEST(the_first_message_that_differs_is_named_with_its_field)
{
    (void)maker_log_write(&options);
    maker_log_t other = {.directory = target, .request_count = REQUESTS, .wrong_request = 3};
    write_other(&other);
    log_diff_result_t result = compare((log_diff_options_t){.actor = "scheduler"});
    ck_assert_uint_eq(result.differences, 1);
    ck_assert_ptr_nonnull(
        strstr(printed, "differs: finished.generated_tokens is 3 in A, 2 in B\n"));
    /* What came before is shown, and both messages. */
    ck_assert_ptr_nonnull(strstr(printed, "TOKENS"));
    ck_assert_ptr_nonnull(strstr(printed, "\nA scheduler"));
    ck_assert_ptr_nonnull(strstr(printed, "\nB scheduler"));
    const char *ignored[] = {"generated_tokens"};
    result =
        compare((log_diff_options_t){.actor = "scheduler", .ignored = ignored, .ignored_count = 1});
    ck_assert_uint_eq(result.differences, 0);
    result = compare((log_diff_options_t){.actor = "scheduler", .json = true});
    ck_assert_ptr_nonnull(strstr(printed, "\"path\":\"finished.generated_tokens\",\"a\":\"3\""));
}
END_TEST

/* The same requests in another order: message by message nothing fits, request by request all. */
START_TEST(alignment_by_request_looks_past_the_order)
{
    (void)maker_log_write(&options);
    maker_log_t other = {.directory = target, .request_count = REQUESTS, .reversed = true};
    write_other(&other);
    ck_assert_uint_eq(compare((log_diff_options_t){0}).differences, 3);
    log_diff_options_t aligned = {.align_requests = true};
    log_diff_result_t result = compare(aligned);
    ck_assert_uint_eq(result.differences, 0);
    ck_assert_uint_gt(result.compared, 50);
    maker_remove(target);
    other.wrong_request = 2;
    write_other(&other);
    aligned.actor = "scheduler";
    result = compare(aligned);
    ck_assert_uint_eq(result.differences, 1);
    ck_assert_ptr_nonnull(strstr(printed, "request 2 of scheduler in A, 4 in B"));
    ck_assert_ptr_nonnull(strstr(printed, "finished.generated_tokens is 3 in A, 2 in B"));
}
END_TEST

/* A scheduler's log of TOKENS alone: rows [begin, end) in one message. */
static void
put_rows(proto_log_copy_t *copy, uint64_t sequence, const int32_t *tokens, uint32_t begin,
         uint32_t end)
{
    static const uint64_t ids[] = {11, 12, 13};
    static const uint32_t indices[] = {0, 0, 0};
    static const uint8_t counts[] = {1, 2, 1}, starts[] = {0, 1, 3, 4};
    static _Alignas(64) uint8_t blob[4096];
    uint8_t head[PROTO_HEADER_SIZE_MAX], bytes[256];
    size_t body_size, blob_size;
    proto_header_t header = {.version = 1, .kind = PROTO_KIND_TOKENS, .cause = sequence};
    proto_body_t body = {
        .tokens = {.step = sequence,
                   .requests = {ids + begin, end - begin},
                   .token_indices = {indices + begin, end - begin},
                   .token_counts = {counts + begin, end - begin},
                   .tokens = {tokens + starts[begin], starts[end] - (uint32_t)starts[begin]}}};
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_TOKENS, &body, bytes, sizeof bytes, &body_size,
                                       blob, sizeof blob, &blob_size),
                     STATUS_OK);
    proto_log_record_t record = {.kind = PROTO_LOG_OUT,
                                 .sequence = sequence,
                                 .part_count = 3,
                                 .parts = {{head, proto_header_encode(&header, head)},
                                           {bytes, body_size},
                                           {blob, blob_size}}};
    ck_assert_int_eq(proto_log_copy_append(copy, &record), STATUS_OK);
}

static void
write_rows(const char *path, const int32_t tokens[4], bool together)
{
    proto_log_header_t header = {.version = PROTO_LOG_VERSION, .epoch = 1, .name = "scheduler"};
    proto_log_copy_t *copy = NULL;
    ck_assert_int_eq(proto_log_copy_open(path, &header, &copy, NULL), STATUS_OK);
    if (together) {
        put_rows(copy, 1, tokens, 0, 3);
    } else {
        put_rows(copy, 1, tokens, 0, 1);
        put_rows(copy, 2, tokens, 1, 3);
    }
    ck_assert_int_eq(proto_log_copy_commit(&copy, NULL), STATUS_OK);
}

/* Who shared a step with whom is chance; what each request got is not. */
START_TEST(rows_of_tokens_are_aligned_one_by_one)
{
    static const int32_t right[] = {70, 71, 72, 73}, wrong[] = {70, 71, 99, 73};
    (void)snprintf(source, sizeof source, "%s/together.alog", folder);
    (void)snprintf(target, sizeof target, "%s/apart.alog", folder);
    write_rows(source, right, true);
    write_rows(target, right, false);
    log_diff_options_t aligned = {.align_requests = true, .show_private = true};
    log_diff_result_t result = compare(aligned);
    ck_assert_uint_eq(result.differences, 0);
    ck_assert_uint_eq(result.compared, 3);
    write_rows(target, wrong, false);
    ck_assert_uint_eq(compare(aligned).differences, 1);
    ck_assert_ptr_nonnull(strstr(printed, "tokens.tokens[1] is 72 in A, 99 in B"));
}
END_TEST

START_TEST(a_log_that_ends_earlier_differs_there)
{
    (void)maker_log_write(&options);
    maker_log_t other = {.directory = target, .request_count = REQUESTS - 1};
    write_other(&other);
    log_diff_result_t result = compare((log_diff_options_t){.actor = "gateway"});
    ck_assert_uint_eq(result.differences, 1);
    ck_assert_ptr_nonnull(strstr(printed, "B (ends)"));
    result = compare((log_diff_options_t){.actor = "gateway", .align_requests = true});
    ck_assert_uint_eq(result.differences, 1);
}
END_TEST

/* ---- stats, export, timeline, show ----------------------------------------------------------- */

START_TEST(stats_count_and_measure)
{
    (void)maker_log_write(&options);
    log_set_t *set = open_set(source);
    FILE *out = begin_print();
    log_stats_options_t what = {.list_requests = true};
    ck_assert_int_eq(log_stats_print(set, &what, out), STATUS_OK);
    (void)fclose(out);
    ck_assert_ptr_nonnull(strstr(printed, "scheduler  out    PLAN                   20"));
    ck_assert_ptr_nonnull(strstr(printed, "5 requests as the gateway saw them"));
    ck_assert_int_eq(log_set_rewind(set), STATUS_OK);
    out = begin_print();
    what = (log_stats_options_t){.json = true};
    ck_assert_int_eq(log_stats_print(set, &what, out), STATUS_OK);
    (void)fclose(out);
    ck_assert_ptr_nonnull(strstr(printed, "\"observer\":\"gateway\""));
    ck_assert_ptr_nonnull(strstr(printed, "\"submit_to_finished\":{\"count\":5,"));
    ck_assert_ptr_nonnull(strstr(printed, "\"reason\":\"length\""));
    log_set_close(&set);
}
END_TEST

START_TEST(exports_have_a_line_or_message_for_each_record)
{
    uint64_t written = maker_log_write(&options);
    log_set_t *set = open_set(source);
    log_export_counts_t counts;
    log_export_options_t what = {.form = LOG_EXPORT_JSONL};
    FILE *out = begin_print();
    ck_assert_int_eq(log_export_write(set, &what, out, &counts), STATUS_OK);
    (void)fclose(out);
    ck_assert_uint_eq(counts.records, written);
    uint64_t lines = 0;
    for (const char *at = printed; (at = strchr(at, '\n')) != NULL; at++) {
        lines++;
    }
    ck_assert_uint_eq(lines, written);
    ck_assert_ptr_null(strstr(printed, "1001000")); /* a token */
    ck_assert_int_eq(log_set_rewind(set), STATUS_OK);
    what = (log_export_options_t){.form = LOG_EXPORT_MCAP, .show_private = true};
    out = begin_print();
    ck_assert_int_eq(log_export_write(set, &what, out, &counts), STATUS_OK);
    ck_assert(!ferror(out));
    (void)fclose(out);
    ck_assert_mem_eq(printed, "\x89MCAP0\r\n", 8);
    ck_assert_uint_eq(counts.records, written);
    log_set_close(&set);
}
END_TEST

START_TEST(a_timeline_draws_requests_steps_and_counters)
{
    (void)maker_log_write(&options);
    for (int form = 0; form < 2; form++) {
        log_set_t *set = open_set(source);
        log_trace_counts_t counts;
        FILE *out = begin_print();
        ck_assert_int_eq(log_trace_write(set, form == 0 ? LOG_TRACE_CHROME : LOG_TRACE_PERFETTO,
                                         out, &counts),
                         STATUS_OK);
        ck_assert(!ferror(out));
        (void)fclose(out);
        ck_assert_uint_eq(counts.requests, REQUESTS);
        /* One plan for each token and one for each release; a LOAD for each request, which sender
         * draws. */
        ck_assert_uint_eq(counts.counters, REQUESTS * (MAKER_ANSWER_LEN + 1 + 1));
        if (form == 0) {
            ck_assert_ptr_nonnull(strstr(printed, "\"name\":\"request 3 (length)\""));
            ck_assert_ptr_nonnull(strstr(printed, "\"name\":\"step 9\""));
            ck_assert_ptr_nonnull(strstr(printed, "\"name\":\"KV blocks in use\""));
            ck_assert_ptr_nonnull(strstr(printed, "\"args\":{\"value\":15}")); /* 100 - (90 - 5) */
        }
        log_set_close(&set);
    }
}
END_TEST

START_TEST(bounds_are_sequences_seconds_or_dates)
{
    log_bound_t bound;
    ck_assert_int_eq(log_bound_parse("1234", &bound), STATUS_OK);
    ck_assert_int_eq(bound.form, LOG_BOUND_SEQUENCE);
    ck_assert_uint_eq(bound.value, 1234);
    ck_assert_int_eq(log_bound_parse("6369.642152", &bound), STATUS_OK);
    ck_assert_int_eq(bound.form, LOG_BOUND_MONOTONIC);
    ck_assert_uint_eq(bound.value, UINT64_C(6369642152000));
    ck_assert_int_eq(log_bound_parse("7s", &bound), STATUS_OK);
    ck_assert_uint_eq(bound.value, UINT64_C(7000000000));
    ck_assert_int_eq(log_bound_parse("2026-11-30T07:03:59.5Z", &bound), STATUS_OK);
    ck_assert_int_eq(bound.form, LOG_BOUND_REALTIME);
    ck_assert_uint_eq(bound.value, UINT64_C(1796022239500000000));
    static const char *const bad[] = {"",           "x",
                                      "-1",         "1 2",
                                      "1..2",       "9s9",
                                      "2026-11-30", "2026-13-40T99:00:00Z",
                                      "T",          "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(log_bound_parse(bad[i], &bound), STATUS_ERR_INVALID);
    }
}
END_TEST

/* Private bytes are not shown in hexadecimal either, unless that is asked for. */
START_TEST(hexadecimal_hides_private_bytes)
{
    (void)maker_log_write(&options);
    for (int shown = 0; shown < 2; shown++) {
        log_set_t *set = open_set(source);
        log_print_options_t what = {.form = LOG_PRINT_HEX, .show_private = shown == 1};
        log_printer_t *printer = NULL;
        ck_assert_int_eq(log_printer_new(&what, &printer), STATUS_OK);
        FILE *out = begin_print();
        log_set_item_t item;
        while (log_set_next(set, &item) == STATUS_OK && ftell(out) < (1 << 18)) {
            log_printer_print(printer, out, &item, NULL);
        }
        (void)fclose(out);
        ck_assert_int_eq(strstr(printed, "saltsalt") != NULL, shown == 1);
        ck_assert_int_eq(strstr(printed, "secret prompt") != NULL, shown == 1);
        log_printer_destroy(&printer);
        log_set_close(&set);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("log.tools");
    TCase *tests = tcase_create("tools");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, a_slice_holds_one_request_and_all_of_it);
    tcase_add_test(tests, a_slice_of_nobody_is_refused);
    tcase_add_test(tests, a_record_out_of_order_is_refused_with_the_numbers);
    tcase_add_test(tests, nothing_private_is_left_in_a_redacted_log);
    tcase_add_test(tests, what_cannot_be_judged_is_left_out);
    tcase_add_test(tests, the_list_has_no_private_numbers);
    tcase_add_test(tests, a_cut_keeps_the_range_and_its_frame);
    tcase_add_test(tests, nothing_is_written_over);
    tcase_add_test(tests, runs_that_differ_in_ids_and_times_are_the_same);
    tcase_add_test(tests, the_first_message_that_differs_is_named_with_its_field);
    tcase_add_test(tests, alignment_by_request_looks_past_the_order);
    tcase_add_test(tests, rows_of_tokens_are_aligned_one_by_one);
    tcase_add_test(tests, a_log_that_ends_earlier_differs_there);
    tcase_add_test(tests, stats_count_and_measure);
    tcase_add_test(tests, exports_have_a_line_or_message_for_each_record);
    tcase_add_test(tests, a_timeline_draws_requests_steps_and_counters);
    tcase_add_test(tests, bounds_are_sequences_seconds_or_dates);
    tcase_add_test(tests, hexadecimal_hides_private_bytes);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
