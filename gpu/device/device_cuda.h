/* device_cuda.h - an NVIDIA GPU as a device.
 *
 * The device is a shared object of its own, libonepath_cuda.so beside the program (or beside the
 * folder of the program, in lib/), so that everything else builds and runs without CUDA.  Opening
 * loads it; only gpu/run names this header, to choose the device. */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H

#include "device_base.h"

enum { DEVICE_CUDA_ERROR_SIZE_BYTES = 512 };

typedef struct {
    uint32_t ordinal; /* which GPU of those that the driver shows */
    bool no_pdl;      /* operations never start before their predecessor ended */
    bool debug;       /* poison a pool's memory when another of its graphs runs */
    char *error;      /* why not, for people; [DEVICE_CUDA_ERROR_SIZE_BYTES] */
} device_cuda_options_t;

/* Loads the shared object and opens the GPU.  The device must be used by the calling thread.
 * A program sets CUDA_MODULE_LOADING=EAGER in its environment before it starts threads: kernels
 * that are loaded when they are first launched wait for the device to be idle, which a host
 * function in a stream may never let happen. STATUS_ERR_UNSUPPORTED: there is no shared object, no
 * driver or no GPU that these kernels run on; STATUS_ERR_CONFIG: no such ordinal;
 * STATUS_ERR_VERSION: the shared object is of another build; STATUS_ERR_DEVICE.  The caller owns
 * *out_p. */
MUST_CHECK proto_status_t device_cuda_new(const device_cuda_options_t *options, device_t **out_p);

/* ---- between the program and its shared object ----------------------------------------------- */

#define DEVICE_CUDA_SYMBOL "device_cuda_open"

/* Sizes of what both sides must agree on. */
#define DEVICE_CUDA_ABI_BYTES                                                                      \
    (sizeof(device_t) * 1000003u + sizeof(device_vtable_t) * 1009u + sizeof(device_ops_t))

typedef proto_status_t (*device_cuda_open_fn)(size_t abi_bytes,
                                              const device_cuda_options_t *options,
                                              device_t **out_p);

#endif
