/* A cluster file: a walk over its YAML along the schema. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_private.h"
#include "config_yaml.h"
#include "proto_require.h"

enum { MAPPING_KEYS_MAX = 128, NUMBERS_TEXT_SIZE_BYTES = CONFIG_YAML_TEXT_LEN_MAX + 1 };

/* Where the walk stands: which cells take a value, and what goes before a key's name. */
typedef struct {
    config_cell_t *cells;
    uint32_t node; /* CONFIG_TOP: the top of the file */
    char prefix[2 * CONFIG_NAME_LEN_MAX + 4];
} place_t;

typedef struct {
    config_cluster_t *cluster;
    config_yaml_t *yaml;
    config_yaml_event_t event;
} walk_t;

/* The keys that one mapping had so far: a second one of the same name would win silently. */
typedef struct {
    char *names[MAPPING_KEYS_MAX];
    uint32_t lines[MAPPING_KEYS_MAX];
    uint32_t count;
} seen_t;

static proto_status_t read_mapping(walk_t *walk, const place_t *place);

static proto_status_t
next(walk_t *walk)
{
    proto_status_t status = config_yaml_next(walk->yaml, &walk->event);
    if (status == STATUS_ERR_MALFORMED) {
        config_problem_at(walk->cluster, walk->event.line, walk->event.column, "%s",
                          config_yaml_problem(walk->yaml));
    }
    return status;
}

/* Passes over a value whose first event is the current one. */
static proto_status_t
skip(walk_t *walk)
{
    uint32_t depth = 0;
    for (;;) {
        switch (walk->event.kind) {
        case CONFIG_YAML_MAPPING:
        case CONFIG_YAML_SEQUENCE:
            depth++;
            break;
        case CONFIG_YAML_MAPPING_END:
        case CONFIG_YAML_SEQUENCE_END:
            depth--;
            break;
        case CONFIG_YAML_SCALAR:
            break;
        case CONFIG_YAML_END:
            return STATUS_OK;
        }
        if (depth == 0) {
            return STATUS_OK;
        }
        proto_status_t status = next(walk);
        if (status != STATUS_OK) {
            return status;
        }
    }
}

/* Words that YAML 1.1 reads as something else than text. */
static bool
is_one_of(const char *text, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcasecmp(text, *words) == 0) {
            return true;
        }
    }
    return false;
}

/* What is wrong with a scalar before its type is looked at; NULL: nothing. */
static const char *
check_form(const config_key_t *key, const config_yaml_event_t *event)
{
    static const char *const nulls[] = {"", "~", "null", NULL};
    static const char *const booleans[] = {"yes", "no", "on", "off", "y", "n", NULL};
    bool is_text = key->type == CONFIG_TYPE_TEXT || key->type == CONFIG_TYPE_CHOICE ||
                   key->type == CONFIG_TYPE_ENDPOINT;
    if (event->is_plain && is_one_of(event->text, nulls)) {
        return "write a value, or leave the key out for the default";
    }
    if (event->is_plain && key->type == CONFIG_TYPE_FLAG && is_one_of(event->text, booleans)) {
        return "write true or false";
    }
    if (event->is_plain && is_text && is_one_of(event->text, booleans)) {
        return "YAML takes this for true or false; put it in quotes";
    }
    if (!event->is_plain && !is_text) {
        return "write it without quotes";
    }
    return NULL;
}

static proto_status_t
put(walk_t *walk, const place_t *place, const config_key_t *key, const char *text)
{
    char message[CONFIG_MESSAGE_SIZE_BYTES];
    uint64_t number = 0;
    config_cell_t *cell = &place->cells[config_key_index(key)];
    if (config_value_parse(key, text, &number, message) != STATUS_OK) {
        config_problem_at(walk->cluster, walk->event.line, walk->event.column, "%s is '%.200s'; %s",
                          key->name, text, message);
        return STATUS_OK;
    }
    proto_status_t status = config_cell_set(cell, text, number, NULL);
    cell->line = walk->event.line;
    cell->column = walk->event.column;
    return status;
}

/* A list of numbers becomes the text that its option takes: "1,2,4". */
static proto_status_t
read_numbers(walk_t *walk, const place_t *place, const config_key_t *key)
{
    char text[NUMBERS_TEXT_SIZE_BYTES] = "";
    size_t text_len = 0;
    uint32_t line = walk->event.line;
    uint32_t column = walk->event.column;
    bool ok = true;
    for (;;) {
        proto_status_t status = next(walk);
        if (status != STATUS_OK) {
            return status;
        }
        if (walk->event.kind == CONFIG_YAML_SEQUENCE_END) {
            break;
        }
        bool fits = text_len + walk->event.text_len + 2 < sizeof text;
        if (ok && (walk->event.kind != CONFIG_YAML_SCALAR || !walk->event.is_plain || !fits)) {
            config_problem_at(walk->cluster, walk->event.line, walk->event.column,
                              "%s takes a list of numbers, such as [1, 2, 4]", key->name);
            ok = false;
        }
        if (ok) {
            text_len += (size_t)snprintf(text + text_len, sizeof text - text_len, "%s%s",
                                         text_len > 0 ? "," : "", walk->event.text);
        }
        status = skip(walk);
        if (status != STATUS_OK) {
            return status;
        }
    }
    walk->event.line = line;
    walk->event.column = column;
    return ok ? put(walk, place, key, text) : STATUS_OK;
}

static proto_status_t
read_value(walk_t *walk, const place_t *place, const config_key_t *key)
{
    bool takes_list = key->type == CONFIG_TYPE_NUMBERS;
    if (takes_list && walk->event.kind == CONFIG_YAML_SEQUENCE) {
        return read_numbers(walk, place, key);
    }
    if (walk->event.kind != CONFIG_YAML_SCALAR || takes_list) {
        config_problem_at(walk->cluster, walk->event.line, walk->event.column, "%s takes %s",
                          key->name,
                          takes_list ? "a list of numbers, such as [1, 2, 4]"
                                     : "one value, no list and no further keys");
        return skip(walk);
    }
    const char *form = check_form(key, &walk->event);
    if (form != NULL) {
        config_problem_at(walk->cluster, walk->event.line, walk->event.column, "%s is '%.200s'; %s",
                          key->name, walk->event.text, form);
        return STATUS_OK;
    }
    return put(walk, place, key, walk->event.text);
}

static proto_status_t
read_nodes(walk_t *walk)
{
    config_cluster_t *cluster = walk->cluster;
    if (walk->event.kind != CONFIG_YAML_SEQUENCE) {
        config_problem_at(cluster, walk->event.line, walk->event.column,
                          "nodes takes a list; begin each node with '- name: NAME'");
        return skip(walk);
    }
    for (;;) {
        proto_status_t status = next(walk);
        if (status != STATUS_OK || walk->event.kind == CONFIG_YAML_SEQUENCE_END) {
            return status;
        }
        bool is_full = cluster->node_count == CONFIG_NODES_MAX;
        if (walk->event.kind != CONFIG_YAML_MAPPING || is_full) {
            config_problem_at(cluster, walk->event.line, walk->event.column, "%s",
                              is_full ? "a cluster has at most 64 nodes"
                                      : "a node takes keys; begin it with '- name: NAME'");
            status = skip(walk);
            if (status != STATUS_OK) {
                return status;
            }
            continue;
        }
        config_node_t *node = calloc(1, sizeof *node);
        if (node == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        node->line = walk->event.line;
        node->column = walk->event.column;
        const place_t place = {node->cells, cluster->node_count, ""};
        cluster->nodes[cluster->node_count++] = node;
        status = read_mapping(walk, &place);
        if (status != STATUS_OK) {
            return status;
        }
    }
}

/* "cache" at the top: its keys follow, one level deeper. */
static proto_status_t
read_section(walk_t *walk, const place_t *place, const char *name)
{
    if (walk->event.kind == CONFIG_YAML_SCALAR && walk->event.is_plain &&
        walk->event.text_len == 0) {
        return STATUS_OK; /* all its keys were made comments */
    }
    if (walk->event.kind != CONFIG_YAML_MAPPING) {
        config_problem_at(walk->cluster, walk->event.line, walk->event.column,
                          "%s takes keys of its own, on lines below it that are indented", name);
        return skip(walk);
    }
    place_t below = *place;
    (void)snprintf(below.prefix, sizeof below.prefix, "%.*s.", CONFIG_NAME_LEN_MAX, name);
    return read_mapping(walk, &below);
}

static void
complain_of_place(walk_t *walk, const place_t *place, const config_key_t *key)
{
    const char *where = place->node == CONFIG_TOP ? "it stands in an entry of nodes"
                                                  : "it stands at the top of the file";
    config_problem_at(walk->cluster, walk->event.line, walk->event.column, "%s is not set here; %s",
                      key->name, where);
}

static void
complain_of_unknown(walk_t *walk, const place_t *place)
{
    char near[CONFIG_VARIABLE_SIZE_BYTES];
    const char *word = walk->event.text;
    bool is_near = config_schema_nearest(place->prefix, word, near);
    bool is_merge = strcmp(word, "<<") == 0;
    config_problem_at(walk->cluster, walk->event.line, walk->event.column, "%s '%s%.200s'%s%s%s",
                      is_merge ? "merge keys are not read; write the values out:" : "unknown key",
                      place->prefix, word, is_near ? "; did you mean " : "", is_near ? near : "",
                      is_near ? "?" : "");
}

/* One key, which is the current event, and its value. */
static proto_status_t
read_pair(walk_t *walk, const place_t *place)
{
    char name[4 * CONFIG_NAME_LEN_MAX];
    const char *word = walk->event.text;
    bool is_top = place->prefix[0] == '\0';
    bool is_short = walk->event.text_len <= CONFIG_NAME_LEN_MAX;
    int name_len = snprintf(name, sizeof name, "%s%s", place->prefix, is_short ? word : "");
    require(name_len >= 0 && (size_t)name_len < sizeof name);
    bool is_nodes = is_top && place->node == CONFIG_TOP && strcmp(word, "nodes") == 0;
    bool is_section = is_top && is_short && config_schema_is_section(word, walk->event.text_len);
    const config_key_t *key =
        is_top && strchr(word, '.') != NULL ? NULL : config_schema_find(name, (size_t)name_len);
    bool misplaced = key != NULL && key->place != CONFIG_PLACE_SHARED &&
                     (key->place != CONFIG_PLACE_NODE) != (place->node == CONFIG_TOP);
    if (misplaced) {
        complain_of_place(walk, place, key);
    } else if (!is_nodes && !is_section && key == NULL) {
        complain_of_unknown(walk, place);
    }
    proto_status_t status = next(walk);
    if (status != STATUS_OK) {
        return status;
    }
    if (is_nodes) {
        return read_nodes(walk);
    }
    if (is_section) {
        return read_section(walk, place, name);
    }
    return key != NULL && !misplaced ? read_value(walk, place, key) : skip(walk);
}

/* Notes a key; true if the mapping had it before. */
static proto_status_t
note(walk_t *walk, seen_t *seen, bool *is_double)
{
    const config_yaml_event_t *event = &walk->event;
    *is_double = false;
    for (uint32_t i = 0; i < seen->count; i++) {
        if (strcmp(seen->names[i], event->text) == 0) {
            *is_double = true;
            config_problem_at(walk->cluster, event->line, event->column,
                              "'%.200s' stands here twice, first on line %u; remove one",
                              event->text, seen->lines[i]);
            return STATUS_OK;
        }
    }
    if (seen->count == MAPPING_KEYS_MAX) {
        config_problem_at(walk->cluster, event->line, event->column, "too many keys");
        return STATUS_ERR_MALFORMED;
    }
    seen->names[seen->count] = strdup(event->text);
    if (seen->names[seen->count] == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    seen->lines[seen->count++] = event->line;
    return STATUS_OK;
}

/* A mapping whose begin is the current event, up to its end. */
static proto_status_t
read_mapping(walk_t *walk, const place_t *place)
{
    seen_t seen = {.count = 0};
    proto_status_t status = STATUS_OK;
    while (status == STATUS_OK) {
        status = next(walk);
        if (status != STATUS_OK || walk->event.kind == CONFIG_YAML_MAPPING_END) {
            break;
        }
        bool is_double = false;
        if (walk->event.kind != CONFIG_YAML_SCALAR) {
            config_problem_at(walk->cluster, walk->event.line, walk->event.column,
                              "a key is one word");
            status = skip(walk);
            is_double = true;
        } else {
            status = note(walk, &seen, &is_double);
        }
        if (status == STATUS_OK && is_double) {
            status = next(walk);
            status = status == STATUS_OK ? skip(walk) : status;
        } else if (status == STATUS_OK) {
            status = read_pair(walk, place);
        }
    }
    for (uint32_t i = 0; i < seen.count; i++) {
        free(seen.names[i]);
    }
    return status;
}

static proto_status_t
read_document(walk_t *walk)
{
    proto_status_t status = next(walk);
    if (status != STATUS_OK) {
        return status;
    }
    if (walk->event.kind == CONFIG_YAML_END) {
        config_problem_at(walk->cluster, 1, 1, "the file is empty; begin it with 'model: PATH'");
        return STATUS_OK;
    }
    if (walk->event.kind != CONFIG_YAML_MAPPING) {
        config_problem_at(walk->cluster, walk->event.line, walk->event.column,
                          "a cluster file is a list of keys and values, such as 'model: PATH'");
        return STATUS_OK;
    }
    const place_t top = {walk->cluster->layers[CONFIG_LAYER_TOP], CONFIG_TOP, ""};
    status = read_mapping(walk, &top);
    return status == STATUS_OK ? next(walk) : status; /* what stands behind it may be refused */
}

proto_status_t
config_cluster_read_bytes(config_cluster_t *self, const char *path, const void *bytes,
                          size_t size_bytes)
{
    require(self->path == NULL);
    uint32_t before = self->problem_count;
    walk_t walk = {.cluster = self};
    self->path = strdup(path);
    if (self->path == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    if (size_bytes > CONFIG_FILE_SIZE_BYTES_MAX) {
        config_problem_at(self, 0, 0, "the file has more than 1 MiB");
        return STATUS_ERR_CONFIG;
    }
    proto_status_t status = config_yaml_new(bytes, size_bytes, &walk.yaml);
    if (status != STATUS_OK) {
        return status;
    }
    status = read_document(&walk);
    config_yaml_destroy(&walk.yaml);
    if (status == STATUS_ERR_NO_MEMORY) {
        return status;
    }
    return self->problem_count == before ? STATUS_OK : STATUS_ERR_CONFIG;
}

/* Opened once, looked at, read: what is checked is what is read. */
static proto_status_t
read_all(config_cluster_t *self, const char *path, char **bytes, size_t *size_bytes)
{
    proto_status_t status = STATUS_ERR_CONFIG;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0) {
        config_problem_at(self, 0, 0, "%s cannot be opened: %s", path, strerror(errno));
        goto err;
    }
    if (!S_ISREG(info.st_mode)) {
        config_problem_at(self, 0, 0, "%s is no file", path);
        goto err;
    }
    *bytes = malloc(CONFIG_FILE_SIZE_BYTES_MAX + 1);
    if (*bytes == NULL) {
        status = STATUS_ERR_NO_MEMORY;
        goto err;
    }
    ssize_t count = 1;
    for (*size_bytes = 0; *size_bytes <= CONFIG_FILE_SIZE_BYTES_MAX && count > 0;) {
        count = read(fd, *bytes + *size_bytes, CONFIG_FILE_SIZE_BYTES_MAX + 1 - *size_bytes);
        *size_bytes += count > 0 ? (size_t)count : 0;
    }
    if (count < 0) {
        config_problem_at(self, 0, 0, "%s cannot be read: %s", path, strerror(errno));
        free(*bytes);
        *bytes = NULL;
        goto err;
    }
    status = STATUS_OK;

err:
    if (fd >= 0) {
        (void)close(fd);
    }
    return status;
}

proto_status_t
config_cluster_read_file(config_cluster_t *self, const char *path)
{
    char *bytes = NULL;
    size_t size_bytes = 0;
    proto_status_t status = read_all(self, path, &bytes, &size_bytes);
    if (status == STATUS_OK) {
        status = config_cluster_read_bytes(self, path, bytes, size_bytes);
    }
    free(bytes);
    return status;
}
