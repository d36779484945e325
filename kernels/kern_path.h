/* kern_path.h - which instruction set the kernels use.
 *
 * Chosen once, at start, and carried by the team (kern_team.h): no global state.  Results are the
 * same bits for the same path, whatever the number of threads or rows; two paths may differ in the
 * last bits, so logs name the path. */
#ifndef KERN_PATH_H
#define KERN_PATH_H

#include <stdbool.h>

typedef enum {
    KERN_PATH_PORTABLE = 0, /* plain C, any machine */
    KERN_PATH_AVX2 = 1,     /* AVX2, FMA and F16C */
    KERN_PATH_AVX512 = 2,   /* AVX-512 F, BW, VL, DQ and VNNI */
    KERN_PATH_COUNT = 3,
} kern_path_t;

/* "portable", "avx2", "avx512". */
const char *kern_path_name(kern_path_t path);

/* Whether this machine can run it. */
bool kern_path_available(kern_path_t path);

/* The widest path that this machine can run. */
kern_path_t kern_path_best(void);

/* The path of that name; "auto" or NULL = the best.  False: no such name, or not on this machine;
 * *out is then unchanged. */
bool kern_path_find(const char *name, kern_path_t *out);

#endif
