/* actor_http_fields.h - inside actor_http_params: the fields that are lists or objects.  Each
 * reader returns false with *error filled in.  `name` is for the message. */
#ifndef ACTOR_HTTP_FIELDS_H
#define ACTOR_HTTP_FIELDS_H

#include <jansson.h>

#include "actor_http_params.h"

bool actor_http_fields_prompt(actor_http_params_t *self, const json_t *value,
                              const actor_http_params_limits_t *limits, actor_http_error_t *error);
bool actor_http_fields_messages(actor_http_params_t *self, const json_t *value,
                                actor_http_error_t *error);
bool actor_http_fields_tokens(actor_http_params_t *self, const json_t *value,
                              const actor_http_params_limits_t *limits, actor_http_error_t *error);
bool actor_http_fields_stop(actor_http_params_t *self, const json_t *value,
                            actor_http_error_t *error);
bool actor_http_fields_stop_ids(actor_http_params_t *self, const json_t *value,
                                const actor_http_params_limits_t *limits,
                                actor_http_error_t *error);
bool actor_http_fields_bias(actor_http_params_t *self, const json_t *value,
                            const actor_http_params_limits_t *limits, actor_http_error_t *error);

/* The value as JSON, cut to what a message can hold; `out` is terminated. */
void actor_http_fields_show(const json_t *value, char *out, size_t size_bytes);

#endif
