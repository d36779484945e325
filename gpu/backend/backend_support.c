/* Composition of what a tree can capture. */
#include "backend_support.h"

#include <stddef.h>

#include "backend_base.h"

backend_support_t
backend_resolve_support(const struct backend *root,
                        void (*culprit)(void *context, const char *name, backend_support_t support),
                        void *context)
{
    backend_support_t result = root->support;
    if (culprit != NULL && !(result.decode_graph && result.prefill_graph)) {
        culprit(context, root->name, result);
    }
    for (uint32_t i = 0; i < root->child_count; i++) {
        backend_support_t child = backend_resolve_support(root->children[i], culprit, context);
        result.decode_graph = result.decode_graph && child.decode_graph;
        result.prefill_graph = result.prefill_graph && child.prefill_graph;
    }
    return result;
}
