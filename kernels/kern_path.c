#include "kern_path.h"

#include <string.h>

#include "proto_require.h"

static const char *const path_names[KERN_PATH_COUNT] = {"portable", "avx2", "avx512"};

const char *
kern_path_name(kern_path_t path)
{
    require((unsigned)path < KERN_PATH_COUNT);
    return path_names[path];
}

bool
kern_path_available(kern_path_t path)
{
    switch (path) {
    case KERN_PATH_PORTABLE:
        return true;
    case KERN_PATH_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    case KERN_PATH_AVX512:
        return kern_path_available(KERN_PATH_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    case KERN_PATH_COUNT:
    default:
        return false;
    }
}

kern_path_t
kern_path_best(void)
{
    if (kern_path_available(KERN_PATH_AVX512)) {
        return KERN_PATH_AVX512;
    }
    if (kern_path_available(KERN_PATH_AVX2)) {
        return KERN_PATH_AVX2;
    }
    return KERN_PATH_PORTABLE;
}

bool
kern_path_find(const char *name, kern_path_t *out)
{
    require(out != NULL);
    if (name == NULL || strcmp(name, "auto") == 0) {
        *out = kern_path_best();
        return true;
    }
    for (unsigned i = 0; i < KERN_PATH_COUNT; i++) {
        if (strcmp(name, path_names[i]) == 0 && kern_path_available((kern_path_t)i)) {
            *out = (kern_path_t)i;
            return true;
        }
    }
    return false;
}
