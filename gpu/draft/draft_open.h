/* draft_open.h - makes the drafter that a path names: a draft folder (file_draft.h), or a whole
 * model's checkpoint, which then drafts as a smaller model with the same vocabulary.  At start; the
 * loading thread. */
#ifndef DRAFT_OPEN_H
#define DRAFT_OPEN_H

#include "draft_base.h"
#include "file_model.h"
#include "kern_linear.h"

enum { DRAFT_CAPTURE_COUNT_MAX = 128 };

typedef struct {
    const char *path;
    const file_model_t *target; /* lends embedding and head, which stay in its mapping where the
                                 * device uses them in place: it must outlive the drafter */
    device_t *device;           /* lent, as the stream */
    device_stream_t *stream;    /* everything is launched on it */
    uint32_t width;             /* N, 2..DRAFT_WIDTH_MAX */
    uint32_t slot_count;
    uint32_t bs_max;
    uint32_t rows_max;             /* of a round */
    uint32_t model_len_max;        /* of the target's requests */
    uint32_t page_size;            /* kernel page; 0 = min(granularity, 64) */
    const uint32_t *capture_sizes; /* ascending decode batches, at most bs_max; lent for the call */
    uint32_t capture_size_count;   /* at most DRAFT_CAPTURE_COUNT_MAX; 0 = everything is eager */
    kern_activations_t activations;
    char *error; /* for people; may be NULL */
    size_t error_size_bytes;
} draft_options_t;

/* STATUS_ERR_CONFIG with the error filled: no such path, made for another target, too wide a
 * window, a device without its operations.  Otherwise as file_draft_open().  The caller owns
 * *out_p. */
MUST_CHECK proto_status_t draft_open(const draft_options_t *options, draft_t **out_p);

#endif
