#include "config_yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "proto_require.h"

struct config_yaml {
    yaml_parser_t parser;
    uint32_t depth;
    bool ended; /* nothing more comes: the document ended, or was refused */
    char problem[256];
};

proto_status_t
config_yaml_new(const void *bytes, size_t size_bytes, config_yaml_t **out_p)
{
    require(bytes != NULL || size_bytes == 0);
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    config_yaml_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    if (yaml_parser_initialize(&self->parser) == 0) {
        goto err_free_self;
    }
    yaml_parser_set_encoding(&self->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&self->parser, size_bytes > 0 ? bytes : (const void *)"",
                                 size_bytes);
    *out_p = self;
    return STATUS_OK;

err_free_self:
    free(self);
err:
    return status;
}

void
config_yaml_destroy(config_yaml_t **self_p)
{
    config_yaml_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    yaml_parser_delete(&self->parser);
    free(self);
    *self_p = NULL;
}

const char *
config_yaml_problem(const config_yaml_t *self)
{
    return self->problem;
}

static uint32_t
place(size_t from_zero)
{
    return from_zero < UINT32_MAX ? (uint32_t)from_zero + 1 : UINT32_MAX;
}

static proto_status_t
refuse(config_yaml_t *self, const char *problem)
{
    (void)snprintf(self->problem, sizeof self->problem, "%s", problem);
    self->ended = true;
    return STATUS_ERR_MALFORMED;
}

/* What libyaml itself does not take. */
static proto_status_t
refuse_syntax(config_yaml_t *self, config_yaml_event_t *event)
{
    const yaml_parser_t *parser = &self->parser;
    event->line = place(parser->problem_mark.line);
    event->column = place(parser->problem_mark.column);
    self->ended = true;
    if (parser->error == YAML_MEMORY_ERROR) {
        return STATUS_ERR_NO_MEMORY;
    }
    /* A reader error comes before the scanner saw the bytes: it has no line, only an offset. */
    if (parser->error == YAML_READER_ERROR) {
        event->line = place(parser->mark.line);
        event->column = place(parser->mark.column);
    }
    (void)snprintf(self->problem, sizeof self->problem, "this is not YAML: %s%s%s",
                   parser->problem != NULL ? parser->problem : "unreadable",
                   parser->context != NULL ? ", " : "",
                   parser->context != NULL ? parser->context : "");
    return STATUS_ERR_MALFORMED;
}

static proto_status_t
take_scalar(config_yaml_t *self, const yaml_event_t *from, config_yaml_event_t *event)
{
    if (from->data.scalar.anchor != NULL) {
        return refuse(self, "anchors (&name) are not read; write the value out");
    }
    if (from->data.scalar.tag != NULL) {
        return refuse(self, "tags (!name) are not read; leave it out");
    }
    yaml_scalar_style_t style = from->data.scalar.style;
    if (style == YAML_LITERAL_SCALAR_STYLE || style == YAML_FOLDED_SCALAR_STYLE) {
        return refuse(self, "a block of text (| or >) is not read; write the value on one line");
    }
    if (from->data.scalar.length > CONFIG_YAML_TEXT_LEN_MAX) {
        return refuse(self, "this value has more than 1024 bytes");
    }
    const unsigned char *text = from->data.scalar.value;
    for (size_t i = 0; i < from->data.scalar.length; i++) {
        if (text[i] < 0x20 || text[i] == 0x7f) {
            return refuse(self, "a control character or a line break stands in this value");
        }
    }
    if (from->start_mark.line != from->end_mark.line) {
        return refuse(self, "this value goes over more than one line; write it on one");
    }
    event->kind = CONFIG_YAML_SCALAR;
    event->is_plain = style == YAML_PLAIN_SCALAR_STYLE;
    event->text_len = from->data.scalar.length;
    memcpy(event->text, text, event->text_len);
    event->text[event->text_len] = '\0';
    return STATUS_OK;
}

static proto_status_t
take_begin(config_yaml_t *self, const yaml_event_t *from, config_yaml_event_t *event)
{
    bool is_mapping = from->type == YAML_MAPPING_START_EVENT;
    const yaml_char_t *anchor =
        is_mapping ? from->data.mapping_start.anchor : from->data.sequence_start.anchor;
    const yaml_char_t *tag =
        is_mapping ? from->data.mapping_start.tag : from->data.sequence_start.tag;
    if (anchor != NULL) {
        return refuse(self, "anchors (&name) are not read; write the values out");
    }
    if (tag != NULL) {
        return refuse(self, "tags (!name) are not read; leave it out");
    }
    if (self->depth == CONFIG_YAML_DEPTH_MAX) {
        return refuse(self, "this is nested too deep");
    }
    self->depth++;
    event->kind = is_mapping ? CONFIG_YAML_MAPPING : CONFIG_YAML_SEQUENCE;
    return STATUS_OK;
}

/* The parser's events are more than ours: STATUS_AGAIN for one that says nothing. */
static proto_status_t
take(config_yaml_t *self, const yaml_event_t *from, config_yaml_event_t *event)
{
    event->line = place(from->start_mark.line);
    event->column = place(from->start_mark.column);
    switch (from->type) {
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        return STATUS_AGAIN;
    case YAML_DOCUMENT_START_EVENT:
        if (from->data.document_start.version_directive != NULL ||
            from->data.document_start.tag_directives.start !=
                from->data.document_start.tag_directives.end) {
            return refuse(self, "directives (%YAML, %TAG) are not read; leave it out");
        }
        if (self->depth > 0) {
            return refuse(self, "a second document (---) is not read; write one file for each");
        }
        self->depth = 1;
        return STATUS_AGAIN;
    case YAML_STREAM_END_EVENT:
        self->ended = true;
        event->kind = CONFIG_YAML_END;
        return STATUS_OK;
    case YAML_ALIAS_EVENT:
        return refuse(self, "aliases (*name) are not read; write the value out");
    case YAML_SCALAR_EVENT:
        return take_scalar(self, from, event);
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        return take_begin(self, from, event);
    case YAML_SEQUENCE_END_EVENT:
        self->depth--;
        event->kind = CONFIG_YAML_SEQUENCE_END;
        return STATUS_OK;
    case YAML_MAPPING_END_EVENT:
        self->depth--;
        event->kind = CONFIG_YAML_MAPPING_END;
        return STATUS_OK;
    }
    return refuse(self, "this is not read");
}

proto_status_t
config_yaml_next(config_yaml_t *self, config_yaml_event_t *event)
{
    event->kind = CONFIG_YAML_END;
    event->text_len = 0;
    event->text[0] = '\0';
    proto_status_t status = STATUS_AGAIN;
    while (status == STATUS_AGAIN) {
        if (self->ended) {
            return STATUS_OK;
        }
        yaml_event_t from;
        if (yaml_parser_parse(&self->parser, &from) == 0) {
            return refuse_syntax(self, event);
        }
        status = take(self, &from, event);
        yaml_event_delete(&from);
    }
    return status;
}
