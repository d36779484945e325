/* The workspace. */
#include "run_workspace.h"

#include <stdio.h>

#include "proto_require.h"

void
run_workspace_init(run_workspace_t *self, device_t *device)
{
    *self = (run_workspace_t){.device = device};
}

void
run_workspace_fini(run_workspace_t *self)
{
    if (self->device != NULL) {
        device_release(self->device, DEVICE_MEMORY_DEVICE, &self->memory);
    }
    *self = (run_workspace_t){.device = NULL};
}

proto_status_t
run_workspace_reserve(run_workspace_t *self, const char *owner, size_t size_bytes)
{
    require(self->device != NULL);
    if (size_bytes <= self->size_bytes) {
        return STATUS_OK;
    }
    if (self->is_frozen) {
        (void)
            snprintf(self->fault, sizeof self->fault,
                     "%s asks for %zu bytes of a workspace of %zu bytes that a capture has frozen",
                     owner, size_bytes, self->size_bytes);
        return STATUS_ERR_INTERNAL;
    }
    void *memory = NULL;
    proto_status_t status = device_alloc(self->device, DEVICE_MEMORY_DEVICE, size_bytes, &memory);
    if (status != STATUS_OK) {
        return status;
    }
    device_release(self->device, DEVICE_MEMORY_DEVICE, &self->memory);
    self->memory = memory;
    self->size_bytes = size_bytes;
    return STATUS_OK;
}

void
run_workspace_freeze(run_workspace_t *self)
{
    self->is_frozen = true;
}

void
run_workspace_unfreeze(run_workspace_t *self)
{
    self->is_frozen = false;
}
