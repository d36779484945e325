/* file_chat_template.h - messages to one prompt text, by a fixed set of templates.
 *
 * There is no Jinja here: a checkpoint's template is recognised (by its exact text, or by the
 * markers that its format is made of) and rendered by a small declarative form.  Rendering is one
 * pass over the messages with a byte limit: no loops, no code, nothing from a request is ever read
 * as a template.  A template does not change after open; any thread may render with it. */
#ifndef FILE_CHAT_TEMPLATE_H
#define FILE_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "file_model.h"
#include "proto_status.h"

typedef struct file_chat_template file_chat_template_t; /* opaque */

enum {
    FILE_CHAT_MESSAGE_COUNT_MAX = 4096,
    FILE_CHAT_TEMPLATE_SIZE_BYTES_MAX = 64 << 10, /* a template file */
};

typedef struct {
    const char *role; /* UTF-8, not necessarily terminated */
    size_t role_size_bytes;
    const char *content;
    size_t content_size_bytes;
} file_chat_message_t;

typedef struct {
    const file_chat_message_t *messages; /* [message_count] */
    size_t message_count;                /* 1..FILE_CHAT_MESSAGE_COUNT_MAX */
    bool add_generation_prompt;          /* end with the opening of an assistant's turn */
    const char *bos;                     /* text of the bos token, for {bos}; NULL = "" */
    const char *eos;                     /* text of the eos token, for {eos}; NULL = "" */
    char *out;                           /* not terminated */
    size_t out_size_bytes;
} file_chat_render_t;

/* Recognises the checkpoint's own template.  STATUS_ERR_NOT_FOUND: it has none;
 * STATUS_ERR_UNSUPPORTED: it has one that is not known (the text names those that are, and the
 * option that overrides).  The caller owns *out_p. */
MUST_CHECK proto_status_t file_chat_template_open(const file_model_t *model, char *error,
                                                  size_t error_size_bytes,
                                                  file_chat_template_t **out_p);

/* The value of --chat-template: one of file_chat_template_names(), else the path of a template
 * file (docs/models.md describes the form).  STATUS_ERR_NOT_FOUND: neither;
 * STATUS_ERR_MALFORMED: the file is wrong (with its line). */
MUST_CHECK proto_status_t file_chat_template_open_named(const char *name_or_path, char *error,
                                                        size_t error_size_bytes,
                                                        file_chat_template_t **out_p);

/* Recognises a Jinja text, as file_chat_template_open() does with the checkpoint's. */
MUST_CHECK proto_status_t file_chat_template_open_jinja(const char *jinja, size_t size_bytes,
                                                        char *error, size_t error_size_bytes,
                                                        file_chat_template_t **out_p);

void file_chat_template_close(file_chat_template_t **self_p);

/* Renders into call->out.  STATUS_ERR_INVALID: the template refuses these messages (a role it
 * does not know, roles that must alternate, ...), and `error` says why in words for a client;
 * STATUS_ERR_TOO_LARGE: more than out_size_bytes.  *written_bytes only on STATUS_OK.  Encode the
 * result with parse_special and without add_special if file_chat_template_has_bos(). */
MUST_CHECK proto_status_t file_chat_template_render(const file_chat_template_t *self,
                                                    const file_chat_render_t *call, char *error,
                                                    size_t error_size_bytes, size_t *written_bytes);

/* "smollm2", "qwen3", ...; a file's path for one read from a file. */
const char *file_chat_template_name(const file_chat_template_t *self);

/* True if the rendered text opens with {bos} itself: encode it without add_special. */
bool file_chat_template_has_bos(const file_chat_template_t *self);

/* The built-in names, separated by ", ". */
const char *file_chat_template_names(void);

#endif
