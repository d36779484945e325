/* What `onepath bench` asks: lengths from one seed, made-up words or the lines of a file. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_bench.h"

enum { LENGTH_MAX = 1000000, FILE_LINES_MAX = 1000000 };

struct cli_bench_prompts {
    const cli_bench_prompt_options_t *options;
    json_t *lines; /* NULL: made-up words */
};

/* splitmix64: https://prng.di.unimi.it/splitmix64.c, public domain. */
uint64_t
cli_bench_random_next(cli_bench_random_t *self)
{
    uint64_t z = (self->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In (0, 1]: its logarithm is finite. */
static double
random_unit(cli_bench_random_t *random)
{
    return (double)((cli_bench_random_next(random) >> 11) + 1) / 9007199254740992.0;
}

uint64_t
cli_bench_random_gap_ns(cli_bench_random_t *self, double rate)
{
    return (uint64_t)(-log(random_unit(self)) / rate * 1e9);
}

static bool
parse_number(const char **at, uint32_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long value = **at >= '0' && **at <= '9' ? strtoul(*at, &end, 10) : 0;
    if (end == NULL || errno != 0 || value > LENGTH_MAX) {
        return false;
    }
    *at = end;
    *out = (uint32_t)value;
    return true;
}

proto_status_t
cli_bench_length_parse(const char *text, cli_bench_length_t *out)
{
    cli_bench_length_t length = {0};
    const char *at = text;
    char between = '\0';
    if (strncmp(text, "normal:", 7) == 0) {
        length.spread = CLI_BENCH_NORMAL;
        at += 7;
        between = ':';
    } else if (strncmp(text, "exp:", 4) == 0) {
        length.spread = CLI_BENCH_EXPONENTIAL;
        at += 4;
    } else if (strchr(text, '-') != NULL) {
        length.spread = CLI_BENCH_UNIFORM;
        between = '-';
    }
    if (!parse_number(&at, &length.a) || length.a < 1) {
        return STATUS_ERR_INVALID;
    }
    if (between != '\0' && (*at++ != between || !parse_number(&at, &length.b))) {
        return STATUS_ERR_INVALID;
    }
    if (*at != '\0' || (length.spread == CLI_BENCH_UNIFORM && length.b < length.a)) {
        return STATUS_ERR_INVALID;
    }
    *out = length;
    return STATUS_OK;
}

static uint32_t
clamp(double value)
{
    return value < 1.0 ? 1 : value > (double)LENGTH_MAX ? LENGTH_MAX : (uint32_t)lround(value);
}

uint32_t
cli_bench_length_draw(const cli_bench_length_t *self, cli_bench_random_t *random)
{
    switch (self->spread) {
    case CLI_BENCH_FIXED:
        break;
    case CLI_BENCH_UNIFORM:
        return self->a +
               (uint32_t)(cli_bench_random_next(random) % ((uint64_t)self->b - self->a + 1));
    case CLI_BENCH_NORMAL: { /* Box and Muller */
        double radius = sqrt(-2.0 * log(random_unit(random)));
        double angle = 6.283185307179586 * random_unit(random);
        return clamp((double)self->a + (double)self->b * radius * cos(angle));
    }
    case CLI_BENCH_EXPONENTIAL:
        return clamp(-log(random_unit(random)) * (double)self->a);
    }
    return self->a;
}

/* One line of the file as the fields of a request. */
static const char *
check_line(const cli_bench_prompt_options_t *options, const json_t *line)
{
    if (!json_is_object(line)) {
        return "is no JSON object";
    }
    const json_t *prompt = json_object_get(line, "prompt");
    const json_t *messages = json_object_get(line, "messages");
    if (options->is_chat && messages == NULL && !json_is_string(prompt)) {
        return "has neither \"messages\" nor a \"prompt\" that is a text";
    }
    if (!options->is_chat && prompt == NULL) {
        return messages != NULL ? "has \"messages\": that needs --api chat" : "has no \"prompt\"";
    }
    return NULL;
}

static proto_status_t
read_file(cli_bench_prompts_t *self)
{
    const char *path = self->options->file;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        fprintf(stderr, "onepath bench: --prompts is '%s': %s\n", path, strerror(errno));
        return STATUS_ERR_CONFIG;
    }
    proto_status_t status = STATUS_OK;
    char *text = NULL;
    size_t capacity = 0;
    size_t number = 0;
    while (status == STATUS_OK && getline(&text, &capacity, file) >= 0) {
        number++;
        if (text[strspn(text, " \t\r\n")] == '\0') {
            continue;
        }
        json_error_t error;
        json_t *line = json_loads(text, JSON_REJECT_DUPLICATES, &error);
        const char *why = line == NULL ? error.text : check_line(self->options, line);
        if (why != NULL || number > FILE_LINES_MAX) {
            fprintf(stderr, "onepath bench: %s, line %zu %s%s\n", path, number,
                    line == NULL ? "is no JSON: " : "", why != NULL ? why : "is one too many");
            json_decref(line);
            status = STATUS_ERR_CONFIG;
        } else if (json_array_append_new(self->lines, line) != 0) {
            status = STATUS_ERR_NO_MEMORY;
        }
    }
    free(text);
    (void)fclose(file);
    if (status == STATUS_OK && json_array_size(self->lines) == 0) {
        fprintf(stderr, "onepath bench: %s has no line\n", path);
        status = STATUS_ERR_CONFIG;
    }
    return status;
}

proto_status_t
cli_bench_prompts_new(const cli_bench_prompt_options_t *options, cli_bench_prompts_t **out_p)
{
    cli_bench_prompts_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = options;
    if (options->file != NULL) {
        self->lines = json_array();
        proto_status_t status = self->lines != NULL ? read_file(self) : STATUS_ERR_NO_MEMORY;
        if (status != STATUS_OK) {
            cli_bench_prompts_destroy(&self);
            return status;
        }
    }
    *out_p = self;
    return STATUS_OK;
}

void
cli_bench_prompts_destroy(cli_bench_prompts_t **self_p)
{
    if (*self_p != NULL) {
        json_decref((*self_p)->lines);
        free(*self_p);
        *self_p = NULL;
    }
}

/* Words that are one token or two in the usual vocabularies.  The number of the request comes after
 * the common prefix, so that nothing but that prefix is found in a prefix cache. */
static char *
make_words(const cli_bench_prompts_t *self, uint64_t number, cli_bench_random_t *random)
{
    static const char *const words[] = {"tower", "house", "water", "light", "small", "world",
                                        "river", "stone", "green", "night", "paper", "music",
                                        "table", "cloud", "field", "north"};
    uint32_t prefix = self->options->prefix_words;
    uint32_t count = cli_bench_length_draw(&self->options->prompt_words, random);
    enum { NUMBER_LEN_MAX = 24, WORD_LEN_MAX = 6 }; /* with a space */
    char *text = malloc(((size_t)prefix + count) * WORD_LEN_MAX + NUMBER_LEN_MAX);
    if (text == NULL) {
        return NULL;
    }
    size_t length = 0;
    for (uint32_t i = 0; i < prefix + count; i++) {
        if (i == prefix) {
            length += (size_t)snprintf(text + length, NUMBER_LEN_MAX, "%s%llu", i > 0 ? " " : "",
                                       (unsigned long long)number);
            continue; /* it is the first of the words */
        }
        const char *word = words[(i < prefix ? i : cli_bench_random_next(random)) % 16];
        if (length > 0) {
            text[length++] = ' ';
        }
        memcpy(text + length, word, WORD_LEN_MAX - 1);
        length += WORD_LEN_MAX - 1;
    }
    text[length] = '\0';
    return text;
}

static json_t *
user_message(const char *text)
{
    return json_pack("[{s:s, s:s}]", "role", "user", "content", text);
}

/* Sets a field unless the line of the file has it. */
static bool
set_default(json_t *body, const char *name, json_t *value)
{
    if (value == NULL) {
        return false;
    }
    if (json_object_get(body, name) != NULL) {
        json_decref(value);
        return true;
    }
    return json_object_set_new(body, name, value) == 0;
}

static json_t *
begin_body(cli_bench_prompts_t *self, uint64_t number, cli_bench_random_t *random)
{
    bool is_chat = self->options->is_chat;
    if (self->lines == NULL) {
        char *words = make_words(self, number, random);
        json_t *value = words == NULL ? NULL : is_chat ? user_message(words) : json_string(words);
        json_t *body =
            value == NULL ? NULL : json_pack("{s:o}", is_chat ? "messages" : "prompt", value);
        free(words);
        return body;
    }
    json_t *line = json_array_get(self->lines, (size_t)(number % json_array_size(self->lines)));
    json_t *body = json_copy(line);
    if (body != NULL && is_chat && json_object_get(body, "messages") == NULL) {
        json_t *messages = user_message(json_string_value(json_object_get(line, "prompt")));
        if (messages == NULL || json_object_set_new(body, "messages", messages) != 0 ||
            json_object_del(body, "prompt") != 0) {
            json_decref(body);
            return NULL;
        }
    }
    return body;
}

char *
cli_bench_prompts_body(cli_bench_prompts_t *self, uint64_t number, cli_bench_random_t *random)
{
    const cli_bench_prompt_options_t *options = self->options;
    json_t *body = begin_body(self, number, random);
    if (body == NULL) {
        return NULL;
    }
    uint32_t tokens_max = cli_bench_length_draw(&options->tokens_max, random);
    bool good = json_object_set_new(body, "model", json_string(options->model)) == 0 &&
                json_object_set_new(body, "stream", json_boolean(options->stream)) == 0 &&
                set_default(body, "max_tokens", json_integer(tokens_max)) &&
                set_default(body, "temperature", json_integer(0));
    if (good && options->stream) {
        good = json_object_set_new(body, "stream_options",
                                   json_pack("{s:b}", "include_usage", 1)) == 0;
    }
    if (good && options->ignore_eos) {
        good = set_default(body, "ignore_eos", json_true());
    }
    char *text = good ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}
