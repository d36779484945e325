#include "file_chat_form.h"

#include <inttypes.h>
#include <stdlib.h>

#include "proto_require.h"

static const char *const PIECE_KEYS[FILE_PIECE_COUNT] = {
    [FILE_PIECE_START] = "start",
    [FILE_PIECE_SYSTEM] = "system",
    [FILE_PIECE_USER] = "user",
    [FILE_PIECE_ASSISTANT] = "assistant",
    [FILE_PIECE_OTHER] = "other",
    [FILE_PIECE_GENERATION] = "generation",
    [FILE_PIECE_DEFAULT_SYSTEM] = "default_system",
    [FILE_PIECE_SYSTEM_IN_USER] = "system_in_user",
};

static const char *const SLOT_NAMES[FILE_SLOT_COUNT] = {
    [FILE_SLOT_LITERAL] = "",  [FILE_SLOT_ROLE] = "{role}", [FILE_SLOT_CONTENT] = "{content}",
    [FILE_SLOT_BOS] = "{bos}", [FILE_SLOT_EOS] = "{eos}",
};

/* Where the parser is, for error texts. */
typedef struct {
    file_chat_form_t *form;
    const char *what;
    uint32_t line;
    uint32_t flags_seen;
    file_error_t error;
} parser_t;

static proto_status_t
wrong(const parser_t *self, const char *text)
{
    return file_error_set(self->error, STATUS_ERR_MALFORMED, "%s: line %" PRIu32 ": %s", self->what,
                          self->line, text);
}

static file_segment_t *
add_segment(file_chat_piece_t *piece, file_slot_t slot)
{
    if (piece->count == FILE_SEGMENT_COUNT_MAX) {
        return NULL;
    }
    file_segment_t *segment = &piece->segments[piece->count++];
    *segment = (file_segment_t){.slot = slot};
    return segment;
}

static bool
add_literal(file_chat_form_t *form, file_chat_piece_t *piece, char byte)
{
    file_segment_t *last = piece->count > 0 ? &piece->segments[piece->count - 1] : NULL;
    if (last == NULL || last->slot != FILE_SLOT_LITERAL) {
        last = add_segment(piece, FILE_SLOT_LITERAL);
        if (last == NULL) {
            return false;
        }
        last->offset = form->text_used_bytes;
    }
    form->text[form->text_used_bytes++] = byte;
    last->size_bytes++;
    return true;
}

/* The slot that begins at text[0] == '{'; LITERAL if there is none. */
static file_slot_t
slot_at(const char *text, size_t size_bytes)
{
    for (uint32_t slot = FILE_SLOT_ROLE; slot < FILE_SLOT_COUNT; slot++) {
        size_t length = strlen(SLOT_NAMES[slot]);
        if (size_bytes >= length && memcmp(text, SLOT_NAMES[slot], length) == 0) {
            return (file_slot_t)slot;
        }
    }
    return FILE_SLOT_LITERAL;
}

static proto_status_t
parse_piece(parser_t *self, file_chat_piece_t *piece, const char *text, size_t size_bytes)
{
    piece->is_set = true;
    for (size_t at = 0; at < size_bytes;) {
        char byte = text[at];
        bool has_room = true;
        if (byte == '{') {
            file_slot_t slot = slot_at(text + at, size_bytes - at);
            if (slot == FILE_SLOT_LITERAL) {
                return wrong(self, "'{' must begin {role}, {content}, {bos} or {eos}, or be \\{");
            }
            has_room = add_segment(piece, slot) != NULL;
            at += strlen(SLOT_NAMES[slot]);
        } else if (byte == '\\') {
            static const char ESCAPES[] = "nt\\{}";
            static const char MEANINGS[] = "\n\t\\{}";
            const char *escape =
                at + 1 < size_bytes && text[at + 1] != '\0' ? strchr(ESCAPES, text[at + 1]) : NULL;
            if (escape == NULL) {
                return wrong(self, "'\\' must begin \\n, \\t, \\\\, \\{ or \\}");
            }
            has_room = add_literal(self->form, piece, MEANINGS[escape - ESCAPES]);
            at += 2;
        } else if (byte == '}' || (unsigned char)byte < 0x20) {
            return wrong(self, "'}' must be \\}, and control characters are not allowed");
        } else {
            has_room = add_literal(self->form, piece, byte);
            at++;
        }
        if (!has_room) {
            return wrong(self, "too many parts in one value");
        }
    }
    return STATUS_OK;
}

static proto_status_t
parse_flag(parser_t *self, const char *key, size_t key_size, const char *value, size_t value_size)
{
    const struct {
        const char *key;
        const char *yes;
        const char *no;
        bool *flag;
    } flags[] = {
        {"trim", "yes", "no", &self->form->trim},
        {"alternate", "yes", "no", &self->form->alternate},
        {"think", "qwen3", "keep", &self->form->think},
    };
    for (uint32_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (strlen(flags[i].key) != key_size || memcmp(flags[i].key, key, key_size) != 0) {
            continue;
        }
        if ((self->flags_seen & 1u << i) != 0) {
            return wrong(self, "this key stands twice");
        }
        self->flags_seen |= 1u << i;
        bool is_yes =
            strlen(flags[i].yes) == value_size && !memcmp(flags[i].yes, value, value_size);
        bool is_no = strlen(flags[i].no) == value_size && !memcmp(flags[i].no, value, value_size);
        *flags[i].flag = is_yes;
        return is_yes || is_no ? STATUS_OK
                               : wrong(self, "trim and alternate are yes or no; think is qwen3 or "
                                             "keep");
    }
    return wrong(self, "unknown key; known are start, system, user, assistant, other, generation, "
                       "default_system, system_in_user, trim, alternate, think");
}

static proto_status_t
parse_line(parser_t *self, const char *line, size_t size_bytes)
{
    if (size_bytes == 0 || line[0] == '#') {
        return STATUS_OK;
    }
    const char *colon = memchr(line, ':', size_bytes);
    if (colon == NULL) {
        return wrong(self, "must be 'key: value'");
    }
    size_t key_size = (size_t)(colon - line);
    const char *value = colon + 1;
    size_t value_size = size_bytes - key_size - 1;
    if (value_size > 0 && value[0] == ' ') { /* one blank after the colon belongs to the form */
        value++;
        value_size--;
    }
    for (uint32_t i = 0; i < FILE_PIECE_COUNT; i++) {
        if (strlen(PIECE_KEYS[i]) == key_size && memcmp(PIECE_KEYS[i], line, key_size) == 0) {
            file_chat_piece_t *piece = &self->form->pieces[i];
            return piece->is_set ? wrong(self, "this key stands twice")
                                 : parse_piece(self, piece, value, value_size);
        }
    }
    return parse_flag(self, line, key_size, value, value_size);
}

static uint32_t
count_slots(const file_chat_piece_t *piece, file_slot_t slot)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < piece->count; i++) {
        count += piece->segments[i].slot == slot;
    }
    return count;
}

/* Each content stands once, so the prompt grows with the messages and with nothing else. */
static proto_status_t
check_pieces(const file_chat_form_t *form, const char *what, file_error_t error)
{
    static const bool HAS_CONTENT[FILE_PIECE_COUNT] = {
        [FILE_PIECE_SYSTEM] = true,         [FILE_PIECE_USER] = true,
        [FILE_PIECE_ASSISTANT] = true,      [FILE_PIECE_OTHER] = true,
        [FILE_PIECE_SYSTEM_IN_USER] = true,
    };
    for (uint32_t i = 0; i < FILE_PIECE_COUNT; i++) {
        const file_chat_piece_t *piece = &form->pieces[i];
        uint32_t wanted = piece->is_set && HAS_CONTENT[i] ? 1 : 0;
        if (count_slots(piece, FILE_SLOT_CONTENT) != wanted ||
            (!HAS_CONTENT[i] && count_slots(piece, FILE_SLOT_ROLE) > 0)) {
            return file_error_set(error, STATUS_ERR_MALFORMED, "%s: '%s' must have {content} %s",
                                  what, PIECE_KEYS[i],
                                  HAS_CONTENT[i] ? "once" : "and {role} not at all");
        }
    }
    const file_chat_piece_t *pieces = form->pieces;
    bool has_turns = (pieces[FILE_PIECE_USER].is_set && pieces[FILE_PIECE_ASSISTANT].is_set) ||
                     pieces[FILE_PIECE_OTHER].is_set;
    if (!has_turns || !pieces[FILE_PIECE_GENERATION].is_set) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "%s: needs 'generation', and 'user' with 'assistant', or 'other'",
                              what);
    }
    const file_chat_piece_t *system = &pieces[FILE_PIECE_DEFAULT_SYSTEM];
    if (count_slots(system, FILE_SLOT_LITERAL) != system->count) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "%s: 'default_system' is plain text",
                              what);
    }
    if (system->is_set && !pieces[FILE_PIECE_SYSTEM].is_set && !pieces[FILE_PIECE_OTHER].is_set) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "%s: 'default_system' needs 'system' or 'other'", what);
    }
    return STATUS_OK;
}

proto_status_t
file_chat_form_init(file_chat_form_t *self, const char *form, size_t size_bytes, const char *what,
                    file_error_t error)
{
    *self = (file_chat_form_t){0};
    if (size_bytes > FILE_CHAT_TEMPLATE_SIZE_BYTES_MAX || !file_utf8_valid(form, size_bytes)) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "%s: not UTF-8, or over %d bytes", what,
                              FILE_CHAT_TEMPLATE_SIZE_BYTES_MAX);
    }
    self->text = malloc(size_bytes + 1); /* literals are never longer than their spelling */
    if (self->text == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory");
    }
    parser_t parser = {.form = self, .what = what, .error = error};
    proto_status_t status = STATUS_OK;
    for (size_t at = 0; status == STATUS_OK && at < size_bytes;) {
        const char *end = memchr(form + at, '\n', size_bytes - at);
        size_t line_size = end != NULL ? (size_t)(end - form) - at : size_bytes - at;
        size_t shown_size =
            line_size > 0 && form[at + line_size - 1] == '\r' ? line_size - 1 : line_size;
        parser.line++;
        status = parse_line(&parser, form + at, shown_size);
        at += line_size + 1;
    }
    if (status == STATUS_OK) {
        status = check_pieces(self, what, error);
    }
    if (status != STATUS_OK) {
        file_chat_form_fini(self);
    }
    return status;
}

void
file_chat_form_fini(file_chat_form_t *self)
{
    free(self->text);
    *self = (file_chat_form_t){0};
}
