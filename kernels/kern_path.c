#include "kern_path.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "proto_require.h"

static const char *const path_names[KERN_PATH_COUNT] = {"portable", "avx2", "avx512"};

const char *
kern_path_name(kern_path_t path)
{
    require((unsigned)path < KERN_PATH_COUNT);
    return path_names[path];
}

#if defined(__x86_64__)
/* Half precision conversions; not every compiler's __builtin_cpu_supports knows their name. */
static bool
has_f16c(void)
{
    unsigned eax;
    unsigned ebx;
    unsigned ecx;
    unsigned edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

static bool
has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool
has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#else
static bool
has_avx2(void)
{
    return false;
}

static bool
has_avx512(void)
{
    return false;
}
#endif

bool
kern_path_available(kern_path_t path)
{
    switch (path) {
    case KERN_PATH_PORTABLE:
        return true;
    case KERN_PATH_AVX2:
        return has_avx2();
    case KERN_PATH_AVX512:
        return has_avx512();
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
