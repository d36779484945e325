#include "config_cluster.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_private.h"
#include "proto_require.h"

uint32_t
config_key_index(const config_key_t *key)
{
    require(key != NULL);
    ptrdiff_t index = key - config_keys;
    require(index >= 0 && index < (ptrdiff_t)config_key_count);
    return (uint32_t)index;
}

void
config_problem_at(config_cluster_t *self, uint32_t line, uint32_t column, const char *format, ...)
{
    if (self->problem_count++ >= CONFIG_PROBLEMS_MAX) {
        return;
    }
    char *out = self->problems[self->problem_count - 1];
    int len = 0;
    const char *path = self->path != NULL ? self->path : "onepath";
    if (line > 0) {
        len = snprintf(out, CONFIG_PROBLEM_SIZE_BYTES / 2, "%s:%u:%u: ", path, line, column);
    } else {
        len = snprintf(out, CONFIG_PROBLEM_SIZE_BYTES / 2, "%s: ", path);
    }
    if (len < 0 || len >= CONFIG_PROBLEM_SIZE_BYTES / 2) {
        len = CONFIG_PROBLEM_SIZE_BYTES / 2 - 1;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(out + len, CONFIG_PROBLEM_SIZE_BYTES - (size_t)len, format, arguments);
    va_end(arguments);
}

static void
clear_cell(config_cell_t *cell)
{
    free(cell->text);
    free(cell->where);
    memset(cell, 0, sizeof *cell);
}

proto_status_t
config_cell_set(config_cell_t *cell, const char *text, uint64_t number, const char *where)
{
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    char *where_copy = NULL;
    char *text_copy = strdup(text);
    if (text_copy == NULL) {
        goto err;
    }
    if (where != NULL) {
        where_copy = strdup(where);
        if (where_copy == NULL) {
            goto err_free_text;
        }
    }
    clear_cell(cell);
    *cell = (config_cell_t){.text = text_copy, .number = number, .where = where_copy};
    return STATUS_OK;

err_free_text:
    free(text_copy);
err:
    return status;
}

proto_status_t
config_cluster_new(config_cluster_t **out_p)
{
    require(config_key_count <= CONFIG_KEYS_MAX);
    config_cluster_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < config_key_count; i++) {
        char message[CONFIG_MESSAGE_SIZE_BYTES];
        const char *initial = config_keys[i].initial;
        if (initial != NULL) {
            require(config_value_parse(&config_keys[i], initial, &self->initial[i], message) ==
                    STATUS_OK);
        }
    }
    *out_p = self;
    return STATUS_OK;
}

void
config_cluster_destroy(config_cluster_t **self_p)
{
    config_cluster_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t i = 0; i < CONFIG_KEYS_MAX; i++) {
        for (uint32_t layer = 0; layer < CONFIG_LAYERS; layer++) {
            clear_cell(&self->layers[layer][i]);
        }
        for (uint32_t node = 0; node < self->node_count; node++) {
            clear_cell(&self->nodes[node]->cells[i]);
        }
    }
    for (uint32_t node = 0; node < self->node_count; node++) {
        free(self->nodes[node]);
    }
    free(self->path);
    free(self);
    *self_p = NULL;
}

/* ---- the environment and the command line ---------------------------------------------------- */

/* The option no-prefix-cache, and its variable, say the opposite of the key prefix_cache; a flag of
 * the environment is 1 or 0. */
static const char *
flag_word(const config_key_t *key, const char *text)
{
    bool is_on = strcmp(text, "1") == 0 || strcmp(text, "true") == 0;
    if (!is_on && strcmp(text, "0") != 0 && strcmp(text, "false") != 0 && text[0] != '\0') {
        return text;
    }
    return is_on != key->inverted ? "true" : "false";
}

proto_status_t
config_cluster_read_environment(config_cluster_t *self, config_lookup_t lookup)
{
    uint32_t before = self->problem_count;
    for (uint32_t i = 0; i < config_key_count; i++) {
        const config_key_t *key = &config_keys[i];
        char variable[CONFIG_VARIABLE_SIZE_BYTES];
        char message[CONFIG_MESSAGE_SIZE_BYTES];
        uint64_t number = 0;
        config_schema_variable(key, variable);
        const char *text = config_schema_is_settable(key) ? lookup(variable) : NULL;
        if (text == NULL ||
            (key->type != CONFIG_TYPE_ENDPOINT && strncmp(text, "tcp://", 6) == 0)) {
            continue;
        }
        const char *word = key->type == CONFIG_TYPE_FLAG ? flag_word(key, text) : text;
        if (config_value_parse(key, word, &number, message) != STATUS_OK) {
            config_problem_at(self, 0, 0, "environment variable %s is '%s'; %s", variable, text,
                              key->type == CONFIG_TYPE_FLAG ? "it takes 1 or 0" : message);
            continue;
        }
        proto_status_t status =
            config_cell_set(&self->layers[CONFIG_LAYER_ENVIRONMENT][i], word, number, variable);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return self->problem_count == before ? STATUS_OK : STATUS_ERR_CONFIG;
}

proto_status_t
config_cluster_set(config_cluster_t *self, const char *name, const char *text, const char *option)
{
    const config_key_t *key = config_schema_find(name, strlen(name));
    char near[CONFIG_VARIABLE_SIZE_BYTES];
    if (key == NULL || !config_schema_is_settable(key)) {
        bool is_near = key == NULL && config_schema_nearest("", name, near);
        config_problem_at(self, 0, 0, "%s: '%s' is no key that can be set here%s%s%s", option, name,
                          is_near ? "; did you mean " : "", is_near ? near : "",
                          is_near ? "?" : "");
        return STATUS_ERR_CONFIG;
    }
    char message[CONFIG_MESSAGE_SIZE_BYTES];
    uint64_t number = 0;
    if (config_value_parse(key, text, &number, message) != STATUS_OK) {
        config_problem_at(self, 0, 0, "%s: %s is '%s'; %s", option, name, text, message);
        return STATUS_ERR_CONFIG;
    }
    return config_cell_set(&self->layers[CONFIG_LAYER_COMMAND_LINE][config_key_index(key)], text,
                           number, option);
}

proto_status_t
config_cluster_set_pair(config_cluster_t *self, const char *pair, const char *option)
{
    const char *equals = strchr(pair, '=');
    char name[CONFIG_NAME_LEN_MAX + 1];
    if (equals == NULL || (size_t)(equals - pair) >= sizeof name) {
        config_problem_at(self, 0, 0, "%s is '%s'; it takes KEY=VALUE", option, pair);
        return STATUS_ERR_CONFIG;
    }
    memcpy(name, pair, (size_t)(equals - pair));
    name[equals - pair] = '\0';
    return config_cluster_set(self, name, equals + 1, option);
}

/* ---- values ---------------------------------------------------------------------------------- */

uint32_t
config_cluster_problem_count(const config_cluster_t *self)
{
    return self->problem_count < CONFIG_PROBLEMS_MAX ? self->problem_count : CONFIG_PROBLEMS_MAX;
}

const char *
config_cluster_problem(const config_cluster_t *self, uint32_t index)
{
    require(index < config_cluster_problem_count(self));
    return self->problems[index];
}

uint32_t
config_cluster_node_count(const config_cluster_t *self)
{
    return self->node_count > 0 ? self->node_count : 1;
}

uint32_t
config_cluster_find_node(const config_cluster_t *self, const char *name)
{
    for (uint32_t i = 0; i < config_cluster_node_count(self); i++) {
        const char *text = config_cluster_text(self, i, "name");
        if (text != NULL && strcmp(text, name) == 0) {
            return i;
        }
    }
    return CONFIG_TOP;
}

static config_value_t
value_of(const config_key_t *key, const config_cell_t *cell, config_from_t from)
{
    return (config_value_t){.key = key,
                            .from = from,
                            .text = cell->text,
                            .number = cell->number,
                            .line = cell->line,
                            .column = cell->column,
                            .where = cell->where};
}

config_value_t
config_cluster_value(const config_cluster_t *self, uint32_t node, const char *name)
{
    const config_key_t *key = config_schema_find(name, strlen(name));
    uint32_t i = config_key_index(key);
    require(node == CONFIG_TOP || node < config_cluster_node_count(self));
    if (self->layers[CONFIG_LAYER_COMMAND_LINE][i].text != NULL) {
        return value_of(key, &self->layers[CONFIG_LAYER_COMMAND_LINE][i], CONFIG_FROM_COMMAND_LINE);
    }
    if (self->layers[CONFIG_LAYER_ENVIRONMENT][i].text != NULL) {
        return value_of(key, &self->layers[CONFIG_LAYER_ENVIRONMENT][i], CONFIG_FROM_ENVIRONMENT);
    }
    if (node < self->node_count && self->nodes[node]->cells[i].text != NULL) {
        return value_of(key, &self->nodes[node]->cells[i], CONFIG_FROM_NODE);
    }
    if (self->layers[CONFIG_LAYER_TOP][i].text != NULL) {
        return value_of(key, &self->layers[CONFIG_LAYER_TOP][i], CONFIG_FROM_TOP);
    }
    const char *initial = key->initial;
    if (self->node_count == 0 && node != CONFIG_TOP && strcmp(name, "name") == 0) {
        initial = "node";
    }
    return (config_value_t){.key = key, .text = initial, .number = self->initial[i]};
}

const char *
config_cluster_text(const config_cluster_t *self, uint32_t node, const char *name)
{
    return config_cluster_value(self, node, name).text;
}

uint64_t
config_cluster_number(const config_cluster_t *self, uint32_t node, const char *name)
{
    return config_cluster_value(self, node, name).number;
}

bool
config_cluster_flag(const config_cluster_t *self, uint32_t node, const char *name)
{
    return config_cluster_value(self, node, name).number != 0;
}

void
config_cluster_origin(const config_cluster_t *self, const config_value_t *value,
                      char out[CONFIG_ORIGIN_SIZE_BYTES])
{
    switch (value->from) {
    case CONFIG_FROM_DEFAULT:
        (void)snprintf(out, CONFIG_ORIGIN_SIZE_BYTES, "default");
        break;
    case CONFIG_FROM_TOP:
    case CONFIG_FROM_NODE:
        (void)snprintf(out, CONFIG_ORIGIN_SIZE_BYTES, "%s:%u:%u", self->path, value->line,
                       value->column);
        break;
    case CONFIG_FROM_ENVIRONMENT:
        (void)snprintf(out, CONFIG_ORIGIN_SIZE_BYTES, "environment variable %s", value->where);
        break;
    case CONFIG_FROM_COMMAND_LINE:
        (void)snprintf(out, CONFIG_ORIGIN_SIZE_BYTES, "%s", value->where);
        break;
    }
}

void
config_cluster_complain(config_cluster_t *self, const config_value_t *value, const char *what)
{
    const char *text = value->text != NULL ? value->text : "not set";
    if (value->from == CONFIG_FROM_TOP || value->from == CONFIG_FROM_NODE) {
        config_problem_at(self, value->line, value->column, "%s is '%s'; %s", value->key->name,
                          text, what);
    } else if (value->text == NULL || value->from == CONFIG_FROM_DEFAULT) {
        config_problem_at(self, 0, 0, "%s is %s%s%s; %s", value->key->name,
                          value->text != NULL ? "'" : "", text,
                          value->text != NULL ? "' by default" : "", what);
    } else {
        char origin[CONFIG_ORIGIN_SIZE_BYTES];
        config_cluster_origin(self, value, origin);
        config_problem_at(self, 0, 0, "%s: %s is '%s'; %s", origin, value->key->name, text, what);
    }
}
