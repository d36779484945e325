/* The launch table of the host device: every launch is a command with a copy of its arguments. */
#include <string.h>

#include "device_host_private.h"

#define HOST_LAUNCH(name)                                                                          \
    _Static_assert(sizeof(kern_##name##_args_t) <= DEVICE_ARGS_SIZE_MAX, "arguments fit");         \
    static void host_##name(device_stream_t *stream, const kern_##name##_args_t *args)             \
    {                                                                                              \
        command_t *command = device_host_push(stream);                                             \
        command->kind = COMMAND_KERNEL;                                                            \
        command->function = kern_##name##_host;                                                    \
        memcpy(command->u.args, args, sizeof *args);                                               \
        device_host_commit(stream);                                                                \
    }
DEVICE_OP_LIST(HOST_LAUNCH)

#define HOST_MEMBER(name) .name = host_##name,
const device_ops_t device_host_ops = {DEVICE_OP_LIST(HOST_MEMBER)};

size_t
device_host_weight_size_bytes(const device_t *self, const kern_weight_t *weight)
{
    (void)self;
    return kern_weight_packed_size_bytes(weight);
}

kern_weight_t
device_host_weight_load(device_t *self, const kern_weight_t *weight, void *memory)
{
    (void)self;
    return memory == NULL ? *weight : kern_weight_pack(weight, memory);
}

size_t
device_host_form_size_bytes(const device_t *self, kern_form_t form, uint32_t rows, uint32_t cols)
{
    (void)self;
    (void)form;
    return (size_t)rows * cols * sizeof(float);
}
