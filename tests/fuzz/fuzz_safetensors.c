/* One .safetensors file: header, ranges, and every byte that a tensor claims. */
#include <stdlib.h>

#include "file_safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[512];
    file_error_t error = file_error_init(text, sizeof text);
    file_tensors_t tensors = {0};
    json_t *header = NULL;
    proto_status_t status =
        file_safetensors_read((file_view_t){data, size}, "fuzz", 0, &tensors, &header, error);
    if (status == STATUS_OK) {
        uint8_t sum = 0;
        for (uint32_t i = 0; i < tensors.count; i++) {
            for (uint64_t at = 0; at < tensors.items[i].size_bytes; at++) {
                sum ^= tensors.items[i].data[at];
            }
        }
        volatile uint8_t kept = sum;
        (void)kept;
        (void)!file_tensors_sort(&tensors, error);
    } else if (text[0] == '\0') {
        abort(); /* every refusal says why */
    }
    json_decref(header);
    file_tensors_fini(&tensors);
    return 0;
}
