/* cli_model.h - the words for a model that is not there. */
#ifndef CLI_MODEL_H
#define CLI_MODEL_H

#include <stdbool.h>

/* True if something is at this path.  Else prints what was wrong and what to type: how to fetch a
 * model that was given by its name on a hub, which is never fetched by itself. */
bool cli_model_check(const char *model);
/* The same of a draft model. */
bool cli_model_check_draft(const char *path);

/* True for a name such as "Qwen/Qwen3-0.6B" or "hf://Qwen/Qwen3-0.6B"; *name is it without a
 * scheme. */
bool cli_model_is_hub_name(const char *model, const char **name);

#endif
