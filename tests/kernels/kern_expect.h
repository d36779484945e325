/* kern_expect.h - assertions for inner loops: libcheck's own write to a file each time. */
#ifndef KERN_EXPECT_H
#define KERN_EXPECT_H

#include <check.h>

#define expect(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ck_abort_msg("not true: %s", #condition);                                              \
        }                                                                                          \
    } while (0)

#define expect_msg(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ck_abort_msg(__VA_ARGS__);                                                             \
        }                                                                                          \
    } while (0)

#endif
