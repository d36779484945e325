/* A cluster's configuration as text that reads back as the same. */
#include <stdio.h>
#include <string.h>

#include "config_private.h"
#include "proto_require.h"

enum { LINE_SIZE_BYTES = 8 * CONFIG_ORIGIN_SIZE_BYTES, ORIGIN_COLUMN = 44 };

typedef struct {
    const config_cluster_t *cluster;
    const config_show_t *show;
    config_emit_t emit;
    void *context;
    const char *indent;
    bool is_first_of_node; /* "- " stands before it */
    char section[CONFIG_NAME_LEN_MAX + 1];
} printer_t;

/* True if a text can stand without quotes and is still a text, for us and for other readers. */
static bool
is_plain(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char *const words[] = {"yes", "no",   "on",    "off", "y",
                                        "n",   "true", "false", "null"};
    if (strspn(text, letters) == 0 && text[0] != '/') {
        return false;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            return false;
        }
    }
    for (const char *at = text; *at != '\0'; at++) {
        bool is_colon = *at == ':' && at[1] != '\0';
        if (strchr(letters, *at) == NULL && strchr("0123456789_-+=./", *at) == NULL && !is_colon) {
            return false;
        }
    }
    return true;
}

static void
print_text(char *out, const char *text)
{
    size_t at = 0;
    out[at++] = '"';
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            out[at++] = '\\';
        }
        out[at++] = *text;
    }
    out[at++] = '"';
    out[at] = '\0';
}

static void
print_value(const config_value_t *value, char out[2 * CONFIG_ORIGIN_SIZE_BYTES * 4])
{
    require(value->text == NULL || strlen(value->text) <= 1024);
    if (value->text == NULL) {
        out[0] = '\0';
        return;
    }
    switch (value->key->type) {
    case CONFIG_TYPE_FLAG:
    case CONFIG_TYPE_NUMBER:
    case CONFIG_TYPE_SIZE:
        (void)snprintf(out, LINE_SIZE_BYTES, "%s", value->text);
        break;
    case CONFIG_TYPE_NUMBERS:
        (void)snprintf(out, LINE_SIZE_BYTES, "[%s]", value->text);
        break;
    case CONFIG_TYPE_TEXT:
    case CONFIG_TYPE_CHOICE:
    case CONFIG_TYPE_ENDPOINT:
        if (is_plain(value->text)) {
            (void)snprintf(out, LINE_SIZE_BYTES, "%s", value->text);
        } else {
            print_text(out, value->text);
        }
        break;
    }
}

static void
emit_line(printer_t *printer, const char *name, const char *value, const char *comment)
{
    char line[2 * LINE_SIZE_BYTES];
    const char *dash = printer->is_first_of_node ? "- " : "  ";
    int len =
        snprintf(line, sizeof line, "%s%s%s:%s%s", printer->indent,
                 printer->indent[0] == '\0' ? "" : dash, name, value[0] != '\0' ? " " : "", value);
    require(len > 0 && (size_t)len < sizeof line);
    if (comment[0] != '\0') {
        int space = len < ORIGIN_COLUMN ? ORIGIN_COLUMN - len : 1;
        (void)snprintf(line + len, sizeof line - (size_t)len, "%*s# %s", space, "", comment);
    }
    printer->emit(printer->context, line);
    printer->is_first_of_node = false;
}

static void
emit_value(printer_t *printer, const config_value_t *value)
{
    char text[LINE_SIZE_BYTES];
    char comment[CONFIG_ORIGIN_SIZE_BYTES + CONFIG_MESSAGE_SIZE_BYTES] = "";
    char origin[CONFIG_ORIGIN_SIZE_BYTES];
    const char *name = value->key->name;
    const char *dot = strchr(name, '.');
    char section[CONFIG_NAME_LEN_MAX + 1] = "";
    char last[2 * CONFIG_NAME_LEN_MAX];
    if (dot != NULL) {
        (void)snprintf(section, sizeof section, "%.*s", (int)(dot - name), name);
    }
    if (section[0] != '\0' && strcmp(section, printer->section) != 0) {
        emit_line(printer, section, "", "");
    }
    (void)snprintf(printer->section, sizeof printer->section, "%s", section);
    print_value(value, text);
    config_cluster_origin(printer->cluster, value, origin);
    if (value->text == NULL) {
        (void)snprintf(comment, sizeof comment, "%s", value->key->unset);
        (void)snprintf(last, sizeof last, "%s# %s", dot != NULL ? "  " : "",
                       dot != NULL ? dot + 1 : name);
    } else {
        (void)snprintf(last, sizeof last, "%s%s", dot != NULL ? "  " : "",
                       dot != NULL ? dot + 1 : name);
        (void)snprintf(comment, sizeof comment, "%s", printer->show->with_origin ? origin : "");
    }
    emit_line(printer, last, text, comment);
}

/* Keys of the top: what holds for all nodes.  With one node asked for, what holds for it. */
static void
show_top(printer_t *printer)
{
    const config_cluster_t *self = printer->cluster;
    for (uint32_t i = 0; i < config_key_count; i++) {
        const config_key_t *key = &config_keys[i];
        uint32_t node = key->place == CONFIG_PLACE_SHARED ? printer->show->node : CONFIG_TOP;
        config_value_t value = config_cluster_value(self, node, key->name);
        bool is_shown = printer->show->all || value.from != CONFIG_FROM_DEFAULT;
        if (key->place != CONFIG_PLACE_NODE && is_shown) {
            emit_value(printer, &value);
        }
    }
}

static void
show_node(printer_t *printer, uint32_t node)
{
    printer->section[0] = '\0';
    printer->is_first_of_node = true;
    /* The name first, as people write it. */
    config_value_t name = config_cluster_value(printer->cluster, node, "name");
    if (name.text != NULL) {
        emit_value(printer, &name);
    }
    for (uint32_t i = 0; i < config_key_count; i++) {
        const config_key_t *key = &config_keys[i];
        if (key->place == CONFIG_PLACE_TOP || strcmp(key->name, "name") == 0) {
            continue;
        }
        config_value_t value = config_cluster_value(printer->cluster, node, key->name);
        bool is_own = value.from == CONFIG_FROM_NODE && printer->show->node == CONFIG_TOP;
        bool is_its = key->place == CONFIG_PLACE_NODE &&
                      (value.from == CONFIG_FROM_NODE || printer->show->all);
        if (is_own || is_its) {
            emit_value(printer, &value);
        }
    }
}

void
config_cluster_show(const config_cluster_t *self, const config_show_t *show, config_emit_t emit,
                    void *context)
{
    printer_t printer = {
        .cluster = self, .show = show, .emit = emit, .context = context, .indent = ""};
    show_top(&printer);
    if (self->node_count == 0) {
        return;
    }
    emit(context, "nodes:");
    printer.indent = "  ";
    for (uint32_t node = 0; node < self->node_count; node++) {
        if (show->node == CONFIG_TOP || show->node == node) {
            show_node(&printer, node);
        }
    }
}
