#include "file_chat_template.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "file_chat_form.h"
#include "file_model_internal.h"
#include "proto_require.h"

enum { NAME_SIZE_BYTES = 256 };

static const file_json_limits_t TOKENIZER_CONFIG_LIMITS = {"tokenizer_config.json", 8 << 20, 16,
                                                           1 << 20};

struct file_chat_template {
    file_chat_form_t form;
    char name[NAME_SIZE_BYTES];
};

/* The rendered text so far.  Once something did not fit, nothing is written any more. */
typedef struct {
    char *out;
    size_t size_bytes;
    size_t at;
    bool is_full;
} sink_t;

typedef struct {
    const file_chat_form_t *form;
    const file_chat_render_t *call;
    sink_t sink;
    size_t last_query; /* index of the last question, for `think` */
} renderer_t;

static proto_status_t
new_template(const char *form, size_t size_bytes, const char *name, file_error_t error,
             file_chat_template_t **out_p)
{
    file_chat_template_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory");
    }
    (void)snprintf(self->name, sizeof self->name, "%s", name);
    proto_status_t status = file_chat_form_init(&self->form, form, size_bytes, name, error);
    if (status != STATUS_OK) {
        free(self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

static proto_status_t
open_jinja(const char *jinja, size_t size_bytes, file_error_t error, file_chat_template_t **out_p)
{
    const char *name = file_chat_recognise(jinja, size_bytes);
    if (name == NULL) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "the checkpoint's chat template is not one of those supported: %s; "
                              "choose one, or a file, with --chat-template",
                              file_chat_template_names());
    }
    const char *form = file_chat_builtin(name);
    require(form != NULL);
    return new_template(form, strlen(form), name, error, out_p);
}

proto_status_t
file_chat_template_open_jinja(const char *jinja, size_t size_bytes, char *error,
                              size_t error_size_bytes, file_chat_template_t **out_p)
{
    require(jinja != NULL || size_bytes == 0);
    require(out_p != NULL);
    return open_jinja(jinja, size_bytes, file_error_init(error, error_size_bytes), out_p);
}

static proto_status_t
no_template(file_error_t error)
{
    return file_error_set(error, STATUS_ERR_NOT_FOUND,
                          "the checkpoint has no chat template; choose one with --chat-template: "
                          "%s, or a file",
                          file_chat_template_names());
}

/* A folder has it in tokenizer_config.json, as a text or as the list entry "default", or in a file
 * of its own. */
static proto_status_t
open_from_folder(const file_model_t *model, file_error_t error, file_chat_template_t **out_p)
{
    file_map_t map = {0};
    file_error_t quiet = {NULL, 0};
    proto_status_t status = file_map_open_in(model->folder_fd, "chat_template.jinja", quiet, &map);
    if (status == STATUS_OK) {
        status = open_jinja((const char *)map.bytes, map.size_bytes, error, out_p);
        file_map_close(&map);
        return status;
    }
    json_t *config = NULL;
    status = file_model_read_json(model, &TOKENIZER_CONFIG_LIMITS, error, &config);
    if (status == STATUS_ERR_NOT_FOUND) {
        return no_template(error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    const json_t *template = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(template); i++) {
        const json_t *entry = json_array_get(template, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            template = json_object_get(entry, "template");
            break;
        }
    }
    status = json_is_string(template) ? open_jinja(json_string_value(template),
                                                   json_string_length(template), error, out_p)
                                      : no_template(error);
    json_decref(config);
    return status;
}

proto_status_t
file_chat_template_open(const file_model_t *model, char *error, size_t error_size_bytes,
                        file_chat_template_t **out_p)
{
    require(model != NULL);
    require(out_p != NULL);
    file_error_t sink = file_error_init(error, error_size_bytes);
    if (!model->is_gguf) {
        return open_from_folder(model, sink, out_p);
    }
    file_view_t jinja = {0};
    proto_status_t status = file_gguf_string(&model->gguf, "tokenizer.chat_template", &jinja, sink);
    if (status == STATUS_ERR_NOT_FOUND) {
        return no_template(sink);
    }
    if (status != STATUS_OK) {
        return status;
    }
    return open_jinja((const char *)jinja.bytes, jinja.size_bytes, sink, out_p);
}

proto_status_t
file_chat_template_open_named(const char *name_or_path, char *error, size_t error_size_bytes,
                              file_chat_template_t **out_p)
{
    require(name_or_path != NULL);
    require(out_p != NULL);
    file_error_t sink = file_error_init(error, error_size_bytes);
    const char *form = file_chat_builtin(name_or_path);
    if (form != NULL) {
        return new_template(form, strlen(form), name_or_path, sink, out_p);
    }
    file_map_t map = {0};
    file_error_t quiet = {NULL, 0};
    file_printable_t shown = file_printable(name_or_path, strlen(name_or_path));
    if (file_map_open(name_or_path, quiet, &map) != STATUS_OK) {
        return file_error_set(sink, STATUS_ERR_NOT_FOUND,
                              "chat template '%s': no file that can be read, and none of %s",
                              shown.text, file_chat_template_names());
    }
    proto_status_t status =
        new_template((const char *)map.bytes, map.size_bytes, shown.text, sink, out_p);
    file_map_close(&map);
    return status;
}

void
file_chat_template_close(file_chat_template_t **self_p)
{
    file_chat_template_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    file_chat_form_fini(&self->form);
    free(self);
    *self_p = NULL;
}

const char *
file_chat_template_name(const file_chat_template_t *self)
{
    return self->name;
}

bool
file_chat_template_has_bos(const file_chat_template_t *self)
{
    for (uint32_t i = 0; i < FILE_PIECE_COUNT; i++) {
        const file_chat_piece_t *piece = &self->form.pieces[i];
        for (uint32_t k = 0; k < piece->count; k++) {
            if (piece->segments[k].slot == FILE_SLOT_BOS) {
                return true;
            }
        }
    }
    return false;
}

static void
put(sink_t *self, const void *bytes, size_t size_bytes)
{
    if (self->is_full || size_bytes > self->size_bytes - self->at) {
        self->is_full = true;
        return;
    }
    if (size_bytes > 0) {
        memcpy(self->out + self->at, bytes, size_bytes);
    }
    self->at += size_bytes;
}

static void
put_text(sink_t *self, const char *text)
{
    put(self, text, text != NULL ? strlen(text) : 0);
}

/* Takes white space from both ends of what was written since `start`. */
static void
trim_from(sink_t *self, size_t start)
{
    if (self->is_full) {
        return;
    }
    const uint8_t *bytes = (const uint8_t *)self->out + start;
    size_t size_bytes = self->at - start;
    size_t begin = size_bytes; /* of the first character that is no space */
    size_t end = size_bytes;   /* behind the last one */
    for (size_t at = 0; at < size_bytes;) {
        size_t from = at;
        if (!file_is_space(file_utf8_next(bytes, size_bytes, &at))) {
            begin = begin == size_bytes ? from : begin;
            end = at;
        }
    }
    size_t kept = begin == size_bytes ? 0 : end - begin;
    memmove(self->out + start, self->out + start + begin, kept);
    self->at = start + kept;
}

typedef struct {
    const char *bytes;
    size_t size_bytes;
} text_t;

static text_t
strip_newlines(text_t text, bool left, bool right)
{
    while (left && text.size_bytes > 0 && text.bytes[0] == '\n') {
        text.bytes++;
        text.size_bytes--;
    }
    while (right && text.size_bytes > 0 && text.bytes[text.size_bytes - 1] == '\n') {
        text.size_bytes--;
    }
    return text;
}

/* The end of the last `mark` in the text, or NULL. */
static const char *
after_last(text_t text, const char *mark)
{
    size_t size_bytes = strlen(mark);
    const char *found = NULL;
    const char *end = text.bytes + text.size_bytes;
    for (const char *at = text.bytes; at != NULL && at < end;) {
        at = memmem(at, (size_t)(end - at), mark, size_bytes);
        if (at != NULL) {
            at += size_bytes;
            found = at;
        }
    }
    return found;
}

/* Qwen3 keeps the thoughts of the answer that is being continued and drops those of earlier turns,
 * in the shape that its own template gives them. */
static void
put_thinking(renderer_t *self, size_t index)
{
    static const char OPEN[] = "<think>";
    static const char CLOSE[] = "</think>";
    const file_chat_message_t *message = &self->call->messages[index];
    text_t content = {message->content_size_bytes > 0 ? message->content : "",
                      message->content_size_bytes};
    text_t thoughts = {content.bytes, 0};
    const char *rest = after_last(content, CLOSE);
    if (rest != NULL) {
        const char *close = memmem(content.bytes, content.size_bytes, CLOSE, sizeof CLOSE - 1);
        thoughts.size_bytes = (size_t)(close - content.bytes);
        thoughts = strip_newlines(thoughts, false, true);
        const char *open = after_last(thoughts, OPEN);
        if (open != NULL) {
            thoughts.size_bytes -= (size_t)(open - thoughts.bytes);
            thoughts.bytes = open;
        }
        thoughts = strip_newlines(thoughts, true, false);
        content.size_bytes -= (size_t)(rest - content.bytes);
        content.bytes = rest;
        content = strip_newlines(content, true, false);
    }
    bool is_last = index + 1 == self->call->message_count;
    if (index > self->last_query && (is_last || thoughts.size_bytes > 0)) {
        thoughts = strip_newlines(thoughts, true, true);
        content = strip_newlines(content, true, false);
        put_text(&self->sink, "<think>\n");
        put(&self->sink, thoughts.bytes, thoughts.size_bytes);
        put_text(&self->sink, "\n</think>\n\n");
    }
    put(&self->sink, content.bytes, content.size_bytes);
}

static bool
role_is(const file_chat_message_t *message, const char *role)
{
    size_t size_bytes = strlen(role);
    return message->role_size_bytes == size_bytes && memcmp(message->role, role, size_bytes) == 0;
}

static void put_piece(renderer_t *self, file_piece_t which, size_t index);

/* A message's content; the first user's has the system message before it if the form says so. */
static void
put_content(renderer_t *self, file_piece_t which, size_t index)
{
    const file_chat_message_t *messages = self->call->messages;
    size_t start = self->sink.at;
    if (which == FILE_PIECE_USER && index == 1 && role_is(&messages[0], "system") &&
        self->form->pieces[FILE_PIECE_SYSTEM_IN_USER].is_set) {
        put_piece(self, FILE_PIECE_SYSTEM_IN_USER, 0);
    }
    if (which == FILE_PIECE_ASSISTANT && self->form->think) {
        put_thinking(self, index);
    } else {
        put(&self->sink, messages[index].content, messages[index].content_size_bytes);
    }
    if (self->form->trim && which != FILE_PIECE_SYSTEM_IN_USER) {
        trim_from(&self->sink, start);
    }
}

/* One piece; `index` is SIZE_MAX for pieces without a message. */
static void
put_piece(renderer_t *self, file_piece_t which, size_t index)
{
    const file_chat_piece_t *piece = &self->form->pieces[which];
    const file_chat_message_t *message = index != SIZE_MAX ? &self->call->messages[index] : NULL;
    for (uint32_t i = 0; i < piece->count; i++) {
        const file_segment_t *segment = &piece->segments[i];
        switch (segment->slot) {
        case FILE_SLOT_LITERAL:
            put(&self->sink, self->form->text + segment->offset, segment->size_bytes);
            break;
        case FILE_SLOT_ROLE:
            require(message != NULL); /* check_pieces() lets no such piece have a role */
            put(&self->sink, message->role, message->role_size_bytes);
            break;
        case FILE_SLOT_CONTENT:
            put_content(self, which, index);
            break;
        case FILE_SLOT_BOS:
            put_text(&self->sink, self->call->bos);
            break;
        case FILE_SLOT_EOS:
            put_text(&self->sink, self->call->eos);
            break;
        case FILE_SLOT_COUNT:
            require(segment->slot != FILE_SLOT_COUNT);
            break;
        }
    }
}

/* The piece for a message, FILE_PIECE_COUNT if the template has none. */
static file_piece_t
piece_of(const renderer_t *self, size_t index)
{
    const file_chat_message_t *message = &self->call->messages[index];
    const file_chat_piece_t *pieces = self->form->pieces;
    file_piece_t wanted = role_is(message, "system")      ? FILE_PIECE_SYSTEM
                          : role_is(message, "user")      ? FILE_PIECE_USER
                          : role_is(message, "assistant") ? FILE_PIECE_ASSISTANT
                                                          : FILE_PIECE_OTHER;
    bool has_other = pieces[FILE_PIECE_OTHER].is_set;
    if (wanted == FILE_PIECE_SYSTEM && index > 0 && has_other) {
        return FILE_PIECE_OTHER;
    }
    if (pieces[wanted].is_set) {
        return wanted;
    }
    return has_other ? FILE_PIECE_OTHER : FILE_PIECE_COUNT;
}

static proto_status_t
check_messages(const renderer_t *self, const char *name, bool is_merged, file_error_t error)
{
    const file_chat_render_t *call = self->call;
    size_t first = is_merged ? 1 : 0;
    for (size_t i = 0; i < call->message_count; i++) {
        const file_chat_message_t *message = &call->messages[i];
        if (!file_utf8_valid(message->role, message->role_size_bytes) ||
            !file_utf8_valid(message->content, message->content_size_bytes)) {
            return file_error_set(error, STATUS_ERR_INVALID, "message %zu is not UTF-8", i);
        }
        if (i < first) {
            continue;
        }
        if (piece_of(self, i) == FILE_PIECE_COUNT) {
            return file_error_set(error, STATUS_ERR_INVALID,
                                  "message %zu: the chat template '%s' has no role '%s'", i, name,
                                  file_printable(message->role, message->role_size_bytes).text);
        }
        bool is_user_turn = (i - first) % 2 == 0;
        if (self->form->alternate && !role_is(message, is_user_turn ? "user" : "assistant")) {
            return file_error_set(error, STATUS_ERR_INVALID,
                                  "message %zu: roles must alternate user/assistant, user first",
                                  i);
        }
    }
    if (is_merged && (call->message_count < 2 || !role_is(&call->messages[1], "user"))) {
        return file_error_set(error, STATUS_ERR_INVALID,
                              "message 0: a system message must be followed by a user's");
    }
    return STATUS_OK;
}

/* The last message of a user that is not the result of a tool; the last message if there is none.
 */
static size_t
find_last_query(const file_chat_render_t *call)
{
    static const char OPEN[] = "<tool_response>";
    static const char CLOSE[] = "</tool_response>";
    for (size_t i = call->message_count; i-- > 0;) {
        const file_chat_message_t *message = &call->messages[i];
        size_t size_bytes = message->content_size_bytes;
        bool is_result = size_bytes >= sizeof OPEN - 1 && size_bytes >= sizeof CLOSE - 1 &&
                         memcmp(message->content, OPEN, sizeof OPEN - 1) == 0 &&
                         memcmp(message->content + size_bytes - (sizeof CLOSE - 1), CLOSE,
                                sizeof CLOSE - 1) == 0;
        if (role_is(message, "user") && !is_result) {
            return i;
        }
    }
    return call->message_count - 1;
}

/* A system message that nobody wrote, with the template's own content. */
static void
put_default_system(renderer_t *self)
{
    const file_chat_piece_t *content = &self->form->pieces[FILE_PIECE_DEFAULT_SYSTEM];
    file_chat_message_t message = {.role = "system", .role_size_bytes = 6, .content = ""};
    if (content->count > 0) { /* a default is one literal: it has no slots */
        message.content = self->form->text + content->segments[0].offset;
        message.content_size_bytes = content->segments[0].size_bytes;
    }
    file_chat_render_t call = *self->call;
    call.messages = &message;
    call.message_count = 1;
    renderer_t renderer = *self;
    renderer.call = &call;
    put_piece(&renderer, piece_of(&renderer, 0), 0);
    self->sink = renderer.sink;
}

proto_status_t
file_chat_template_render(const file_chat_template_t *self, const file_chat_render_t *call,
                          char *error, size_t error_size_bytes, size_t *written_bytes)
{
    require(call->messages != NULL || call->message_count == 0);
    require(call->out != NULL || call->out_size_bytes == 0);
    file_error_t sink = file_error_init(error, error_size_bytes);
    if (call->message_count < 1 || call->message_count > FILE_CHAT_MESSAGE_COUNT_MAX) {
        return file_error_set(sink, STATUS_ERR_INVALID, "%zu messages; 1 to %d are allowed",
                              call->message_count, FILE_CHAT_MESSAGE_COUNT_MAX);
    }
    renderer_t renderer = {.form = &self->form,
                           .call = call,
                           .sink = {call->out, call->out_size_bytes, 0, false},
                           .last_query = find_last_query(call)};
    bool has_system = role_is(&call->messages[0], "system");
    bool is_merged = has_system && self->form.pieces[FILE_PIECE_SYSTEM_IN_USER].is_set;
    proto_status_t status = check_messages(&renderer, self->name, is_merged, sink);
    if (status != STATUS_OK) {
        return status;
    }
    put_piece(&renderer, FILE_PIECE_START, SIZE_MAX);
    if (!has_system && self->form.pieces[FILE_PIECE_DEFAULT_SYSTEM].is_set) {
        put_default_system(&renderer);
    }
    for (size_t i = is_merged ? 1 : 0; i < call->message_count; i++) {
        put_piece(&renderer, piece_of(&renderer, i), i);
    }
    if (call->add_generation_prompt) {
        put_piece(&renderer, FILE_PIECE_GENERATION, SIZE_MAX);
    }
    if (renderer.sink.is_full) {
        return file_error_set(sink, STATUS_ERR_TOO_LARGE,
                              "the messages make a prompt of over %zu bytes", call->out_size_bytes);
    }
    *written_bytes = renderer.sink.at;
    return STATUS_OK;
}
