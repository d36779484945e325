/* Copies on one host: the receiver reads the source's arena, and looks into its book before and
 * after. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "actor_fault.h"
#include "actor_kv_data_state.h"
#include "proto_require.h"

typedef struct {
    kv_job_t *job;
    uint64_t size_bytes;
    bool checksums;
} copy_t;

static bool
copy_run(void *context, uint32_t index, const uint8_t *from, uint8_t *to, size_t size_bytes)
{
    copy_t *copy = context;
    memcpy(to, from, size_bytes);
    copy->size_bytes += size_bytes;
    if (copy->checksums) {
        copy->job->sums[index] = XXH3_64bits_withSeed(from, size_bytes, copy->job->sums[index]);
    }
    return true;
}

static bool
sum_run(void *context, uint32_t index, const uint8_t *from, uint8_t *to, size_t size_bytes)
{
    (void)from;
    uint64_t *sums = context;
    sums[index] = XXH3_64bits_withSeed(to, size_bytes, sums[index]);
    return true;
}

/* The gate and the generation of each block, as they were announced. */
static proto_status_t
check_source(const kv_place_t *place, const kv_job_t *job, char *detail)
{
    if (!actor_kv_book_is_open(&place->book, job->gate, job->transfer)) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES, "the source has closed its gate");
        return STATUS_ERR_STALE;
    }
    for (uint32_t i = 0; i < job->count; i++) {
        uint32_t now = actor_kv_book_generation(&place->book, job->groups[i], job->from_blocks[i]);
        if (now != job->from_generations[i]) {
            (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES,
                           "block %" PRIu32 " of group %u is of generation %" PRIu32 ", %" PRIu32
                           " was announced",
                           job->from_blocks[i], job->groups[i], now, job->from_generations[i]);
            return STATUS_ERR_STALE;
        }
    }
    return STATUS_OK;
}

static proto_status_t
check_sums(actor_kv_data_t *self, kv_job_t *job, const actor_kv_route_t *route, char *detail)
{
    uint64_t *landed = (uint64_t *)(void *)self->scratch;
    actor_kv_piece_t piece = actor_kv_job_piece(job);
    require(job->count * sizeof *landed <= KV_FRAME_SIZE_BYTES);
    memset(landed, 0, job->count * sizeof *landed);
    (void)actor_kv_route_walk(route, &piece, NULL, &self->places[0].side, sum_run, landed);
    for (uint32_t i = 0; i < job->count; i++) {
        if (landed[i] != job->sums[i]) {
            (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES,
                           "checksum of block %" PRIu32 ": %016" PRIx64 " read, %016" PRIx64
                           " landed",
                           job->to_blocks[i], job->sums[i], landed[i]);
            return STATUS_ERR_MALFORMED;
        }
    }
    return STATUS_OK;
}

static proto_status_t
shared_fetch(actor_kv_data_t *self, kv_job_t *job, uint64_t *size_bytes_p, char *detail)
{
    kv_place_t *place = &self->places[job->peer];
    const actor_kv_route_t *route = NULL;
    proto_status_t status = actor_kv_place_route(self, job->peer, true, &route, detail);
    if (status == STATUS_OK) {
        status = check_source(place, job, detail);
    }
    if (status != STATUS_OK) {
        return status;
    }
    copy_t copy = {.job = job, .checksums = self->options.checksums};
    memset(job->sums, 0, job->count * sizeof *job->sums);
    actor_kv_piece_t piece = actor_kv_job_piece(job);
    (void)actor_kv_route_walk(route, &piece, &place->side, &self->places[0].side, copy_run, &copy);
    if (ACTOR_FAULT("kv.receive.corrupt") && job->count > 0) {
        const actor_kv_field_t *field = &self->places[0].layouts[0].fields[0];
        self->places[0]
            .side.arenas[0][field->page0_offset_bytes + job->to_blocks[0] * field->stride_bytes] ^=
            0xff;
    }
    if (ACTOR_FAULT("kv.receive.before_check")) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES, "a fault was asked for");
        return STATUS_ERR_CANCELLED;
    }
    /* What was read counts only if it was still theirs when the last byte had been read. */
    status = check_source(place, job, detail);
    if (status == STATUS_OK && self->options.checksums) {
        status = check_sums(self, job, route, detail);
    }
    *size_bytes_p = copy.size_bytes;
    return status;
}

static void
shared_drop(actor_kv_data_t *self, kv_job_t *job)
{
    (void)self;
    (void)job;
}

const actor_kv_transport_t actor_kv_transport_shared = {.name = "shared memory",
                                                        .fetch = shared_fetch,
                                                        .drop = shared_drop};

/* ---- CUDA IPC ---------------------------------------------------------------------------------
 */

static proto_status_t
cuda_ipc_fetch(actor_kv_data_t *self, kv_job_t *job, uint64_t *size_bytes_p, char *detail)
{
    (void)self;
    (void)job;
    *size_bytes_p = 0;
    (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES,
                   "copies between GPUs by CUDA IPC are not made yet; use TCP");
    return STATUS_ERR_UNSUPPORTED;
}

const actor_kv_transport_t actor_kv_transport_cuda_ipc = {.name = "CUDA IPC",
                                                          .fetch = cuda_ipc_fetch,
                                                          .drop = shared_drop};
