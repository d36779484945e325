/* Texts of /proc and /sys, taken apart; pure. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_doctor.h"

static const char *
find_line(const char *text, const char *name)
{
    size_t name_len = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, name_len) == 0) {
            const char *at = line + name_len;
            at += strspn(at, " \t");
            if (*at == ':') {
                return at + 1;
            }
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return NULL;
}

bool
cli_doctor_field(const char *text, const char *name, char *out, size_t out_size_bytes)
{
    const char *at = find_line(text, name);
    if (at == NULL) {
        return false;
    }
    at += strspn(at, " \t");
    size_t length = strcspn(at, "\r\n");
    while (length > 0 && isspace((unsigned char)at[length - 1])) {
        length--;
    }
    (void)snprintf(out, out_size_bytes, "%.*s", (int)length, at);
    return true;
}

bool
cli_doctor_amount(const char *text, const char *name, uint64_t *out)
{
    char value[64];
    if (!cli_doctor_field(text, name, value, sizeof value) || !isdigit((unsigned char)value[0])) {
        return false;
    }
    errno = 0;
    char *end = NULL;
    uint64_t amount = strtoull(value, &end, 10);
    bool has_unit = strcmp(end, " kB") == 0;
    if (errno != 0 || (*end != '\0' && !has_unit) || (has_unit && amount > UINT64_MAX >> 10)) {
        return false;
    }
    *out = has_unit ? amount << 10 : amount;
    return true;
}

uint32_t
cli_doctor_processor_count(const char *cpuinfo)
{
    uint32_t count = 0;
    for (const char *at = find_line(cpuinfo, "processor"); at != NULL;
         at = find_line(at, "processor")) {
        count++;
        at = strchr(at, '\n');
        if (at == NULL) {
            break;
        }
        at++;
    }
    return count;
}

bool
cli_doctor_has_flag(const char *cpuinfo, const char *flag)
{
    const char *at = find_line(cpuinfo, "flags");
    at = at != NULL ? at : find_line(cpuinfo, "Features"); /* of ARM */
    size_t flag_len = strlen(flag);
    while (at != NULL && *at != '\0' && *at != '\n') {
        at += strspn(at, " \t");
        size_t length = strcspn(at, " \t\r\n");
        if (length == flag_len && memcmp(at, flag, length) == 0) {
            return true;
        }
        if (length == 0) {
            break;
        }
        at += length;
    }
    return false;
}

bool
cli_doctor_quota(const char *cpu_max, double *out)
{
    if (cpu_max == NULL) {
        return false;
    }
    char *end = NULL;
    double quota = strtod(cpu_max, &end);
    double period = end != cpu_max ? strtod(end, NULL) : 0;
    if (!(quota > 0) || !(period > 0)) {
        return false; /* "max 100000", or -1 in the first version */
    }
    *out = quota / period;
    return true;
}

bool
cli_doctor_limit(const char *text, uint64_t *out)
{
    if (text == NULL || !isdigit((unsigned char)text[0])) {
        return false;
    }
    errno = 0;
    uint64_t limit = strtoull(text, NULL, 10);
    if (errno != 0 || limit >= UINT64_C(1) << 60) {
        return false;
    }
    *out = limit;
    return true;
}

/* True if the comma-separated list has the word. */
static bool
lists(const char *list, size_t list_len, const char *word)
{
    size_t word_len = strlen(word);
    for (size_t at = 0; at <= list_len;) {
        size_t length = 0;
        while (at + length < list_len && list[at + length] != ',') {
            length++;
        }
        if (length == word_len && memcmp(list + at, word, length) == 0) {
            return true;
        }
        at += length + 1;
    }
    return false;
}

bool
cli_doctor_cgroup_path(const char *cgroup, const char *controller, char *out, size_t out_size_bytes)
{
    for (const char *line = cgroup; line != NULL && *line != '\0';) {
        const char *first = strchr(line, ':');
        const char *second = first != NULL ? strchr(first + 1, ':') : NULL;
        const char *end = line + strcspn(line, "\n");
        if (second != NULL && second < end) {
            size_t list_len = (size_t)(second - first) - 1;
            bool matches =
                controller == NULL ? list_len == 0 : lists(first + 1, list_len, controller);
            if (matches) {
                (void)snprintf(out, out_size_bytes, "%.*s", (int)(end - second - 1), second + 1);
                return true;
            }
        }
        line = *end == '\n' ? end + 1 : NULL;
    }
    return false;
}

bool
cli_doctor_choice(const char *text, char *out, size_t out_size_bytes)
{
    const char *begin = text != NULL ? strchr(text, '[') : NULL;
    const char *end = begin != NULL ? strchr(begin, ']') : NULL;
    if (end == NULL) {
        return false;
    }
    (void)snprintf(out, out_size_bytes, "%.*s", (int)(end - begin - 1), begin + 1);
    return true;
}

uint64_t
cli_doctor_cache_bytes(const file_config_t *config, uint64_t token_count)
{
    enum { VALUE_SIZE_BYTES = 2 };
    uint64_t row_values = config->latent_dim > 0
                              ? (uint64_t)config->latent_dim + config->rope_dim
                              : UINT64_C(2) * config->kv_head_count * config->head_dim;
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < config->layer_count; layer++) {
        uint64_t rows = token_count;
        if (config->layer_kinds[layer] == FILE_LAYER_LINEAR) {
            continue; /* a state of one size, whatever the length */
        }
        if (config->layer_kinds[layer] == FILE_LAYER_SLIDING && rows > config->sliding_window) {
            rows = config->sliding_window;
        }
        sum += rows * row_values * VALUE_SIZE_BYTES;
    }
    return sum;
}

const char *
cli_doctor_bytes(uint64_t size_bytes, char out[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)size_bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(out, 32, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}
