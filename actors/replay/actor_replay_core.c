/* actor_replay_core.c - the player that is a core of this build, made anew at each restore. */
#include <stdlib.h>

#include "actor_replay_player.h"
#include "proto_require.h"

typedef struct {
    actor_replay_player_t base;
    const actor_replay_role_t *role;
    void *core; /* NULL before the first restore */
    const actor_core_ops_t *core_ops;
    actor_outbox_t *outbox;
    uint8_t *saved[2]; /* state and secret */
    size_t saved_capacity_bytes[2];
} core_player_t;

static void
drop_core(core_player_t *self)
{
    actor_outbox_destroy(&self->outbox);
    if (self->core != NULL) {
        self->role->destroy(self->core);
        self->core = NULL;
    }
}

static proto_status_t
restore(actor_replay_player_t *base, proto_bytes_t state, proto_bytes_t secret,
        proto_error_t *error)
{
    core_player_t *self = (core_player_t *)base;
    drop_core(self);
    proto_status_t status = self->role->restore(state, secret, &self->core, &self->core_ops, error);
    if (status != STATUS_OK) {
        self->core = NULL;
        return status;
    }
    return actor_outbox_new(self->core_ops, &self->outbox);
}

static proto_status_t
step(actor_replay_player_t *base, const actor_input_t *input, const proto_log_record_t *record,
     proto_error_t *error)
{
    (void)record;
    (void)error;
    core_player_t *self = (core_player_t *)base;
    require(self->core != NULL);
    actor_outbox_clear(self->outbox);
    proto_require_set_request(input->header->request);
    self->core_ops->step(self->core, input, self->outbox);
    proto_require_set_request(0);
    return STATUS_OK;
}

static uint32_t
output_count(const actor_replay_player_t *base)
{
    const core_player_t *self = (const core_player_t *)base;
    return actor_outbox_count(self->outbox);
}

static const actor_emission_t *
output(const actor_replay_player_t *base, uint32_t index)
{
    const core_player_t *self = (const core_player_t *)base;
    return actor_outbox_at(self->outbox, index);
}

static bool
digest(const actor_replay_player_t *base, uint64_t *out)
{
    const core_player_t *self = (const core_player_t *)base;
    if (self->core == NULL || self->core_ops->digest == NULL) {
        return false;
    }
    *out = self->core_ops->digest(self->core);
    return true;
}

static uint64_t
deadline_ns(const actor_replay_player_t *base)
{
    const core_player_t *self = (const core_player_t *)base;
    return self->core_ops->deadline_ns != NULL ? self->core_ops->deadline_ns(self->core)
                                               : UINT64_MAX;
}

static bool
save(actor_replay_player_t *base, proto_bytes_t *state, proto_bytes_t *secret)
{
    core_player_t *self = (core_player_t *)base;
    if (self->core == NULL || self->core_ops->save == NULL) {
        return false;
    }
    proto_pack_t packs[2] = {{self->saved[0], self->saved_capacity_bytes[0], 0},
                             {self->saved[1], self->saved_capacity_bytes[1], 0}};
    self->core_ops->save(self->core, &packs[0], &packs[1]);
    if (!proto_pack_is_complete(&packs[0]) || !proto_pack_is_complete(&packs[1])) {
        for (uint32_t index = 0; index < 2; index++) {
            /* Half as much again: a growing state must not cost two passes each time. */
            size_t capacity_bytes = packs[index].size_bytes + packs[index].size_bytes / 2 + 4096;
            uint8_t *room = realloc(self->saved[index], capacity_bytes);
            if (room == NULL) {
                return false;
            }
            self->saved[index] = room;
            self->saved_capacity_bytes[index] = capacity_bytes;
            packs[index] = (proto_pack_t){room, capacity_bytes, 0};
        }
        self->core_ops->save(self->core, &packs[0], &packs[1]);
    }
    require(proto_pack_is_complete(&packs[0]));
    require(proto_pack_is_complete(&packs[1]));
    *state = (proto_bytes_t){self->saved[0], packs[0].size_bytes};
    *secret = (proto_bytes_t){self->saved[1], packs[1].size_bytes};
    return true;
}

static void
describe(actor_replay_player_t *base, char *out, size_t capacity_bytes)
{
    core_player_t *self = (core_player_t *)base;
    if (self->core != NULL && self->role->describe != NULL) {
        self->role->describe(self->core, out, capacity_bytes);
    }
}

static void
destroy(actor_replay_player_t **self_p)
{
    core_player_t *self = (core_player_t *)*self_p;
    if (self == NULL) {
        return;
    }
    drop_core(self);
    free(self->saved[0]);
    free(self->saved[1]);
    free(self);
    *self_p = NULL;
}

static const actor_replay_player_ops_t core_player_ops = {.restore = restore,
                                                          .step = step,
                                                          .output_count = output_count,
                                                          .output = output,
                                                          .digest = digest,
                                                          .deadline_ns = deadline_ns,
                                                          .save = save,
                                                          .describe = describe,
                                                          .destroy = destroy};

proto_status_t
actor_replay_core_new(const actor_replay_role_t *role, actor_replay_player_t **out_p)
{
    require(role != NULL);
    core_player_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base.ops = &core_player_ops;
    self->role = role;
    *out_p = &self->base;
    return STATUS_OK;
}
