#include "draft_open.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "draft_block.h"
#include "draft_chain.h"
#include "draft_eagle3.h"
#include "draft_mtp.h"
#include "file_draft.h"
#include "proto_require.h"

static proto_status_t fail(const draft_options_t *options, proto_status_t status,
                           const char *format, ...) __attribute__((format(printf, 3, 4)));

static proto_status_t
fail(const draft_options_t *options, proto_status_t status, const char *format, ...)
{
    if (options->error != NULL && options->error_size_bytes > 0) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(options->error, options->error_size_bytes, format, args);
        va_end(args);
    }
    return status;
}

/* A whole model: it must have the target's vocabulary, and layers that keep keys and values of
 * every token. */
static proto_status_t
open_model(const draft_options_t *options, draft_t **out_p)
{
    file_model_t *file = NULL;
    const file_config_t *target = file_model_config(options->target);
    proto_status_t status =
        file_model_open(options->path, options->error, options->error_size_bytes, &file);
    if (status != STATUS_OK) {
        return status;
    }
    const file_config_t *c = file_model_config(file);
    bool is_plain = c->latent_dim == 0;
    for (uint32_t i = 0; i < c->layer_count; i++) {
        is_plain = is_plain && c->layer_kinds[i] == FILE_LAYER_FULL;
    }
    model_t *model = NULL;
    if (c->vocab_size != target->vocab_size) {
        status = fail(options, STATUS_ERR_CONFIG,
                      "the draft model has a vocabulary of %" PRIu32 "; the target's is %" PRIu32,
                      c->vocab_size, target->vocab_size);
    } else if (!is_plain) {
        status = fail(options, STATUS_ERR_CONFIG,
                      "a %s cannot draft: all its layers would have to keep keys and values of "
                      "every token",
                      file_arch_name(c->arch));
    } else {
        status = model_new(options->device, file, NULL, NULL, &model);
    }
    if (status == STATUS_OK) {
        draft_chain_options_t chain = {
            .target = {.kind = "model", .vocabulary = target->vocab_size}};
        model_set_activations(model, options->activations);
        status = draft_chain_new(options, &chain, &model, out_p);
        model_destroy(&model);
    }
    if (status == STATUS_OK) {
        draft_keep_file(*out_p, &file);
    }
    file_model_close(&file);
    return status;
}

/* The drafter over a model of its kind; takes the model on success. */
static proto_status_t
make_head(const draft_options_t *options, const file_draft_t *draft, model_t **model_p,
          draft_t **out_p)
{
    const draft_target_t target = {
        .kind = file_draft_kind_name(draft->kind),
        .taps = draft->tap_count,
        .tap_layers = draft->tap_layers,
        .tap_size = draft->target_hidden_size,
        .vocabulary = draft->target_vocab_size,
    };
    if (draft->kind == FILE_DRAFT_EAGLE3) {
        draft_chain_options_t chain = {.target = target,
                                       .is_head = true,
                                       .offsets = draft->offsets};
        return draft_chain_new(options, &chain, model_p, out_p);
    }
    if (draft->kind == FILE_DRAFT_MTP) {
        return draft_mtp_new(options, &target, model_p, out_p);
    }
    return draft_block_new(options, &target, draft, model_p, out_p);
}

static proto_status_t
open_head(const draft_options_t *options, draft_t **out_p)
{
    file_model_t *file = NULL;
    file_draft_t draft;
    const file_config_t *config = file_model_config(options->target);
    proto_status_t status = file_draft_open(options->path, config, options->error,
                                            options->error_size_bytes, &draft, &file);
    if (status != STATUS_OK) {
        return status;
    }
    model_t *model = NULL;
    if (draft.kind == FILE_DRAFT_EAGLE3) {
        status = draft_eagle3_new(options->device, file, &draft, options->target, &model);
    } else if (draft.kind == FILE_DRAFT_MTP) {
        status = draft_mtp_model_new(options->device, file, &draft, options->target, &model);
    } else {
        status = draft_block_model_new(options->device, file, &draft, options->target, &model);
    }
    if (status == STATUS_OK) {
        model_set_activations(model, options->activations);
        status = make_head(options, &draft, &model, out_p);
    }
    model_destroy(&model);
    if (status == STATUS_OK) {
        draft_keep_file(*out_p, &file);
    }
    file_draft_fini(&draft);
    file_model_close(&file);
    return status;
}

proto_status_t
draft_open(const draft_options_t *options, draft_t **out_p)
{
    require(options->target != NULL);
    if (options->width < 2 || options->width > DRAFT_WIDTH_MAX) {
        return fail(options, STATUS_ERR_CONFIG,
                    "a drafter and a width of %" PRIu32 "; from 2 to %d", options->width,
                    (int)DRAFT_WIDTH_MAX);
    }
    if (!options->device->has_all_ops) {
        return fail(options, STATUS_ERR_CONFIG, "the %s device has no operations of drafters yet",
                    options->device->name);
    }
    struct stat info;
    if (stat(options->path, &info) != 0) {
        return fail(options, STATUS_ERR_CONFIG, "the draft model '%s' cannot be opened: %s",
                    options->path, strerror(errno));
    }
    return file_draft_is_draft(options->path) ? open_head(options, out_p)
                                              : open_model(options, out_p);
}
