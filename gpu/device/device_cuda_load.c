/* Finds and loads the shared object of the CUDA device. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device_cuda.h"
#include "device_ops.h"
#include "proto_require.h"

enum { PATH_SIZE_BYTES = 4096 };

/* The folder of the running program, with a slash at its end; "" if the system does not say. */
static void
program_folder(char *out)
{
    ssize_t length = readlink("/proc/self/exe", out, PATH_SIZE_BYTES - 1);
    out[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(out, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
}

/* It is never unloaded: the driver's threads may outlive the device. */
static void *
load_object(char *error)
{
    static const char *const places[] = {"", "../lib/"};
    char folder[PATH_SIZE_BYTES];
    program_folder(folder);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char path[PATH_SIZE_BYTES + 64];
        (void)snprintf(path, sizeof path, "%s%slibonepath_cuda.so", folder, places[i]);
        if (access(path, F_OK) != 0) {
            continue;
        }
        void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (object == NULL) {
            (void)snprintf(error, DEVICE_CUDA_ERROR_SIZE_BYTES, "cannot load %.200s: %.200s", path,
                           dlerror());
        }
        return object;
    }
    (void)snprintf(error, DEVICE_CUDA_ERROR_SIZE_BYTES,
                   "there is no libonepath_cuda.so in %.300s: this build is CPU only (configure "
                   "with -DONEPATH_CUDA=ON, which needs nvcc)",
                   folder);
    return NULL;
}

proto_status_t
device_cuda_new(const device_cuda_options_t *options, device_t **out_p)
{
    require(options != NULL);
    require(options->error != NULL);
    require(out_p != NULL);
    options->error[0] = '\0';
    void *object = load_object(options->error);
    if (object == NULL) {
        return STATUS_ERR_UNSUPPORTED;
    }
    device_cuda_open_fn open = NULL;
    *(void **)(void *)&open = dlsym(object, DEVICE_CUDA_SYMBOL);
    if (open == NULL) {
        (void)snprintf(options->error, DEVICE_CUDA_ERROR_SIZE_BYTES, "libonepath_cuda.so has no %s",
                       DEVICE_CUDA_SYMBOL);
        return STATUS_ERR_VERSION;
    }
    return open(DEVICE_CUDA_ABI_BYTES, options, out_p);
}
