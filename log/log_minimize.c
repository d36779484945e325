#include "log_minimize.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log_minimize_plan.h"
#include "proto_require.h"

enum { PATH_SIZE = 4096, CUTS_TRIED_MAX = 1 << 20 };

typedef struct {
    const log_minimize_options_t *options;
    log_minimize_plan_t plan;
    log_minimize_result_t *result;
    proto_error_t *error;
    char path[PATH_SIZE]; /* of what is tried */
    bool is_folder;
} search_t;

/* Takes away what the last try left. */
static void
clear_candidate(const search_t *self)
{
    if (!self->is_folder) {
        (void)unlink(self->path);
        return;
    }
    DIR *folder = opendir(self->path);
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.') {
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
        (void)rmdir(self->path);
    }
}

/* Writes what the plan keeps and runs the command on it. */
static proto_status_t
try_plan(search_t *self, int *exit_code)
{
    clear_candidate(self);
    proto_status_t status = log_minimize_plan_write(&self->plan, self->path, NULL, self->error);
    if (status != STATUS_OK) {
        return status;
    }
    self->result->runs++;
    *exit_code = self->options->run(self->options->context, self->path);
    clear_candidate(self);
    return *exit_code < 0 ? STATUS_ERR_IO : STATUS_OK;
}

static bool
may_run(search_t *self)
{
    if (self->result->runs < self->options->run_max) {
        return true;
    }
    self->result->is_exhausted = true;
    return false;
}

static uint32_t
count_set(const uint8_t *flags, uint32_t count)
{
    uint32_t set = 0;
    for (uint32_t i = 0; i < count; i++) {
        set += flags[i];
    }
    return set;
}

static void
tell(const search_t *self, const char *what, uint32_t left)
{
    if (self->options->progress != NULL) {
        (void)fprintf(self->options->progress, "minimize: run %u of at most %u: %u %s left\n",
                      (unsigned)self->result->runs, (unsigned)self->options->run_max,
                      (unsigned)left, what);
        (void)fflush(self->options->progress);
    }
}

/* Tries without the items of `flags` number [begin, end) among those that are left. */
static proto_status_t
try_without(search_t *self, uint8_t *flags, const uint32_t *left, uint32_t begin, uint32_t end,
            bool *is_gone)
{
    for (uint32_t i = begin; i < end; i++) {
        flags[left[i]] = 0;
    }
    int exit_code = 0;
    proto_status_t status = try_plan(self, &exit_code);
    *is_gone = status == STATUS_OK && exit_code == self->result->exit_code;
    for (uint32_t i = begin; i < end && !*is_gone; i++) {
        flags[left[i]] = 1;
    }
    return status;
}

/* Takes out chunks, half of what is left first, then smaller ones down to single items; after a
 * round of single items that took anything out, singles are tried once more. */
static proto_status_t
reduce(search_t *self, uint8_t *flags, uint32_t count, const char *what)
{
    uint32_t *left = malloc(((size_t)count + 1) * sizeof left[0]);
    if (left == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = STATUS_OK;
    uint32_t left_count = count_set(flags, count);
    uint32_t chunk = (left_count + 1) / 2;
    while (status == STATUS_OK && chunk > 0 && left_count > 0 && may_run(self)) {
        bool is_smaller = false;
        left_count = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (flags[i] != 0) {
                left[left_count++] = i;
            }
        }
        /* From the end: what comes late depends on what came before, seldom the other way. */
        for (uint32_t end = left_count; end > 0 && status == STATUS_OK && may_run(self);) {
            uint32_t begin = end > chunk ? end - chunk : 0;
            bool is_gone = false;
            status = try_without(self, flags, left, begin, end, &is_gone);
            is_smaller = is_smaller || is_gone;
            if (is_gone) {
                tell(self, what, count_set(flags, count));
            }
            end = begin;
        }
        left_count = count_set(flags, count);
        if (chunk == 1 && !is_smaller) {
            break;
        }
        chunk = chunk > 1 ? chunk / 2 : 1;
    }
    free(left);
    return status;
}

/* ---- fields ---------------------------------------------------------------------------------- */

typedef struct {
    search_t *search;
    uint32_t at;
    log_minimize_cut_t *tries; /* `count` is what is there now */
    uint32_t try_count;
    uint32_t try_capacity;
} fields_t;

static proto_status_t
collect(void *context, const log_set_item_t *item, const log_message_t *message)
{
    fields_t *self = context;
    uint32_t record = self->at++;
    if (message == NULL || !message->has_body || item->record.kind != PROTO_LOG_IN ||
        record >= self->search->plan.record_count ||
        !log_minimize_plan_keeps(&self->search->plan, record)) {
        return STATUS_OK;
    }
    for (uint32_t i = 0; i < message->table->field_count; i++) {
        uint32_t size = log_minimize_field_size(&message->table->fields[i], &message->body);
        if (size == 0 || self->try_count == CUTS_TRIED_MAX) {
            continue;
        }
        if (self->try_count == self->try_capacity) {
            uint32_t capacity = self->try_capacity == 0 ? 64 : self->try_capacity * 2;
            log_minimize_cut_t *larger = realloc(self->tries, capacity * sizeof larger[0]);
            if (larger == NULL) {
                return STATUS_ERR_NO_MEMORY;
            }
            self->tries = larger;
            self->try_capacity = capacity;
        }
        self->tries[self->try_count++] = (log_minimize_cut_t){record, i, size};
    }
    return STATUS_OK;
}

/* To nothing at once, else halves for as long as that helps. */
static proto_status_t
reduce_field(search_t *self, log_minimize_cut_t cut)
{
    uint32_t size = cut.count;
    for (cut.count = 0; cut.count < size && may_run(self);
         cut.count = cut.count == 0 ? size / 2 : cut.count + (size - cut.count + 1) / 2) {
        uint32_t cut_count = self->plan.cut_count;
        proto_status_t status = log_minimize_plan_cut(&self->plan, cut);
        int exit_code = 0;
        if (status == STATUS_OK) {
            status = try_plan(self, &exit_code);
        }
        if (status != STATUS_OK) {
            return status;
        }
        if (exit_code == self->result->exit_code) {
            self->result->fields_cut++;
            return STATUS_OK;
        }
        self->plan.cut_count = cut_count; /* it was the newest */
        if (size == 1) {
            break;
        }
    }
    return STATUS_OK;
}

static proto_status_t
reduce_fields(search_t *self)
{
    fields_t fields = {.search = self};
    proto_status_t status = log_set_rewind(self->plan.set);
    if (status == STATUS_OK) {
        status = log_set_visit(self->plan.set, collect, &fields);
    }
    for (uint32_t i = 0; i < fields.try_count && status == STATUS_OK && may_run(self); i++) {
        status = reduce_field(self, fields.tries[i]);
        if (i % 16 == 15) {
            tell(self, "fields to try are", fields.try_count - i - 1);
        }
    }
    free(fields.tries);
    return status;
}

/* ---- the search ------------------------------------------------------------------------------ */

static proto_status_t
refuse(search_t *self, const char *why)
{
    if (self->error != NULL) {
        (void)snprintf(self->error->detail, sizeof self->error->detail, "%s", why);
    }
    return STATUS_ERR_INVALID;
}

static uint64_t
count_kept(const log_minimize_plan_t *plan)
{
    uint64_t kept = 0;
    for (uint32_t i = 0; i < plan->record_count; i++) {
        kept += log_minimize_plan_keeps(plan, i) ? 1U : 0U;
    }
    return kept;
}

/* Units whose input is still there: a request that is gone takes its inputs along. */
static uint32_t
count_inputs(const log_minimize_plan_t *plan)
{
    uint32_t inputs = 0;
    for (uint32_t i = 0; i < plan->record_count; i++) {
        inputs += plan->is_input[i] != 0 && log_minimize_plan_keeps(plan, i) ? 1U : 0U;
    }
    return inputs;
}

static proto_status_t
search(search_t *self)
{
    log_minimize_result_t *result = self->result;
    log_minimize_plan_t *plan = &self->plan;
    result->requests_before = plan->table.count;
    result->inputs_before = plan->unit_count;
    result->records_before = plan->record_count;
    proto_status_t status = try_plan(self, &result->exit_code);
    if (status != STATUS_OK) {
        return status;
    }
    if (result->exit_code == 0) {
        return refuse(self, "the command ends with 0 on this log: there is no failure to keep");
    }
    status = reduce(self, plan->has_request, plan->table.count, "requests");
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        uint32_t request = plan->unit_requests[i];
        if (request != 0 && plan->has_request[request - 1] == 0) {
            plan->has_unit[i] = 0; /* gone with its request: not tried once more */
        }
    }
    if (status == STATUS_OK) {
        status = reduce(self, plan->has_unit, plan->unit_count, "inputs");
    }
    return status == STATUS_OK ? reduce_fields(self) : status;
}

proto_status_t
log_minimize(log_set_t *set, const log_minimize_options_t *options, const char *out_path,
             log_minimize_result_t *result, proto_error_t *error)
{
    require(options->run != NULL);
    require(options->run_max > 0);
    memset(result, 0, sizeof *result);
    search_t self = {.options = options, .result = result, .error = error};
    /* One actor: a file.  Several: a folder. */
    self.is_folder = log_set_stream_count(set) > 1;
    int length = snprintf(self.path, sizeof self.path, "%s/%s", options->scratch,
                          self.is_folder ? "candidate" : "candidate.alog");
    if (length < 0 || (size_t)length >= sizeof self.path) {
        return refuse(&self, "the scratch folder's path is too long");
    }
    proto_status_t status = log_minimize_plan_init(&self.plan, set);
    if (status == STATUS_OK) {
        status = search(&self);
    }
    if (status == STATUS_OK) {
        result->records_after = count_kept(&self.plan);
        result->inputs_after = count_inputs(&self.plan);
        result->requests_after = count_set(self.plan.has_request, self.plan.table.count);
        status = log_minimize_plan_write(&self.plan, out_path, NULL, error);
    }
    clear_candidate(&self);
    log_minimize_plan_fini(&self.plan);
    return status;
}
