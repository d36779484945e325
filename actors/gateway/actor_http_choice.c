/* actor_http_choice.c - see the header.
 *
 * Stop strings are searched in decoded text, so a match may begin in one token and end in
 * another.  The earliest match wins; of two at one place it makes no difference.  Text is visible
 * up to the longest suffix that is a proper prefix of a stop string. */
#include "actor_http_choice.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum { LOGPROB_CAPACITY_MIN = 64 };

bool
actor_http_choice_init(actor_http_choice_t *self, const actor_gateway_text_t *tokenizer,
                       const actor_http_params_t *params)
{
    memset(self, 0, sizeof *self);
    self->tokenizer = tokenizer;
    self->params = params;
    self->logprob_width = actor_http_params_logprob_width(params);
    /* Room for a stream in its stride; an answer in one piece grows. */
    return actor_http_text_reserve(&self->text, 1024);
}

void
actor_http_choice_fini(actor_http_choice_t *self)
{
    actor_http_text_fini(&self->text);
    free(self->logprobs);
    free(self->logprob_ids);
    free(self->logprob_values);
    memset(self, 0, sizeof *self);
}

/* ---- characters ------------------------------------------------------------------------------ */

static void
add_bytes(actor_http_choice_t *self, const char *bytes, size_t size_bytes)
{
    char joined[8];
    size_t at = 0;
    /* An unfinished character first takes the bytes that finish it, one at a time. */
    while (self->held_count > 0 && at < size_bytes) {
        self->held[self->held_count++] = bytes[at];
        memcpy(joined, self->held, self->held_count);
        int length = actor_http_utf8_length(joined, self->held_count);
        if (length < 0) {
            at++;
            continue;
        }
        if (length > 0) {
            actor_http_text_add(&self->text, joined, (size_t)length);
            at++;
        } else {
            /* What was held can never become a character; the new byte gets its own chance. */
            actor_http_text_puts(&self->text, "\xef\xbf\xbd");
        }
        self->held_count = 0;
    }
    while (at < size_bytes) {
        int length = actor_http_utf8_length(bytes + at, size_bytes - at);
        if (length < 0) {
            self->held_count = (uint8_t)(size_bytes - at);
            memcpy(self->held, bytes + at, self->held_count);
            return;
        }
        if (length == 0) {
            actor_http_text_puts(&self->text, "\xef\xbf\xbd");
            at++;
            continue;
        }
        actor_http_text_add(&self->text, bytes + at, (size_t)length);
        at += (size_t)length;
    }
}

/* ---- stop strings ---------------------------------------------------------------------------- */

/* Place of the first stop string that ends after `from`, or SIZE_MAX. */
static size_t
find_stop(const actor_http_choice_t *self, size_t from)
{
    size_t best = SIZE_MAX;
    for (uint32_t at = 0; at < self->params->stop_count; at++) {
        proto_text_t stop = self->params->stops[at];
        size_t begin = from >= stop.size_bytes ? from - stop.size_bytes + 1 : 0;
        if (begin >= self->text.size_bytes) {
            continue;
        }
        const char *found = memmem(self->text.data + begin, self->text.size_bytes - begin,
                                   stop.data, stop.size_bytes);
        if (found != NULL && (size_t)(found - self->text.data) < best) {
            best = (size_t)(found - self->text.data);
        }
    }
    return best;
}

/* Bytes at the end of the text that may be the beginning of a stop string. */
static size_t
hold_back(const actor_http_choice_t *self)
{
    size_t longest = 0;
    for (uint32_t at = 0; at < self->params->stop_count; at++) {
        proto_text_t stop = self->params->stops[at];
        size_t size = stop.size_bytes - 1u;
        size = size < self->text.size_bytes ? size : self->text.size_bytes;
        for (; size > longest; size--) {
            const char *tail = self->text.data + self->text.size_bytes - size;
            if (memcmp(tail, stop.data, size) == 0) {
                longest = size;
                break;
            }
        }
    }
    return longest;
}

/* A stop string may begin inside a character's bytes only if it is itself cut there, which JSON
 * text cannot be; so a hold-back always begins at a character. */
static void
update_visible(actor_http_choice_t *self, size_t size_before)
{
    if (self->params->stop_count == 0) {
        self->visible_bytes = (uint32_t)self->text.size_bytes;
        return;
    }
    size_t stop = find_stop(self, size_before);
    if (stop != SIZE_MAX) {
        self->text.size_bytes = stop;
        self->held_count = 0;
        self->stopped = true;
        self->stop_index = self->token_count;
        self->visible_bytes = (uint32_t)stop;
        return;
    }
    self->visible_bytes = (uint32_t)(self->text.size_bytes - hold_back(self));
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool
is_stop_id(const actor_http_choice_t *self, int32_t token)
{
    if ((int64_t)self->token_count < self->params->min_tokens) {
        return false;
    }
    for (uint32_t at = 0; at < self->params->stop_id_count; at++) {
        if (self->params->stop_ids[at] == token) {
            return true;
        }
    }
    for (uint32_t at = 0; at < self->tokenizer->stop_id_count && !self->params->ignore_eos; at++) {
        if (self->tokenizer->stop_ids[at] == token) {
            return true;
        }
    }
    return false;
}

static bool
grow_logprobs(actor_http_choice_t *self)
{
    uint32_t capacity =
        self->logprob_capacity == 0 ? LOGPROB_CAPACITY_MIN : 2 * self->logprob_capacity;
    size_t entries = (size_t)capacity * self->logprob_width;
    actor_http_logprob_t *records = realloc(self->logprobs, capacity * sizeof *records);
    if (records != NULL) {
        self->logprobs = records;
    }
    int32_t *ids = realloc(self->logprob_ids, entries * sizeof *ids);
    if (ids != NULL) {
        self->logprob_ids = ids;
    }
    float *values = realloc(self->logprob_values, entries * sizeof *values);
    if (values != NULL) {
        self->logprob_values = values;
    }
    if (records == NULL || ids == NULL || values == NULL) {
        self->failed = true;
        return false;
    }
    self->logprob_capacity = capacity;
    return true;
}

static void
add_logprobs(actor_http_choice_t *self, uint32_t begin_bytes, uint32_t width, const int32_t *ids,
             const float *values)
{
    if (self->logprob_width == 0 || width < self->logprob_width) {
        return; /* none asked for, or the executor gave fewer than were */
    }
    if (self->logprob_count == self->logprob_capacity && self->logprob_shown > 0) {
        /* A stream: what was shown makes room. */
        uint32_t kept = self->logprob_count - self->logprob_shown;
        size_t first = (size_t)self->logprob_shown * self->logprob_width;
        size_t entries = (size_t)kept * self->logprob_width;
        memmove(self->logprobs, self->logprobs + self->logprob_shown,
                kept * sizeof *self->logprobs);
        memmove(self->logprob_ids, self->logprob_ids + first, entries * sizeof(int32_t));
        memmove(self->logprob_values, self->logprob_values + first, entries * sizeof(float));
        for (uint32_t at = 0; at < kept; at++) {
            self->logprobs[at].entry_at = at * self->logprob_width;
        }
        self->logprob_count = kept;
        self->logprob_shown = 0;
    }
    if (self->logprob_count == self->logprob_capacity && !grow_logprobs(self)) {
        return;
    }
    uint32_t begin_chars = self->char_count;
    for (size_t at = begin_bytes - self->dropped_bytes; at < self->text.size_bytes; at++) {
        self->char_count += ((unsigned char)self->text.data[at] & 0xc0) != 0x80;
    }
    uint32_t entry = self->logprob_count * self->logprob_width;
    memcpy(self->logprob_ids + entry, ids, self->logprob_width * sizeof *ids);
    memcpy(self->logprob_values + entry, values, self->logprob_width * sizeof *values);
    self->logprobs[self->logprob_count++] = (actor_http_logprob_t){
        .begin_bytes = begin_bytes,
        .begin_chars = begin_chars,
        .end_bytes = self->dropped_bytes + (uint32_t)self->text.size_bytes,
        .entry_at = entry,
    };
}

void
actor_http_choice_push(actor_http_choice_t *self, int32_t token, uint32_t width,
                       const int32_t *logprob_ids, const float *logprob_values)
{
    if (self->stopped) {
        return;
    }
    bool hidden = is_stop_id(self, token);
    const char *bytes = NULL;
    size_t size_bytes = 0;
    if (!hidden) {
        hidden = self->params->skip_special_tokens &&
                 self->tokenizer->is_special(self->tokenizer->context, token);
    }
    if (!hidden && self->tokenizer->token_bytes(self->tokenizer->context, token, &bytes,
                                                &size_bytes) != STATUS_OK) {
        size_bytes = 0; /* more embeddings than tokens: it stands for nothing */
    }
    self->token_count++;
    size_t before = self->text.size_bytes;
    uint32_t begin_bytes = self->dropped_bytes + (uint32_t)before;
    if (!hidden && size_bytes > 0) {
        add_bytes(self, bytes, size_bytes);
    }
    add_logprobs(self, begin_bytes, width, logprob_ids, logprob_values);
    update_visible(self, before);
    self->failed = self->failed || self->text.failed;
}

void
actor_http_choice_finish(actor_http_choice_t *self)
{
    if (!self->stopped) {
        size_t before = self->text.size_bytes;
        if (self->held_count > 0) {
            actor_http_text_puts(&self->text, "\xef\xbf\xbd");
            self->held_count = 0;
            update_visible(self, before); /* even this may complete a stop string */
        }
        self->visible_bytes = (uint32_t)self->text.size_bytes;
    }
    /* Tokens of a stop string alone have no text to stand beside. */
    uint32_t length = self->dropped_bytes + self->visible_bytes;
    while (self->stopped && self->logprob_count > self->logprob_shown &&
           self->logprobs[self->logprob_count - 1].begin_bytes >= length) {
        self->logprob_count--;
    }
    for (uint32_t at = self->logprob_shown; at < self->logprob_count; at++) {
        if (self->logprobs[at].end_bytes > length) {
            self->logprobs[at].end_bytes = length;
        }
    }
    self->failed = self->failed || self->text.failed;
}

const char *
actor_http_choice_visible(const actor_http_choice_t *self, size_t *size_bytes)
{
    *size_bytes = self->visible_bytes;
    return self->text.data;
}

void
actor_http_choice_take(actor_http_choice_t *self)
{
    actor_http_text_drop_front(&self->text, self->visible_bytes);
    self->dropped_bytes += self->visible_bytes;
    self->visible_bytes = 0;
    self->logprob_shown += actor_http_choice_logprobs_ready(self);
}

uint32_t
actor_http_choice_logprobs_ready(const actor_http_choice_t *self)
{
    uint32_t length = self->dropped_bytes + self->visible_bytes;
    uint32_t at = self->logprob_shown;
    while (at < self->logprob_count && self->logprobs[at].end_bytes <= length) {
        at++;
    }
    return at - self->logprob_shown;
}
