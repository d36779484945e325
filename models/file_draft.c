/* Draft folders: config, roles, and whether they belong to the target. */
#include "file_draft.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "file_model_internal.h"
#include "proto_require.h"

enum { NAME_SIZE_BYTES = 96, HEX_SIZE_BYTES = 2 * FILE_DIGEST_SIZE_BYTES + 1 };

typedef struct {
    const file_config_t *target;
    file_draft_t *out;
} reader_t;

static const struct {
    const char *architecture;
    const char *name;
    const char *like; /* whose config it has */
} KINDS[] = {
    [FILE_DRAFT_EAGLE3] = {"LlamaForCausalLMEagle3", "eagle3", "LlamaForCausalLM"},
    [FILE_DRAFT_MTP] = {"LlamaForCausalLMMTP", "mtp", "LlamaForCausalLM"},
    [FILE_DRAFT_DFLASH] = {"DFlashDraftModel", "dflash", "Qwen3ForCausalLM"},
    [FILE_DRAFT_DSPARK] = {"DSparkDraftModel", "dspark", "Qwen3ForCausalLM"},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

const char *
file_draft_kind_name(file_draft_kind_t kind)
{
    require((unsigned)kind < KIND_COUNT);
    return KINDS[kind].name;
}

void
file_draft_fini(file_draft_t *self)
{
    free(self->offsets);
    self->offsets = NULL;
}

/* ---- config.json ----------------------------------------------------------------------------- */

static bool
find_kind(const json_t *config, file_draft_kind_t *out)
{
    const char *name =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    for (uint32_t i = 0; name != NULL && i < KIND_COUNT; i++) {
        if (strcmp(name, KINDS[i].architecture) == 0) {
            *out = (file_draft_kind_t)i;
            return true;
        }
    }
    return false;
}

/* A key that is missing is the fallback. */
static bool
read_count(const json_t *object, const char *key, uint32_t fallback, uint32_t *out)
{
    const json_t *value = json_object_get(object, key);
    *out = fallback;
    if (value == NULL || json_is_null(value)) {
        return true;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > FILE_VOCAB_SIZE_MAX) {
        return false;
    }
    *out = (uint32_t)json_integer_value(value);
    return true;
}

/* Layers in a list; `behind` is what is taken off: 1 where a list names the layer that a tap goes
 * into. */
static proto_status_t
read_taps(const json_t *list, uint32_t behind, const file_config_t *target, file_draft_t *out,
          file_error_t error)
{
    size_t count = json_array_size(list);
    if (count == 0 || count > FILE_DRAFT_TAP_COUNT_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config.json: the list of tapped layers must have 1 to %d of them",
                              FILE_DRAFT_TAP_COUNT_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t layer = json_is_integer(value) ? json_integer_value(value) - behind : -1;
        if (layer < 0 || layer >= (json_int_t)target->layer_count) {
            return file_error_set(error, STATUS_ERR_CONFIG,
                                  "the draft taps layer %" JSON_INTEGER_FORMAT
                                  "; the target has layers 0 to %" PRIu32,
                                  layer, target->layer_count - 1);
        }
        if (i > 0 && (uint32_t)layer <= out->tap_layers[i - 1]) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "config.json: tapped layers must ascend");
        }
        out->tap_layers[i] = (uint32_t)layer;
    }
    out->tap_count = (uint32_t)count;
    return STATUS_OK;
}

/* Three taps: what goes into layers 2, L / 2 and L - 3, unless a list says otherwise. */
static proto_status_t
read_eagle3(const json_t *config, const file_config_t *target, file_draft_t *out,
            file_error_t error)
{
    const json_t *eagle = json_object_get(config, "eagle_config");
    const json_t *list = json_object_get(eagle, "eagle_aux_hidden_state_layer_ids");
    list = list != NULL ? list : json_object_get(config, "eagle_aux_hidden_state_layer_ids");
    if (json_is_array(list)) {
        return read_taps(list, 1, target, out, error);
    }
    uint32_t layers = target->layer_count;
    if (layers < 7) {
        return file_error_set(error, STATUS_ERR_CONFIG,
                              "the target has %" PRIu32
                              " layers: eagle_aux_hidden_state_layer_ids must say which to tap",
                              layers);
    }
    out->tap_count = 3;
    out->tap_layers[0] = 1;
    out->tap_layers[1] = layers / 2 - 1;
    out->tap_layers[2] = layers - 4;
    return STATUS_OK;
}

static proto_status_t
read_block(const json_t *config, const file_config_t *target, file_draft_t *out, file_error_t error)
{
    const json_t *dflash = json_object_get(config, "dflash_config");
    uint32_t mask = 0;
    if (!read_count(config, "block_size", 0, &out->block_size) || out->block_size < 2 ||
        out->block_size > FILE_DRAFT_BLOCK_SIZE_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config.json: 'block_size' must be a number from 2 to %d",
                              FILE_DRAFT_BLOCK_SIZE_MAX);
    }
    if (!json_is_integer(json_object_get(dflash, "mask_token_id")) ||
        !read_count(dflash, "mask_token_id", 0, &mask) || mask >= target->vocab_size) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config.json: 'dflash_config.mask_token_id' must be a token of the "
                              "target's vocabulary of %" PRIu32,
                              target->vocab_size);
    }
    out->mask_token_id = (int32_t)mask;
    if (out->kind == FILE_DRAFT_DSPARK &&
        (!read_count(config, "markov_rank", 0, &out->markov_rank) || out->markov_rank == 0)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config.json: 'markov_rank' must be a number over 0");
    }
    return read_taps(json_object_get(dflash, "target_layer_ids"), 0, target, out, error);
}

static void
hex_of(const uint8_t *digest, char out[HEX_SIZE_BYTES])
{
    for (size_t i = 0; i < FILE_DIGEST_SIZE_BYTES; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
    }
}

/* One digest or a list of them: the same weights in several containers. */
static proto_status_t
check_digest(const json_t *config, const file_config_t *target, file_error_t error)
{
    const json_t *wanted = json_object_get(config, "onepath_target_digests");
    char found[HEX_SIZE_BYTES];
    hex_of(target->digest, found);
    if (wanted == NULL || json_is_null(wanted)) {
        return STATUS_OK; /* published heads name none */
    }
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        const char *digest = json_string_value(json_array_get(wanted, i));
        if (digest != NULL && strcmp(digest, found) == 0) {
            return STATUS_OK;
        }
    }
    const char *first = json_string_value(json_array_get(wanted, 0));
    first = first == NULL ? "" : first;
    return file_error_set(error, STATUS_ERR_CONFIG,
                          "the draft was made for a target with digest %s; this target's is %s",
                          file_printable(first, strlen(first)).text, found);
}

static proto_status_t
check_pair(const char *what, uint32_t draft, uint32_t target, file_error_t error)
{
    if (draft == target) {
        return STATUS_OK;
    }
    return file_error_set(error, STATUS_ERR_CONFIG,
                          "the draft was made for a target with a %s of %" PRIu32
                          "; this target's is %" PRIu32,
                          what, draft, target);
}

static proto_status_t
check_target(const json_t *config, const file_config_t *target, file_config_t *own,
             file_draft_t *out, file_error_t error)
{
    uint32_t vocabulary = own->vocab_size;
    if (!read_count(config, "draft_vocab_size", vocabulary, &own->vocab_size) ||
        own->vocab_size == 0 ||
        !read_count(config, "target_hidden_size", own->hidden_size, &out->target_hidden_size)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "config.json: 'draft_vocab_size' and 'target_hidden_size' must be "
                              "numbers over 0");
    }
    out->target_vocab_size = vocabulary;
    proto_status_t status = check_digest(config, target, error);
    if (status == STATUS_OK) {
        status = check_pair("vocabulary", vocabulary, target->vocab_size, error);
    }
    if (status == STATUS_OK) {
        status = check_pair("hidden size", out->target_hidden_size, target->hidden_size, error);
    }
    if (status == STATUS_OK && own->vocab_size > vocabulary) {
        status = file_error_set(error, STATUS_ERR_MALFORMED,
                                "config.json: a draft vocabulary of %" PRIu32
                                " tokens; the target has %" PRIu32,
                                own->vocab_size, vocabulary);
    }
    return status;
}

/* The reader of a model's config does the rest, told whose config this one is like. */
static proto_status_t
read_like(const json_t *config, file_draft_kind_t kind, file_config_t *out, file_error_t error)
{
    json_t *like = json_copy((json_t *)(uintptr_t)config);
    json_t *names = json_array();
    int failed = json_array_append_new(names, json_string(KINDS[kind].like));
    failed |= json_object_set_new(like, "architectures", names);
    (void)json_object_del(like, "layer_types"); /* masks, not retention */
    proto_status_t status = failed != 0
                                ? file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory")
                                : file_config_from_json(like, NULL, out, error);
    json_decref(like);
    return status;
}

static proto_status_t
read_config(void *context, const json_t *config, file_config_t *out, file_error_t error)
{
    reader_t *self = context;
    file_draft_t *draft = self->out;
    if (!json_is_object(config) || !find_kind(config, &draft->kind)) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "config.json names no draft architecture; supported are %s, %s, %s, "
                              "%s",
                              KINDS[0].architecture, KINDS[1].architecture, KINDS[2].architecture,
                              KINDS[3].architecture);
    }
    proto_status_t status = read_like(config, draft->kind, out, error);
    if (status == STATUS_OK) {
        status = check_target(config, self->target, out, draft, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (draft->kind == FILE_DRAFT_EAGLE3) {
        status = read_eagle3(config, self->target, draft, error);
    } else if (draft->kind == FILE_DRAFT_MTP) {
        draft->tap_count = 1;
        draft->tap_layers[0] = FILE_DRAFT_TAP_FINAL;
        status = check_pair("hidden size", out->hidden_size, self->target->hidden_size, error);
    } else {
        status = read_block(config, self->target, draft, error);
    }
    return status == STATUS_OK ? file_config_check(out, error) : status;
}

/* ---- roles ----------------------------------------------------------------------------------- */

typedef struct {
    file_role_t role;
    const char *pattern; /* "%u" = the layer */
    file_form_t form;
    uint32_t rows;
    uint32_t cols;
    bool is_optional;
} wanted_t;

static file_tensor_t *
slot_of(file_model_t *self, file_role_t role, uint32_t layer)
{
    size_t at = role < FILE_ROLE_FIRST_OF_LAYER
                    ? (size_t)role
                    : FILE_ROLE_FIRST_OF_LAYER + (size_t)layer * FILE_ROLES_PER_LAYER +
                          (size_t)(role - FILE_ROLE_FIRST_OF_LAYER);
    return &self->roles[at];
}

static void
name_of(const char *pattern, uint32_t layer, char out[NAME_SIZE_BYTES])
{
    const char *number = strstr(pattern, "%u");
    if (number == NULL) {
        (void)snprintf(out, NAME_SIZE_BYTES, "%s", pattern);
    } else {
        (void)snprintf(out, NAME_SIZE_BYTES, "%.*s%" PRIu32 "%s", (int)(number - pattern), pattern,
                       layer, number + 2);
    }
}

static proto_status_t
bind_all(file_model_t *self, const wanted_t *wanted, size_t count, uint32_t layer,
         file_error_t error)
{
    for (size_t i = 0; i < count; i++) {
        char name[NAME_SIZE_BYTES];
        name_of(wanted[i].pattern, layer, name);
        if (wanted[i].is_optional && file_tensors_find(&self->tensors, name) == NULL) {
            continue;
        }
        proto_status_t status =
            file_model_bind(self, name, wanted[i].form, wanted[i].rows, wanted[i].cols, error,
                            slot_of(self, wanted[i].role, layer));
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

/* Attention and feed-forward of a layer under a prefix; `inputs` columns go into q, k and v. */
static proto_status_t
bind_layer(file_model_t *self, const char *prefix, uint32_t inputs, uint32_t layer,
           file_error_t error)
{
    const file_config_t *c = &self->config;
    uint32_t hidden = c->hidden_size;
    uint32_t q_size = c->head_count * c->head_dim;
    uint32_t kv_size = c->kv_head_count * c->head_dim;
    const struct {
        file_role_t role;
        const char *name;
        file_form_t form;
        uint32_t rows;
        uint32_t cols;
        bool is_wanted;
    } parts[] = {
        {FILE_ROLE_ATTN_NORM, "input_layernorm.weight", FILE_FORM_VECTOR, 1, hidden, true},
        {FILE_ROLE_FFN_NORM, "post_attention_layernorm.weight", FILE_FORM_VECTOR, 1, hidden, true},
        {FILE_ROLE_ATTN_Q, "self_attn.q_proj.weight", FILE_FORM_MATRIX, q_size, inputs, true},
        {FILE_ROLE_ATTN_K, "self_attn.k_proj.weight", FILE_FORM_MATRIX, kv_size, inputs, true},
        {FILE_ROLE_ATTN_V, "self_attn.v_proj.weight", FILE_FORM_MATRIX, kv_size, inputs, true},
        {FILE_ROLE_ATTN_O, "self_attn.o_proj.weight", FILE_FORM_MATRIX, hidden, q_size, true},
        {FILE_ROLE_ATTN_Q_NORM, "self_attn.q_norm.weight", FILE_FORM_VECTOR, 1, c->head_dim,
         c->has_qk_norm},
        {FILE_ROLE_ATTN_K_NORM, "self_attn.k_norm.weight", FILE_FORM_VECTOR, 1, c->head_dim,
         c->has_qk_norm},
        {FILE_ROLE_FFN_GATE, "mlp.gate_proj.weight", FILE_FORM_MATRIX, c->ffn_size, hidden, true},
        {FILE_ROLE_FFN_UP, "mlp.up_proj.weight", FILE_FORM_MATRIX, c->ffn_size, hidden, true},
        {FILE_ROLE_FFN_DOWN, "mlp.down_proj.weight", FILE_FORM_MATRIX, hidden, c->ffn_size, true},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char pattern[NAME_SIZE_BYTES];
        (void)snprintf(pattern, sizeof pattern, "%s%s", prefix, parts[i].name);
        const wanted_t wanted = {parts[i].role, pattern,       parts[i].form,
                                 parts[i].rows, parts[i].cols, false};
        proto_status_t status =
            parts[i].is_wanted ? bind_all(self, &wanted, 1, layer, error) : STATUS_OK;
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

/* The map of a reduced vocabulary: entry i is the target's id minus i. */
static proto_status_t
read_offsets(file_model_t *self, file_draft_t *out, file_error_t error)
{
    uint32_t count = self->config.vocab_size;
    file_stored_t *stored = file_tensors_find(&self->tensors, "d2t");
    file_stored_t *inverse = file_tensors_find(&self->tensors, "t2d");
    if (inverse != NULL) {
        inverse->is_used = true; /* what d2t says, the other way round: for training */
    }
    if (stored == NULL) {
        return count == out->target_vocab_size
                   ? STATUS_OK
                   : file_error_set(error, STATUS_ERR_MALFORMED,
                                    "tensor 'd2t' is missing: the draft vocabulary is %" PRIu32
                                    " of %" PRIu32 " tokens",
                                    count, out->target_vocab_size);
    }
    stored->is_used = true;
    if (stored->element == NULL || strcmp(stored->element, "I64") != 0 || stored->rank != 1 ||
        stored->shape[0] != count) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor 'd2t' must be I64 of shape [%" PRIu32 "]", count);
    }
    out->offsets = malloc(count * sizeof *out->offsets);
    if (out->offsets == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the vocabulary map");
    }
    for (uint32_t i = 0; i < count; i++) {
        int64_t offset = 0;
        memcpy(&offset, stored->data + (size_t)i * sizeof offset, sizeof offset);
        if (offset < -(int64_t)i || offset >= (int64_t)(out->target_vocab_size - i)) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "tensor 'd2t': token %" PRIu32
                                  " of the draft is none of the target's %" PRIu32,
                                  i, out->target_vocab_size);
        }
        out->offsets[i] = (int32_t)offset;
    }
    return STATUS_OK;
}

static proto_status_t
bind_eagle3(file_model_t *self, const file_draft_t *draft, file_error_t error)
{
    const file_config_t *c = &self->config;
    if (c->layer_count != 1) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "an EAGLE3 head of %" PRIu32 " layers; supported is 1",
                              c->layer_count);
    }
    uint32_t hidden = c->hidden_size;
    const wanted_t wanted[] = {
        {FILE_ROLE_DRAFT_FC, "fc.weight", FILE_FORM_MATRIX, hidden,
         draft->tap_count * draft->target_hidden_size, false},
        {FILE_ROLE_DRAFT_HIDDEN_NORM, "midlayer.hidden_norm.weight", FILE_FORM_VECTOR, 1, hidden,
         false},
    };
    proto_status_t status = bind_all(self, wanted, sizeof wanted / sizeof *wanted, 0, error);
    return status == STATUS_OK ? bind_layer(self, "midlayer.", 2 * hidden, 0, error) : status;
}

static proto_status_t
bind_mtp(file_model_t *self, file_error_t error)
{
    uint32_t hidden = self->config.hidden_size;
    const wanted_t wanted[] = {
        {FILE_ROLE_DRAFT_EMBED_NORM, "model.layers.%u.enorm.weight", FILE_FORM_VECTOR, 1, hidden,
         false},
        {FILE_ROLE_DRAFT_HIDDEN_NORM, "model.layers.%u.hnorm.weight", FILE_FORM_VECTOR, 1, hidden,
         false},
        {FILE_ROLE_DRAFT_EH_PROJ, "model.layers.%u.eh_proj.weight", FILE_FORM_MATRIX, hidden,
         2 * hidden, false},
        {FILE_ROLE_DRAFT_HEAD_NORM, "model.layers.%u.shared_head.norm.weight", FILE_FORM_VECTOR, 1,
         hidden, false},
    };
    for (uint32_t layer = 0; layer < self->config.layer_count; layer++) {
        proto_status_t status =
            bind_all(self, wanted, sizeof wanted / sizeof *wanted, layer, error);
        if (status == STATUS_OK) {
            status = bind_layer(self, "model.layers.%u.", hidden, layer, error);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static proto_status_t
bind_block(file_model_t *self, const file_draft_t *draft, file_error_t error)
{
    const file_config_t *c = &self->config;
    const wanted_t wanted[] = {
        {FILE_ROLE_DRAFT_FC, "fc.weight", FILE_FORM_MATRIX, c->hidden_size,
         draft->tap_count * draft->target_hidden_size, false},
        {FILE_ROLE_DRAFT_CONTEXT_NORM, "hidden_norm.weight", FILE_FORM_VECTOR, 1, c->hidden_size,
         false},
        {FILE_ROLE_DRAFT_MARKOV_IN, "markov_w1.weight", FILE_FORM_MATRIX, draft->target_vocab_size,
         draft->markov_rank, false},
        {FILE_ROLE_DRAFT_MARKOV_OUT, "markov_w2.weight", FILE_FORM_MATRIX, draft->target_vocab_size,
         draft->markov_rank, false},
    };
    size_t count = draft->kind == FILE_DRAFT_DSPARK ? 4 : 2;
    proto_status_t status = bind_all(self, wanted, count, 0, error);
    for (uint32_t layer = 0; status == STATUS_OK && layer < c->layer_count; layer++) {
        status = bind_layer(self, "layers.%u.", c->hidden_size, layer, error);
    }
    file_stored_t *confidence = file_tensors_find(&self->tensors, "confidence_head.weight");
    if (confidence != NULL && draft->kind == FILE_DRAFT_DSPARK) {
        confidence->is_used = true; /* every candidate is verified */
    }
    return status;
}

static proto_status_t
check_all_used(const file_model_t *self, const file_draft_t *draft, file_error_t error)
{
    for (uint32_t i = 0; i < self->tensors.count; i++) {
        const file_stored_t *stored = &self->tensors.items[i];
        if (!stored->is_used) {
            return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                                  "tensor '%s' is no part of a draft of kind %s",
                                  file_printable(stored->name.bytes, stored->name.size_bytes).text,
                                  file_draft_kind_name(draft->kind));
        }
    }
    return STATUS_OK;
}

static proto_status_t
assign_roles(void *context, file_model_t *self, file_error_t error)
{
    reader_t *reader = context;
    file_draft_t *draft = reader->out;
    const file_config_t *c = &self->config;
    self->roles = calloc(FILE_ROLE_FIRST_OF_LAYER + (size_t)c->layer_count * FILE_ROLES_PER_LAYER,
                         sizeof *self->roles);
    if (self->roles == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the tensor roles");
    }
    const wanted_t ends[] = {
        {FILE_ROLE_TOKEN_EMBED, "embed_tokens.weight", FILE_FORM_MATRIX, draft->target_vocab_size,
         c->hidden_size, true},
        {FILE_ROLE_OUTPUT, "lm_head.weight", FILE_FORM_MATRIX, c->vocab_size, c->hidden_size, true},
        {FILE_ROLE_OUTPUT_NORM, "norm.weight", FILE_FORM_VECTOR, 1, c->hidden_size,
         draft->kind == FILE_DRAFT_MTP},
    };
    proto_status_t status = bind_all(self, ends, sizeof ends / sizeof *ends, 0, error);
    if (status == STATUS_OK && draft->kind == FILE_DRAFT_EAGLE3) {
        status = bind_eagle3(self, draft, error);
    } else if (status == STATUS_OK && draft->kind == FILE_DRAFT_MTP) {
        status = bind_mtp(self, error);
    } else if (status == STATUS_OK) {
        status = bind_block(self, draft, error);
    }
    if (status == STATUS_OK) {
        status = read_offsets(self, draft, error);
    }
    if (status == STATUS_OK) {
        status = check_all_used(self, draft, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    draft->has_embed = slot_of(self, FILE_ROLE_TOKEN_EMBED, 0)->data != NULL;
    draft->has_output = slot_of(self, FILE_ROLE_OUTPUT, 0)->data != NULL;
    if (!draft->has_output && c->vocab_size != draft->target_vocab_size) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor 'lm_head.weight' is missing: a reduced vocabulary needs it");
    }
    if ((!draft->has_embed || !draft->has_output) && c->hidden_size != draft->target_hidden_size) {
        return check_pair("hidden size", c->hidden_size, draft->target_hidden_size, error);
    }
    file_model_summarise_types(self);
    return STATUS_OK;
}

proto_status_t
file_draft_open(const char *path, const file_config_t *target, char *error, size_t error_size_bytes,
                file_draft_t *out, file_model_t **out_p)
{
    require(target != NULL);
    file_draft_t draft = {.kind = FILE_DRAFT_EAGLE3};
    reader_t context = {.target = target, .out = &draft};
    const file_folder_reader_t reader = {.context = &context,
                                         .read_config = read_config,
                                         .assign_roles = assign_roles};
    proto_status_t status =
        file_model_open_as(path, &reader, file_error_init(error, error_size_bytes), out_p);
    if (status != STATUS_OK) {
        file_draft_fini(&draft);
        return status;
    }
    *out = draft;
    return STATUS_OK;
}

bool
file_draft_is_draft(const char *path)
{
    char file[4096];
    int size_bytes = snprintf(file, sizeof file, "%s/config.json", path);
    if (size_bytes < 0 || (size_t)size_bytes >= sizeof file) {
        return false;
    }
    file_map_t map = {0};
    file_error_t quiet = {NULL, 0};
    if (file_map_open(file, quiet, &map) != STATUS_OK) {
        return false;
    }
    static const file_json_limits_t LIMITS = {"config.json", 1 << 20, 16, 1 << 16};
    json_t *config = NULL;
    file_draft_kind_t kind;
    proto_status_t status = file_json_parse(map.bytes, map.size_bytes, &LIMITS, quiet, &config);
    bool is_draft = status == STATUS_OK && find_kind(config, &kind);
    json_decref(config);
    file_map_close(&map);
    return is_draft;
}
