/* Which device an executor runs on, and whether model and options can run there. */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda.h"
#include "device_host.h"
#include "run_executor_private.h"

enum { CUDA_ROWS_MAX = 65535 }; /* of a forward: embedding, rotation and attention of kern_cuda.h */

static uint32_t
processor_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    int count = CPU_COUNT(&set);
    return count < 1 ? 1 : (uint32_t)count;
}

static proto_status_t
open_host(run_executor_t *self)
{
    run_executor_options_t *o = &self->options;
    uint32_t share = processor_count() / run_ranks_count(self);
    share = share > 0 ? share : 1;
    device_host_options_t options = {
        .thread_count = o->thread_count == 0 ? share : o->thread_count,
        .debug = o->graph_debug,
    };
    if (!kern_path_find(o->kernel_path, &options.path)) {
        return run_executor_fail(
            self, STATUS_ERR_CONFIG,
            "kernel path '%s' is not known or not available on this machine (best here: "
            "%s)",
            o->kernel_path, kern_path_name(kern_path_best()));
    }
    proto_status_t status = device_host_new(&options, &self->device);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status, "cannot make the device with %" PRIu32 " threads",
                                 options.thread_count);
    }
    run_executor_add_summary(self, "device: cpu, %" PRIu32 " threads, %s kernels\n",
                             options.thread_count, kern_path_name(options.path));
    return STATUS_OK;
}

/* `is_wanted`: there is no other choice, so why not is said. */
static proto_status_t
open_cuda(run_executor_t *self, uint32_t ordinal, bool is_wanted)
{
    char error[DEVICE_CUDA_ERROR_SIZE_BYTES] = "";
    device_cuda_options_t options = {
        .ordinal = ordinal,
        .debug = self->options.graph_debug,
        .error = error,
    };
    proto_status_t status = device_cuda_new(&options, &self->device);
    if (status == STATUS_OK) {
        self->is_cuda = true;
        run_executor_add_summary(self, "device: %s\n", self->device->summary);
    } else if (is_wanted) {
        /* Trying again does not help. */
        status =
            run_executor_fail(self, status == STATUS_ERR_UNSUPPORTED ? STATUS_ERR_CONFIG : status,
                              "no CUDA device: %s", error);
    }
    return status;
}

/* "cuda" and "cuda:N". */
static bool
parse_cuda(const char *name, uint32_t *ordinal)
{
    *ordinal = 0;
    if (strncmp(name, "cuda", 4) != 0) {
        return false;
    }
    if (name[4] == '\0') {
        return true;
    }
    char *end = NULL;
    unsigned long value = name[4] == ':' && name[5] >= '0' && name[5] <= '9'
                              ? strtoul(name + 5, &end, 10)
                              : UINT32_MAX;
    *ordinal = (uint32_t)value;
    return end != NULL && *end == '\0' && value < 1024;
}

/* No kernel of that device rounds activations, so what was asked for would be ignored. */
static proto_status_t
refuse_int8(run_executor_t *self)
{
    return run_executor_fail(self, STATUS_ERR_CONFIG,
                             "int8 activations: the CUDA device has no kernels for them (--device "
                             "cpu has)");
}

proto_status_t
run_executor_open_device(run_executor_t *self)
{
    const char *name = self->options.device;
    uint32_t ordinal = 0;
    proto_status_t status = STATUS_ERR_UNSUPPORTED;
    if (name != NULL && parse_cuda(name, &ordinal)) {
        status =
            self->options.int8_activations ? refuse_int8(self) : open_cuda(self, ordinal, true);
    } else if (name == NULL || strcmp(name, "cpu") == 0) {
        status = open_host(self);
    } else if (strcmp(name, "auto") == 0) {
        if (open_cuda(self, 0, false) == STATUS_OK) {
            status = self->options.int8_activations ? refuse_int8(self) : STATUS_OK;
        } else {
            status = open_host(self);
        }
    } else {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "device '%s' is not known; there are auto, cpu, cuda and cuda:N",
                                 name);
    }
    if (status != STATUS_OK) {
        return status;
    }
    status = device_stream_new(self->device, &self->stream);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status, "cannot start the device's stream");
    }
    void *layer = NULL;
    status = device_alloc(self->device, DEVICE_MEMORY_PINNED, sizeof *self->layer, &layer);
    if (status == STATUS_OK) {
        self->layer = layer;
        status = run_ranks_open(self);
    }
    return status;
}

/* Device memory that the checkpoint's tensors take. */
static uint64_t
weight_bytes_wanted(const run_executor_t *self)
{
    uint64_t sum = 0;
    uint32_t layers = file_model_config(self->file)->layer_count;
    bool is_tied = file_model_config(self->file)->tied_embeddings;
    for (uint32_t role = 0; role < FILE_ROLE_COUNT; role++) {
        bool is_once = role < FILE_ROLE_FIRST_OF_LAYER;
        for (uint32_t layer = 0; layer < (is_once ? 1 : layers); layer++) {
            file_tensor_t tensor;
            if ((role == FILE_ROLE_OUTPUT && is_tied) ||
                file_model_tensor(self->file, (file_role_t)role, layer, &tensor) != STATUS_OK) {
                continue;
            }
            kern_weight_t weight = {.type = KERN_TYPE_BF16,
                                    .rows = tensor.rows,
                                    .cols = tensor.cols};
            sum += tensor.rows == 1 ? tensor.cols * sizeof(float)
                                    : device_weight_size_bytes(self->device, &weight);
        }
    }
    return sum;
}

proto_status_t
run_executor_check_model(run_executor_t *self)
{
    const file_config_t *c = file_model_config(self->file);
    if (!self->is_cuda) {
        return STATUS_OK;
    }
    if (!model_runs_on(self->device, c)) {
        return run_executor_fail(
            self, STATUS_ERR_CONFIG,
            "%s: the CUDA device does not have all kernels of %s yet (--device "
            "cpu runs this model)",
            self->options.model_path, file_arch_name(c->arch));
    }
    if (c->hidden_size % 4 != 0 || c->hidden_size > 16384 || c->vocab_size > 1u << 18) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "%s: hidden size %" PRIu32 ", vocabulary %" PRIu32
                                 "; the CUDA device takes multiples of 4 up to 16384, and up to "
                                 "262144 tokens (--device cpu runs this model)",
                                 self->options.model_path, c->hidden_size, c->vocab_size);
    }
    uint64_t wanted = weight_bytes_wanted(self);
    uint64_t available = 0;
    proto_status_t status = device_memory_free_bytes(self->device, &available);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status, "%s does not say how much memory is free: %s",
                                 self->device->summary, proto_status_text(status));
    }
    if (wanted > available) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "%s does not fit %s: its weights take %.1f MiB in bfloat16, and "
                                 "%.1f MiB are free; the cache and the workspaces come on top",
                                 self->options.model_path, self->device->summary,
                                 (double)wanted / 1048576.0, (double)available / 1048576.0);
    }
    return STATUS_OK;
}

proto_status_t
run_executor_check_options(run_executor_t *self)
{
    const run_executor_options_t *o = &self->options;
    if (!self->is_cuda) {
        return STATUS_OK;
    }
    if (o->verify_by_rejection && o->width > 1) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "verification by rejection at a decode width of %" PRIu32
                                 "; the CUDA device verifies by the chain (--device cpu has both)",
                                 o->width);
    }
    if (o->step_tokens_max > CUDA_ROWS_MAX) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "%" PRIu32
                                 " tokens in a step; the CUDA device takes at most %d (%" PRIu32
                                 " slots of width %" PRIu32 " need %" PRIu32 ")",
                                 o->step_tokens_max, (int)CUDA_ROWS_MAX, o->slot_count, o->width,
                                 o->slot_count * o->width);
    }
    return STATUS_OK;
}
