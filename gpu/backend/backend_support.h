/* backend_support.h - what a backend can capture, as static facts.
 *
 * A declaration says "never works"; whether a capture is wanted is the configuration's business. */
#ifndef BACKEND_SUPPORT_H
#define BACKEND_SUPPORT_H

#include <stdbool.h>

typedef struct {
    bool decode_graph;
    bool prefill_graph;
} backend_support_t;

struct backend;

/* The AND over a tree.  `culprit` (may be NULL) is called with the name of every node that lacks
 * something. */
backend_support_t backend_resolve_support(const struct backend *root,
                                          void (*culprit)(void *context, const char *name,
                                                          backend_support_t support),
                                          void *context);

#endif
