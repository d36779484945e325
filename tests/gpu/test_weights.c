/* Loading weights on a device with memory of its own: the host never writes there directly, and
 * nothing is used in place.  A host device whose memory of weights can be written by its own
 * functions only stands for it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device_host.h"
#include "device_ops.h"
#include "gpu_driver.h"
#include "model_base.h"

enum { REGIONS_MAX = 1024 };

typedef struct {
    uint8_t *memory;
    size_t size_bytes;
} region_t;

static region_t regions[REGIONS_MAX];
static const device_vtable_t *host;
static uint64_t uploaded_bytes;

static region_t *
region_of(const void *at)
{
    for (uint32_t i = 0; i < REGIONS_MAX; i++) {
        region_t *region = &regions[i];
        if (region->memory != NULL && (const uint8_t *)at >= region->memory &&
            (const uint8_t *)at < region->memory + region->size_bytes) {
            return region;
        }
    }
    return NULL;
}

static void
protect(const region_t *region, int rights)
{
    ck_assert_ptr_nonnull(region);
    ck_assert_int_eq(mprotect(region->memory, region->size_bytes, rights), 0);
}

static proto_status_t
own_alloc(device_t *self, device_memory_t kind, size_t size_bytes, void **out_p)
{
    if (kind != DEVICE_MEMORY_WEIGHTS) {
        return host->alloc(self, kind, size_bytes, out_p);
    }
    void *memory = mmap(NULL, size_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    for (uint32_t i = 0; i < REGIONS_MAX; i++) {
        if (regions[i].memory == NULL) {
            regions[i] = (region_t){memory, size_bytes};
            *out_p = memory;
            return STATUS_OK;
        }
    }
    return STATUS_ERR_NO_MEMORY;
}

static proto_status_t
own_release(device_t *self, device_memory_t kind, void *memory)
{
    if (kind != DEVICE_MEMORY_WEIGHTS) {
        return host->release(self, kind, memory);
    }
    region_t *region = region_of(memory);
    ck_assert_ptr_nonnull(region);
    ck_assert_int_eq(munmap(region->memory, region->size_bytes), 0);
    region->memory = NULL;
    return STATUS_OK;
}

static proto_status_t
own_upload(device_t *self, void *to, const void *from, size_t size_bytes)
{
    region_t *region = region_of(to);
    protect(region, PROT_READ | PROT_WRITE);
    proto_status_t status = host->upload(self, to, from, size_bytes);
    protect(region, PROT_READ);
    uploaded_bytes += size_bytes;
    return status;
}

static size_t
own_weight_size_bytes(const device_t *self, const kern_weight_t *weight)
{
    size_t size_bytes = host->weights->size_bytes(self, weight);
    return size_bytes > 0 ? size_bytes
                          : weight->rows * kern_type_row_size_bytes(weight->type, weight->cols);
}

static kern_weight_t
own_weight_load(device_t *self, const kern_weight_t *weight, void *memory)
{
    region_t *region = region_of(memory);
    kern_weight_t loaded = *weight;
    protect(region, PROT_READ | PROT_WRITE);
    if (host->weights->size_bytes(self, weight) > 0) {
        loaded = host->weights->load(self, weight, memory);
    } else {
        memcpy(memory, weight->data, own_weight_size_bytes(self, weight));
        loaded.data = memory;
    }
    protect(region, PROT_READ);
    return loaded;
}

static proto_status_t
own_free_bytes(device_t *self, uint64_t *out)
{
    (void)self;
    *out = UINT64_C(1) << 40;
    return STATUS_OK;
}

/* A store anywhere else in the weights' memory ends the test with a signal. */
START_TEST(weights_come_by_uploads_alone)
{
    static const char *const fixtures[] = {"tiny-llama",     "tiny-gpt-oss",        "tiny-gemma3",
                                           "tiny-deepseek",  "tiny-deepseek-plain", "tiny-qwen35",
                                           "tiny-qwen35-moe"};
    device_host_options_t options = {.thread_count = 1, .path = kern_path_best()};
    device_t *device = NULL;
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    host = device->vtable;
    device_weight_vtable_t weights = *host->weights;
    weights.size_bytes = own_weight_size_bytes;
    weights.load = own_weight_load;
    device_vtable_t own = *host;
    own.alloc = own_alloc;
    own.release = own_release;
    own.upload = own_upload;
    own.memory_free_bytes = own_free_bytes;
    own.weights = &weights;
    device->vtable = &own;
    char error[FILE_ERROR_SIZE_BYTES];
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        file_model_t *file = NULL;
        model_t *model = NULL;
        proto_status_t status =
            file_model_open(driver_fixture(fixtures[i]), error, sizeof error, &file);
        ck_assert_msg(status == STATUS_OK, "%s", error);
        uploaded_bytes = 0;
        ck_assert_int_eq(model_new(device, file, NULL, NULL, &model), STATUS_OK);
        ck_assert_uint_gt(uploaded_bytes, 0);
        ck_assert_uint_eq(model->mapped_bytes, 0);
        model_destroy(&model);
        file_model_close(&file);
    }
    device->vtable = host;
    device_destroy(&device);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.weights");
    TCase *tests = tcase_create("weights");
    tcase_add_test(tests, weights_come_by_uploads_alone);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
