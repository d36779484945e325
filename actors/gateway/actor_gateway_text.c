/* actor_gateway_text.c - the checkpoint's tokenizer and template behind the table of functions. */
#include "actor_gateway_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_chat_template.h"
#include "file_model.h"
#include "file_tokenizer.h"
#include "proto_require.h"

enum {
    LANE_0_TEXT_SIZE = 64 * 1024, /* the HTTP loop only encodes short texts */
    LANE_1_TEXT_SIZE_MIN = 1024 * 1024,
    LANE_1_TEXT_SIZE_MAX = 8 * 1024 * 1024,
};

_Static_assert((int)FILE_STOP_ID_COUNT_MAX <= (int)ACTOR_TEXT_STOP_ID_COUNT_MAX,
               "every stop id of a checkpoint has its place");

struct actor_gateway_checkpoint {
    file_model_t *model;
    file_tokenizer_t *tokenizer;
    file_chat_template_t *chat_template; /* NULL: none that is known */
    file_tokenizer_scratch_t *scratch[ACTOR_TEXT_LANE_COUNT];
    char chat_missing[ACTOR_TEXT_ERROR_SIZE_BYTES];
    char bos[64];
    char eos[64];
    actor_gateway_text_t text;
};

static proto_status_t
encode(void *context, uint32_t lane, const actor_text_encode_t *call, size_t *id_count)
{
    actor_gateway_checkpoint_t *self = context;
    require(lane < ACTOR_TEXT_LANE_COUNT);
    file_encode_t encode_call = {
        .text = call->text,
        .size_bytes = call->size_bytes,
        .parse_special = call->parse_special,
        .add_special = call->add_special,
        .ids = call->ids,
        .id_count_max = call->id_count_max,
    };
    return file_tokenizer_encode(self->tokenizer, self->scratch[lane], &encode_call, id_count);
}

static proto_status_t
token_bytes(void *context, int32_t id, const char **bytes, size_t *size_bytes)
{
    const actor_gateway_checkpoint_t *self = context;
    file_bytes_t found;
    proto_status_t status = file_tokenizer_token_bytes(self->tokenizer, id, &found);
    if (status == STATUS_OK) {
        *bytes = found.bytes;
        *size_bytes = found.size_bytes;
    }
    return status;
}

static bool
is_special(void *context, int32_t id)
{
    const actor_gateway_checkpoint_t *self = context;
    return file_tokenizer_is_special(self->tokenizer, id);
}

static proto_status_t
render(void *context, const actor_text_message_t *messages, size_t count,
       bool add_generation_prompt, char *out, size_t capacity_bytes, size_t *size_bytes,
       char *error)
{
    const actor_gateway_checkpoint_t *self = context;
    require(self->chat_template != NULL);
    file_chat_message_t *list = calloc(count, sizeof *list);
    if (list == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (size_t at = 0; at < count; at++) {
        list[at] = (file_chat_message_t){
            .role = messages[at].role,
            .role_size_bytes = messages[at].role_size_bytes,
            .content = messages[at].content,
            .content_size_bytes = messages[at].content_size_bytes,
        };
    }
    file_chat_render_t call = {
        .messages = list,
        .message_count = count,
        .add_generation_prompt = add_generation_prompt,
        .bos = self->bos,
        .eos = self->eos,
        .out = out,
        .out_size_bytes = capacity_bytes,
    };
    proto_status_t status = file_chat_template_render(self->chat_template, &call, error,
                                                      ACTOR_TEXT_ERROR_SIZE_BYTES, size_bytes);
    free(list);
    return status;
}

static void
copy_token(const file_tokenizer_t *tokenizer, int32_t id, char *out, size_t size_bytes)
{
    file_bytes_t found;
    out[0] = '\0';
    if (id != FILE_ID_NONE && file_tokenizer_token_bytes(tokenizer, id, &found) == STATUS_OK &&
        found.size_bytes < size_bytes) {
        memcpy(out, found.bytes, found.size_bytes);
        out[found.size_bytes] = '\0';
    }
}

static proto_status_t
open_template(actor_gateway_checkpoint_t *self, const char *chat_template, char *error)
{
    if (chat_template != NULL) {
        return file_chat_template_open_named(chat_template, error, ACTOR_TEXT_ERROR_SIZE_BYTES,
                                             &self->chat_template);
    }
    proto_status_t status =
        file_chat_template_open(self->model, self->chat_missing, sizeof self->chat_missing,
                                &self->chat_template);
    /* A checkpoint without a known template still serves completions. */
    bool usable =
        status == STATUS_OK || status == STATUS_ERR_NOT_FOUND || status == STATUS_ERR_UNSUPPORTED;
    if (!usable) {
        (void)snprintf(error, ACTOR_TEXT_ERROR_SIZE_BYTES, "%s", self->chat_missing);
        return status;
    }
    return STATUS_OK;
}

static void
fill_table(actor_gateway_checkpoint_t *self)
{
    const file_config_t *config = file_model_config(self->model);
    self->text = (actor_gateway_text_t){
        .context = self,
        .model_name = config->name,
        .vocab_size = config->vocab_size,
        .context_len = config->context_len,
        .chat_adds_special =
            self->chat_template != NULL && !file_chat_template_has_bos(self->chat_template),
        .chat_missing = self->chat_template == NULL ? self->chat_missing : NULL,
        .encode = encode,
        .token_bytes = token_bytes,
        .is_special = is_special,
        .render = render,
    };
    for (uint32_t at = 0; at < config->stop_id_count; at++) {
        self->text.stop_ids[self->text.stop_id_count++] = config->stop_ids[at];
    }
    copy_token(self->tokenizer, config->bos_id, self->bos, sizeof self->bos);
    copy_token(self->tokenizer, config->eos_id, self->eos, sizeof self->eos);
}

proto_status_t
actor_gateway_checkpoint_open(const char *model_path, const char *chat_template, char *error,
                              actor_gateway_checkpoint_t **out_p)
{
    require(model_path != NULL);
    require(out_p != NULL);
    error[0] = '\0';
    actor_gateway_checkpoint_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status =
        file_model_open(model_path, error, ACTOR_TEXT_ERROR_SIZE_BYTES, &self->model);
    if (status == STATUS_OK) {
        status =
            file_tokenizer_open(self->model, error, ACTOR_TEXT_ERROR_SIZE_BYTES, &self->tokenizer);
    }
    if (status == STATUS_OK) {
        status = open_template(self, chat_template, error);
    }
    if (status == STATUS_OK) {
        /* What cannot fit the context need not be encoded to know it. */
        size_t longest = (size_t)file_model_config(self->model)->context_len *
                         file_tokenizer_token_size_bytes_max(self->tokenizer);
        longest = longest < LANE_1_TEXT_SIZE_MIN ? LANE_1_TEXT_SIZE_MIN : longest;
        longest = longest > LANE_1_TEXT_SIZE_MAX ? LANE_1_TEXT_SIZE_MAX : longest;
        status = file_tokenizer_scratch_new(LANE_0_TEXT_SIZE, &self->scratch[0]);
        if (status == STATUS_OK) {
            status = file_tokenizer_scratch_new(longest, &self->scratch[1]);
        }
    }
    if (status != STATUS_OK) {
        actor_gateway_checkpoint_close(&self);
        return status;
    }
    fill_table(self);
    *out_p = self;
    return STATUS_OK;
}

void
actor_gateway_checkpoint_close(actor_gateway_checkpoint_t **self_p)
{
    require(self_p != NULL);
    actor_gateway_checkpoint_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (int lane = 0; lane < ACTOR_TEXT_LANE_COUNT; lane++) {
        file_tokenizer_scratch_destroy(&self->scratch[lane]);
    }
    file_chat_template_close(&self->chat_template);
    file_tokenizer_close(&self->tokenizer);
    file_model_close(&self->model);
    free(self);
    *self_p = NULL;
}

const actor_gateway_text_t *
actor_gateway_checkpoint_text(const actor_gateway_checkpoint_t *self)
{
    return &self->text;
}
