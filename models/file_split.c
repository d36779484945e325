#include "file_split.h"

#include "proto_require.h"

/* White space by its list of code points: PCRE2's \s adds U+180E, which Unicode has taken out. */
#define WS                                                                                         \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES "[" WS "]+(?![^" WS "])|[" WS "]+"
#define WORDS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS " ?[^" WS "\\p{L}\\p{N}]+"
#define LINES "[" WS "]*[\\r\\n]+"

static const char *const PATTERNS[FILE_SPLIT_STEP_COUNT] = {
    [FILE_SPLIT_GPT2] = CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+|" SIGNS "|" SPACES,
    [FILE_SPLIT_QWEN2] =
        "(?i:" CONTRACTIONS ")|" WORDS "|\\p{N}|" SIGNS "[\\r\\n]*|" LINES "|" SPACES,
    [FILE_SPLIT_LLAMA3] =
        "(?i:" CONTRACTIONS ")|" WORDS "|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" LINES "|" SPACES,
    [FILE_SPLIT_DIGIT] = "\\p{N}",
    [FILE_SPLIT_DIGITS] = "\\p{N}+",
    [FILE_SPLIT_PUNCTUATION] = "[\\p{P}\\$\\+<=>\\^~\\|]+",
    [FILE_SPLIT_THREE_DIGITS] = "[0-9][0-9][0-9]",
};

/* How tokenizer.json files spell the same patterns. */
static const struct {
    const char *regex;
    file_split_step_t step;
} KNOWN[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     FILE_SPLIT_GPT2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     FILE_SPLIT_QWEN2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     FILE_SPLIT_LLAMA3},
    {"\\p{N}", FILE_SPLIT_DIGIT},
    {"\\p{N}+", FILE_SPLIT_DIGITS},
};

bool
file_split_recognise(const char *regex, file_split_step_t *out)
{
    for (size_t i = 0; i < sizeof KNOWN / sizeof KNOWN[0]; i++) {
        if (strcmp(KNOWN[i].regex, regex) == 0) {
            *out = KNOWN[i].step;
            return true;
        }
    }
    return false;
}

proto_status_t
file_split_add(file_split_t *self, file_split_step_t step, file_error_t error)
{
    require((unsigned)step < FILE_SPLIT_STEP_COUNT);
    if (self->step_count == FILE_SPLIT_STEPS_MAX) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "tokenizer: more than %d pre-tokenizer steps", FILE_SPLIT_STEPS_MAX);
    }
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)PATTERNS[step], PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &code, &offset, NULL);
    if (compiled == NULL) {
        return file_error_set(error, STATUS_ERR_INTERNAL,
                              "tokenizer: pattern %d does not compile (code %d at %zu)", step, code,
                              (size_t)offset);
    }
    (void)pcre2_jit_compile(compiled,
                            PCRE2_JIT_COMPLETE); /* without it matching is slower, no more */
    self->steps[self->step_count++] = compiled;
    return STATUS_OK;
}

void
file_split_fini(file_split_t *self)
{
    for (uint32_t i = 0; i < self->step_count; i++) {
        pcre2_code_free(self->steps[i]);
    }
    *self = (file_split_t){0};
}

proto_status_t
file_split_work_init(file_split_work_t *self)
{
    self->match = pcre2_match_data_create(4, NULL);
    self->context = pcre2_match_context_create(NULL);
    self->stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)1 << 20, NULL);
    if (self->match == NULL || self->context == NULL) {
        file_split_work_fini(self);
        return STATUS_ERR_NO_MEMORY;
    }
    if (self->stack != NULL) { /* NULL: PCRE2 was built without JIT */
        pcre2_jit_stack_assign(self->context, NULL, self->stack);
    }
    return STATUS_OK;
}

void
file_split_work_fini(file_split_work_t *self)
{
    pcre2_match_data_free(self->match);
    pcre2_match_context_free(self->context);
    pcre2_jit_stack_free(self->stack);
    *self = (file_split_work_t){0};
}

typedef struct {
    const file_split_t *split;
    file_split_work_t *work;
    file_piece_fn take;
    void *context;
} run_t;

/* A piece is the whole subject of the next step: its pattern looks ahead no further than its end,
 * as a sequence of pre-tokenizers does.  Recursion is as deep as there are steps. */
static proto_status_t
run_step(const run_t *run, uint32_t step, const uint8_t *text, uint32_t size_bytes)
{
    if (size_bytes == 0) {
        return STATUS_OK;
    }
    if (step == run->split->step_count) {
        return run->take(run->context, text, size_bytes);
    }
    uint32_t done = 0; /* everything before it was handed on */
    uint32_t from = 0;
    while (from < size_bytes) {
        int count = pcre2_match(run->split->steps[step], text, size_bytes, from, PCRE2_NO_UTF_CHECK,
                                run->work->match, run->work->context);
        if (count == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (count < 0) {
            return STATUS_ERR_TOO_LARGE; /* PCRE2's own limits of steps and memory */
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(run->work->match);
        uint32_t begin = (uint32_t)range[0];
        uint32_t end = (uint32_t)range[1];
        require(begin >= from && end > begin && end <= size_bytes);
        proto_status_t status = run_step(run, step + 1, text + done, begin - done);
        if (status == STATUS_OK) {
            status = run_step(run, step + 1, text + begin, end - begin);
        }
        if (status != STATUS_OK) {
            return status;
        }
        done = end;
        from = end;
    }
    return run_step(run, step + 1, text + done, size_bytes - done);
}

proto_status_t
file_split_run(const file_split_t *self, file_split_work_t *work, const uint8_t *text,
               uint32_t size_bytes, file_piece_fn take, void *context)
{
    run_t run = {self, work, take, context};
    return run_step(&run, 0, text, size_bytes);
}
