/* file_chat_form.h - a chat template as a handful of pieces, and the text form they are written in.
 * Internal to models/.  The built-in templates are written in the same form as an operator's file,
 * so there is one parser and one renderer. */
#ifndef FILE_CHAT_FORM_H
#define FILE_CHAT_FORM_H

#include "file_chat_template.h"
#include "file_support.h"

typedef enum {
    FILE_PIECE_START,  /* once, before everything */
    FILE_PIECE_SYSTEM, /* a system message; with OTHER: only the first message */
    FILE_PIECE_USER,
    FILE_PIECE_ASSISTANT,
    FILE_PIECE_OTHER,          /* a message of any role that has no piece of its own */
    FILE_PIECE_GENERATION,     /* the opening of the answer */
    FILE_PIECE_DEFAULT_SYSTEM, /* content of a system message that is put first if none is there */
    FILE_PIECE_SYSTEM_IN_USER, /* put before the first user's content instead of a system message */
    FILE_PIECE_COUNT,
} file_piece_t;

typedef enum {
    FILE_SLOT_LITERAL,
    FILE_SLOT_ROLE,
    FILE_SLOT_CONTENT,
    FILE_SLOT_BOS,
    FILE_SLOT_EOS,
    FILE_SLOT_COUNT,
} file_slot_t;

typedef struct {
    file_slot_t slot;
    uint32_t offset; /* LITERAL: into the form's text */
    uint32_t size_bytes;
} file_segment_t;

enum { FILE_SEGMENT_COUNT_MAX = 16 };

typedef struct {
    bool is_set;
    uint32_t count;
    file_segment_t segments[FILE_SEGMENT_COUNT_MAX];
} file_chat_piece_t;

typedef struct {
    file_chat_piece_t pieces[FILE_PIECE_COUNT];
    bool trim;      /* white space around contents is removed */
    bool alternate; /* user and assistant must take turns, user first */
    bool think;     /* Qwen3's handling of <think> in the assistant's earlier turns */
    char *text;     /* the literals, unescaped */
    uint32_t text_used_bytes;
} file_chat_form_t;

/* Parses a form; `what` names it in error texts.  The form owns its text. */
MUST_CHECK proto_status_t file_chat_form_init(file_chat_form_t *self, const char *form,
                                              size_t size_bytes, const char *what,
                                              file_error_t error);
void file_chat_form_fini(file_chat_form_t *self);

/* The text of a built-in form, or NULL. */
const char *file_chat_builtin(const char *name);

/* The built-in's name that a Jinja text means, or NULL. */
const char *file_chat_recognise(const char *jinja, size_t size_bytes);

#endif
