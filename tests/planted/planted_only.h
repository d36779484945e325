/* planted_only.h - put in front of a test program: runs only the test that ONEPATH_ONLY names. */
#ifndef PLANTED_ONLY_H
#define PLANTED_ONLY_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

static inline int
planted_is_wanted(const char *name)
{
    const char *only = getenv("ONEPATH_ONLY");
    return only == NULL || strcmp(only, name) == 0;
}

#undef tcase_add_test
#define tcase_add_test(tc, tf) tcase_add_loop_test(tc, tf, 0, 1)
#undef tcase_add_loop_test
#define tcase_add_loop_test(tc, tf, first, end)                                                    \
    do {                                                                                           \
        if (planted_is_wanted((tf)->name)) {                                                       \
            _tcase_add_test((tc), (tf), 0, 0, (first), (end));                                     \
        }                                                                                          \
    } while (0)

#endif
