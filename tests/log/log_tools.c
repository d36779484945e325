#include "log_tools.h"

#include <string.h>

#include "log_cut.h"
#include "log_diff.h"
#include "log_export.h"
#include "log_maker.h"
#include "log_minimize.h"
#include "log_print.h"
#include "log_slice.h"
#include "log_stats.h"
#include "log_survey.h"
#include "log_trace.h"
#include "log_visit.h"
#include "proto_log_recover.h"
#include "proto_require.h"

/* A refusal has a reason that a person can act on; "internal error" is none. */
static void
check_status(proto_status_t status)
{
    require(status != STATUS_ERR_INTERNAL);
    require(status != STATUS_ERR_NO_MEMORY);
}

typedef struct {
    log_printer_t *printer;
    FILE *sink;
} show_t;

static proto_status_t
show(void *context, const log_set_item_t *item, const log_message_t *message)
{
    show_t *self = context;
    log_printer_print(self->printer, self->sink, item, message);
    return STATUS_OK;
}

static void
show_all(log_set_t *set, FILE *sink)
{
    static const log_print_form_t forms[] = {LOG_PRINT_TEXT, LOG_PRINT_JSON, LOG_PRINT_HEX};
    for (size_t i = 0; i < 6; i++) {
        log_print_options_t options = {.form = forms[i % 3], .show_private = i >= 3};
        show_t self = {.sink = sink};
        require(log_printer_new(&options, &self.printer) == STATUS_OK);
        check_status(log_set_rewind(set));
        check_status(log_set_visit(set, show, &self));
        log_printer_destroy(&self.printer);
    }
}

static void
figures(log_set_t *set, FILE *sink)
{
    for (int json = 0; json < 2; json++) {
        log_stats_options_t options = {.json = json == 1, .list_requests = true};
        check_status(log_set_rewind(set));
        check_status(log_stats_print(set, &options, sink));
    }
    log_trace_counts_t traced;
    check_status(log_set_rewind(set));
    check_status(log_trace_write(set, LOG_TRACE_PERFETTO, sink, &traced));
    check_status(log_set_rewind(set));
    check_status(log_trace_write(set, LOG_TRACE_CHROME, sink, &traced));
    for (int form = 0; form < 2; form++) {
        log_export_options_t options = {.form = form == 0 ? LOG_EXPORT_JSONL : LOG_EXPORT_MCAP,
                                        .show_private = true};
        log_export_counts_t exported;
        check_status(log_set_rewind(set));
        check_status(log_export_write(set, &options, sink, &exported));
    }
}

static void
derive(log_set_t *set, const char *scratch)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/derived", scratch);
    for (int what = 0; what < 3; what++) {
        log_out_t *out = NULL;
        check_status(log_set_rewind(set));
        require(log_out_open(path, &out, NULL) == STATUS_OK);
        log_cut_counts_t counts;
        log_cut_options_t options = {.redact = what == 1};
        static log_slice_counts_t sliced;
        proto_status_t status =
            what < 2 ? log_cut(set, &options, out, &counts) : log_slice(set, 1, out, &sliced);
        check_status(status);
        if (status == STATUS_OK) {
            check_status(log_out_commit(out));
        }
        log_out_close(&out);
        maker_remove(path);
    }
}

static int
fail_always(void *context, const char *path)
{
    (void)context;
    log_survey_t survey;
    (void)!log_survey_segment(path, &survey, NULL);
    return 3;
}

static void
minimize(log_set_t *set, const char *scratch)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/minimized", scratch);
    log_minimize_options_t options = {.run = fail_always, .scratch = scratch, .run_max = 4};
    log_minimize_result_t result;
    check_status(log_minimize(set, &options, path, &result, NULL));
    maker_remove(path);
}

static void
repair(const char *path, const char *scratch)
{
    char out[1024];
    (void)snprintf(out, sizeof out, "%s/recovered.alog", scratch);
    static proto_log_verdict_t verdict;
    static log_survey_t survey;
    check_status(proto_log_verify(path, &verdict, NULL));
    check_status(log_survey_segment(path, &survey, NULL));
    proto_status_t status = proto_log_recover(path, out, NULL, NULL);
    check_status(status);
    if (status == STATUS_OK) {
        require(proto_log_verify(out, &verdict, NULL) == STATUS_OK);
        require(verdict.damage_count == 0);
        require(verdict.torn_bytes == 0);
    }
}

void
log_tools_run_all(const char *path, const char *scratch, bool writers, FILE *sink)
{
    log_set_t *set = NULL;
    for (int skip = 0; skip < 2; skip++) {
        log_set_options_t options = {.skip_damage = skip == 1};
        proto_error_t error = {{0}};
        proto_status_t status = log_set_open(&path, 1, &options, &set, &error);
        check_status(status);
        if (status != STATUS_OK) {
            require(error.detail[0] != '\0');
            return;
        }
        if (skip == 0) {
            figures(set, sink);
        }
        if (skip == 0 && writers) {
            derive(set, scratch);
            minimize(set, scratch);
        }
        show_all(set, sink);
        log_set_close(&set);
    }
    log_diff_side_t side = {&path, 1};
    for (int align = 0; align < 2; align++) {
        log_diff_options_t options = {.align_requests = align == 1};
        log_diff_result_t result;
        check_status(log_diff(&side, &side, &options, sink, &result, NULL));
        require(result.differences == 0);
    }
    if (writers) {
        repair(path, scratch);
    }
}
