/* config_yaml.h - YAML, as far as cluster files need it: one document of mappings, sequences and
 * scalars of one line.  Anchors, aliases, tags, merge keys, directives and block scalars are
 * refused, each with its place and what to write instead.
 *
 * Reads bytes in memory, which must outlive the reader.  One thread. */
#ifndef CONFIG_YAML_H
#define CONFIG_YAML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

enum { CONFIG_YAML_TEXT_LEN_MAX = 1024, CONFIG_YAML_DEPTH_MAX = 8 };

typedef enum {
    CONFIG_YAML_END, /* of the document; there is no other */
    CONFIG_YAML_SCALAR,
    CONFIG_YAML_MAPPING,
    CONFIG_YAML_MAPPING_END,
    CONFIG_YAML_SEQUENCE,
    CONFIG_YAML_SEQUENCE_END,
} config_yaml_kind_t;

typedef struct {
    config_yaml_kind_t kind;
    uint32_t line, column; /* from 1 */
    bool is_plain;         /* SCALAR: without quotes */
    size_t text_len;
    char text[CONFIG_YAML_TEXT_LEN_MAX + 1]; /* SCALAR; no control characters */
} config_yaml_event_t;

typedef struct config_yaml config_yaml_t;

/* The caller owns *out_p; STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t config_yaml_new(const void *bytes, size_t size_bytes,
                                          config_yaml_t **out_p);
void config_yaml_destroy(config_yaml_t **self_p);

/* The next event; an empty document has END only.  STATUS_ERR_MALFORMED: event->line and column say
 * where, config_yaml_problem() what and the remedy; the reader gives nothing more. */
MUST_CHECK proto_status_t config_yaml_next(config_yaml_t *self, config_yaml_event_t *event);
const char *config_yaml_problem(const config_yaml_t *self);

#endif
