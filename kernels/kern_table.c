#include "kern_table.h"

#include "proto_require.h"

const kern_table_t *
kern_table(kern_path_t path)
{
    switch (path) {
#if defined(__x86_64__)
    case KERN_PATH_AVX2:
        return &kern_table_avx2;
    case KERN_PATH_AVX512:
        return &kern_table_avx512;
#else
    case KERN_PATH_AVX2:
    case KERN_PATH_AVX512:
#endif
    case KERN_PATH_PORTABLE:
    case KERN_PATH_COUNT:
    default:
        return &kern_table_portable;
    }
}
