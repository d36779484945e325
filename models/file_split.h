/* file_split.h - cuts a text into the pieces that merging never crosses.  Internal to models/.
 *
 * A splitter is a short sequence of steps from a fixed set of known patterns; each step cuts every
 * piece of the step before.  No pattern of a file is ever compiled: it is recognised or refused, so
 * no checkpoint can bring a pattern that runs for ever. */
#ifndef FILE_SPLIT_H
#define FILE_SPLIT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "file_support.h"

typedef enum {
    FILE_SPLIT_GPT2,
    FILE_SPLIT_QWEN2,
    FILE_SPLIT_LLAMA3,
    FILE_SPLIT_DIGIT,        /* every digit by itself */
    FILE_SPLIT_DIGITS,       /* runs of digits */
    FILE_SPLIT_PUNCTUATION,  /* the first step of the "default" of GGUF files */
    FILE_SPLIT_THREE_DIGITS, /* its last step: ASCII digits by threes */
    FILE_SPLIT_STEP_COUNT,
} file_split_step_t;

enum { FILE_SPLIT_STEPS_MAX = 8 };

typedef struct {
    pcre2_code *steps[FILE_SPLIT_STEPS_MAX];
    uint32_t step_count;
} file_split_t;

/* What one thread needs to run a splitter. */
typedef struct {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} file_split_work_t;

/* Adds one step.  STATUS_ERR_UNSUPPORTED if there are too many. */
MUST_CHECK proto_status_t file_split_add(file_split_t *self, file_split_step_t step,
                                         file_error_t error);
void file_split_fini(file_split_t *self);

/* The step that a tokenizer.json's regular expression means; false if it is not a known one. */
bool file_split_recognise(const char *regex, file_split_step_t *out);

MUST_CHECK proto_status_t file_split_work_init(file_split_work_t *self);
void file_split_work_fini(file_split_work_t *self);

typedef proto_status_t (*file_piece_fn)(void *context, const uint8_t *bytes, uint32_t size_bytes);

/* Calls `take` for each piece of valid UTF-8, in order; stops at the first status that is not
 * STATUS_OK and returns it. */
MUST_CHECK proto_status_t file_split_run(const file_split_t *self, file_split_work_t *work,
                                         const uint8_t *text, uint32_t size_bytes,
                                         file_piece_fn take, void *context);

#endif
