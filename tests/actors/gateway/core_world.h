/* core_world.h - one gateway core, its outbox and a clock, for the tests that speak to it by
 * messages alone. */
#ifndef CORE_WORLD_H
#define CORE_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "actor_gateway_core.h"

enum { SCHEDULER = 5, CHOICES = 64, VOCAB = 1000, MODEL_LEN = 128, PAGE = 16, STOP_ID = 999 };

extern actor_gateway_core_t *core;
extern actor_outbox_t *outbox;
extern uint64_t now_ns;
extern uint64_t input_sequence;

void world_setup(void);
/* With these options instead; fills in the epoch and the number of choices if they are 0. */
void world_setup_with(actor_gateway_core_options_t options);
void world_teardown(void);

/* One input; the outbox holds the answer, the core was checked. */
void give(uint32_t from, proto_kind_t kind, uint64_t request, const proto_body_t *body);
/* The emission at `index`, which must be of this kind, decoded. */
const actor_emission_t *emitted(uint32_t index, proto_kind_t kind, proto_body_t *body);
bool text_is(proto_text_t text, const char *wanted);
bool text_has(proto_text_t text, const char *wanted);

void give_up(uint32_t peer);
void give_down(uint32_t peer);
/* MODEL_INFO of a scheduler with an executor. */
void give_model(uint32_t peer);
/* The same, changed. */
proto_body_t model_body(void);
/* give_up() and give_model() of SCHEDULER. */
void attach(void);
/* Moves the clock to the core's deadline and gives the TIMER; false if there is none. */
bool give_timer(void);

/* The encoded SAMPLING of the requests below; `salt` may be NULL. */
proto_column_u8_t sampling_bytes(const char *salt, uint32_t generation_min, bool ignore_eos,
                                 const int32_t *stop_ids, uint32_t stop_id_count);
/* The first token of a prompt is 4 * exchange + choice, so that a SUBMIT tells whose it is; the
 * others count from 1.  The priority is exchange % 3. */
void give_request(uint64_t exchange, uint32_t choice, uint32_t prompt_len, uint32_t generation_max,
                  uint64_t timeout_ns);
void give_request_with(uint64_t exchange, uint32_t choice, uint32_t prompt_len,
                       uint32_t generation_max, uint64_t timeout_ns, proto_column_u8_t sampling);
/* A request with 3 prompt tokens and 10 to generate, which must be submitted; its id. */
uint64_t submit(uint64_t exchange, uint32_t choice);
/* Token `i` of every answer is `i`. */
void give_tokens(uint64_t request, uint32_t index, uint32_t count);
void give_token(uint64_t request, uint32_t index, int32_t token);
void give_stop(uint64_t exchange, uint32_t choice, uint32_t index, uint32_t reason);
void give_finished(uint64_t request, uint32_t reason, uint32_t generated);
void give_refused(uint64_t request, proto_status_t status, const char *code,
                  uint32_t retry_after_ms);

/* Everything that the outbox holds as bytes, for comparing two cores; returns the size, at most
 * `capacity_bytes` of it written. */
size_t outbox_bytes(const actor_outbox_t *box, uint8_t *out, size_t capacity_bytes);

#endif
