#include "config_value.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "proto_require.h"

/* Digits alone, without sign, space or a leading zero (which YAML 1.1 reads as octal). */
static bool
parse_number(const char *text, size_t text_len, uint64_t *out)
{
    uint64_t value = 0;
    if (text_len == 0 || (text[0] == '0' && text_len > 1)) {
        return false;
    }
    for (size_t i = 0; i < text_len; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return false;
        }
        unsigned digit = (unsigned)(text[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

proto_status_t
config_size_parse(const char *text, uint64_t *size_bytes)
{
    size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits;
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0},    {"k", 10},   {"K", 10},   {"m", 20},  {"M", 20},
                 {"g", 30},  {"G", 30},   {"Ki", 10},  {"Mi", 20}, {"Gi", 30},
                 {"KB", 10}, {"MB", 20},  {"GB", 30},  {"kB", 10}, {"KiB", 10},
                 {"mB", 20}, {"MiB", 20}, {"GiB", 30}, {"gB", 30}};
    uint64_t value = 0;
    if (!parse_number(text, digits, &value)) {
        return STATUS_ERR_INVALID;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(unit, units[i].name) == 0) {
            if (value > (UINT64_MAX >> units[i].shift)) {
                return STATUS_ERR_INVALID;
            }
            *size_bytes = value << units[i].shift;
            return STATUS_OK;
        }
    }
    return STATUS_ERR_INVALID;
}

void
config_size_print(uint64_t size_bytes, char out[24])
{
    static const char units[] = "KMG";
    unsigned unit = 0;
    while (unit < 3 && size_bytes != 0 && size_bytes % 1024 == 0) {
        size_bytes /= 1024;
        unit++;
    }
    (void)snprintf(out, 24, unit == 0 ? "%llu" : "%llu%c", (unsigned long long)size_bytes,
                   units[unit == 0 ? 0 : unit - 1]);
}

bool
config_endpoint_tcp(const char *text, char host[256], uint32_t *port)
{
    static const char scheme[] = "tcp://";
    if (strncmp(text, scheme, strlen(scheme)) != 0) {
        return false;
    }
    text += strlen(scheme);
    const char *colon = strrchr(text, ':');
    uint64_t number = 0;
    if (colon == NULL || colon == text || (size_t)(colon - text) >= 256 ||
        !parse_number(colon + 1, strlen(colon + 1), &number) || number < 1 || number > 65535) {
        return false;
    }
    size_t host_len = (size_t)(colon - text);
    if (strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]*") <
        host_len) {
        return false;
    }
    memcpy(host, text, host_len);
    host[host_len] = '\0';
    *port = (uint32_t)number;
    return true;
}

bool
config_host_is_loopback(const char *host)
{
    struct in_addr address;
    if (strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 || strcmp(host, "::1") == 0) {
        return true;
    }
    return inet_pton(AF_INET, host, &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

static bool
is_endpoint(const char *text)
{
    static const char scheme[] = "ipc:///";
    char host[256];
    uint32_t port = 0;
    if (strncmp(text, scheme, strlen(scheme)) == 0) {
        struct sockaddr_un address;
        size_t path_len = strlen(text) - strlen(scheme) + 1;
        return path_len > 1 && path_len < sizeof address.sun_path;
    }
    return config_endpoint_tcp(text, host, &port);
}

static bool
is_choice(const config_key_t *key, const char *text)
{
    size_t text_len = strlen(text);
    for (const char *at = key->choices; text_len > 0 && *at != '\0';) {
        size_t word_len = strcspn(at, " ");
        if (word_len == text_len && memcmp(at, text, text_len) == 0) {
            return true;
        }
        at += word_len + strspn(at + word_len, " ");
    }
    return false;
}

static bool
is_ascending(const config_key_t *key, const char *text)
{
    uint64_t before = 0;
    uint32_t count = 0;
    for (const char *at = text; at != NULL;) {
        size_t word_len = strcspn(at, ",");
        uint64_t number = 0;
        if (!parse_number(at, word_len, &number) || number < key->min || number > key->max ||
            number <= before || ++count > CONFIG_NUMBERS_MAX) {
            return false;
        }
        before = number;
        at = at[word_len] == ',' ? at + word_len + 1 : NULL;
    }
    return true;
}

static proto_status_t
refuse_choice(const config_key_t *key, const char *text, char *message)
{
    const char *nearest = NULL;
    size_t nearest_len = 0;
    unsigned least = 3;
    for (const char *at = key->choices; *at != '\0';) {
        size_t word_len = strcspn(at, " ");
        unsigned away = config_distance(text, strlen(text), at, word_len);
        if (away < least && away < word_len) {
            least = away;
            nearest = at;
            nearest_len = word_len;
        }
        at += word_len + strspn(at + word_len, " ");
    }
    int len = snprintf(message, CONFIG_MESSAGE_SIZE_BYTES, "it takes one of: %s", key->choices);
    if (nearest != NULL && len > 0 && len < CONFIG_MESSAGE_SIZE_BYTES) {
        (void)snprintf(message + len, (size_t)(CONFIG_MESSAGE_SIZE_BYTES - len),
                       "; did you mean %.*s?", (int)nearest_len, nearest);
    }
    return STATUS_ERR_INVALID;
}

static proto_status_t
refuse(const config_key_t *key, char *message)
{
    char low[24];
    char high[24];
    int size = CONFIG_MESSAGE_SIZE_BYTES;
    switch (key->type) {
    case CONFIG_TYPE_FLAG:
        (void)snprintf(message, (size_t)size, "it takes true or false");
        break;
    case CONFIG_TYPE_NUMBER:
        (void)snprintf(message, (size_t)size, "it takes a number from %llu to %llu",
                       (unsigned long long)key->min, (unsigned long long)key->max);
        break;
    case CONFIG_TYPE_SIZE:
        config_size_print(key->min, low);
        config_size_print(key->max, high);
        if (key->max == UINT64_MAX) {
            (void)snprintf(message, (size_t)size, "it takes a size of at least %s, such as 4G",
                           low);
        } else {
            (void)snprintf(message, (size_t)size, "it takes a size from %s to %s, such as 64M", low,
                           high);
        }
        break;
    case CONFIG_TYPE_NUMBERS:
        (void)snprintf(message, (size_t)size,
                       "it takes ascending numbers from %llu to %llu, at most %d",
                       (unsigned long long)key->min, (unsigned long long)key->max,
                       CONFIG_NUMBERS_MAX);
        break;
    case CONFIG_TYPE_ENDPOINT:
        (void)snprintf(message, (size_t)size,
                       "it takes ipc:///PATH (at most 107 bytes) or tcp://HOST:PORT");
        break;
    case CONFIG_TYPE_CHOICE:
    case CONFIG_TYPE_TEXT:
        (void)snprintf(message, (size_t)size, "it takes a text that is not empty");
        break;
    }
    return STATUS_ERR_INVALID;
}

proto_status_t
config_value_parse(const config_key_t *key, const char *text, uint64_t *number,
                   char message[CONFIG_MESSAGE_SIZE_BYTES])
{
    bool ok = false;
    *number = 0;
    switch (key->type) {
    case CONFIG_TYPE_FLAG:
        *number = strcmp(text, "true") == 0 ? 1 : 0;
        ok = *number == 1 || strcmp(text, "false") == 0;
        break;
    case CONFIG_TYPE_NUMBER:
        ok = parse_number(text, strlen(text), number) && *number >= key->min && *number <= key->max;
        break;
    case CONFIG_TYPE_SIZE:
        ok = config_size_parse(text, number) == STATUS_OK && *number >= key->min &&
             *number <= key->max;
        break;
    case CONFIG_TYPE_TEXT:
        ok = text[0] != '\0';
        break;
    case CONFIG_TYPE_CHOICE:
        if (!is_choice(key, text)) {
            return refuse_choice(key, text, message);
        }
        ok = true;
        break;
    case CONFIG_TYPE_NUMBERS:
        ok = is_ascending(key, text);
        break;
    case CONFIG_TYPE_ENDPOINT:
        ok = is_endpoint(text);
        break;
    }
    return ok ? STATUS_OK : refuse(key, message);
}
