/* draft_scene.h - what the tests of drafters share: requests, their answers without speculation,
 * and rounds of an executor with a drafter in which a test may overrule the candidates. */
#ifndef DRAFT_SCENE_H
#define DRAFT_SCENE_H

#include "gpu_driver.h"

enum {
    SCENE_VOCABULARY = 320,
    SCENE_SLOTS = 8,
    SCENE_PROMPT_MAX = 64,
    SCENE_GENERATED = 48,
    SCENE_LEN_MAX = SCENE_PROMPT_MAX + SCENE_GENERATED + RUN_WIDTH_MAX,
};

typedef struct {
    uint32_t prompt_length;
    proto_sampling_t sampling;
    int32_t tokens[SCENE_LEN_MAX]; /* the prompt, then the answer */
} scene_answer_t;

/* One request under way. */
typedef struct {
    const scene_answer_t *answer;
    uint32_t slot;
    uint32_t length; /* tokens known: all but the last are in the cache once it decodes */
    uint32_t rounds;
    uint32_t accepted; /* candidates, all rounds */
    uint32_t offered;  /* the same */
    /* By length: what was proposed behind that many tokens, and how many tokens its round gave. */
    int32_t proposals[SCENE_LEN_MAX][RUN_WIDTH_MAX];
    bool is_noted[SCENE_LEN_MAX];
    uint8_t counts[SCENE_LEN_MAX];
} scene_request_t;

extern scene_answer_t scene_answers[SCENE_SLOTS + 1]; /* by slot, from 1 */

run_executor_options_t scene_options(const char *target, const char *draft, uint32_t width);

/* Answers of a target alone; odd slots are greedy, even ones draw from a seed (all greedy:
 * `is_greedy`). */
void scene_make_answers(const char *target, bool is_greedy);

/* Gives the slot to the request and prefills it in chunks. */
void scene_start(driver_t *driver, uint32_t slot, uint32_t chunk, scene_request_t *out);

/* Notes what lies behind the last verified token of a request that will decode. */
void scene_note(driver_t *driver, scene_request_t *request);

/* How many right candidates the test puts in place of what was proposed, before a wrong one; -1 =
 * the drafter's own stand. */
typedef int (*scene_overrule_fn)(const scene_request_t *request, uint32_t width);

/* One decode round of the requests; every token must be the answer's.  `extend`: an extend beside
 * them, or NULL. */
void scene_round(driver_t *driver, scene_request_t **requests, uint32_t count,
                 const driver_extend_t *extend, scene_overrule_fn overrule);
/* Rounds until each has SCENE_GENERATED tokens. */
void scene_run(driver_t *driver, scene_request_t **requests, uint32_t count,
               scene_overrule_fn overrule);

bool scene_is_done(const scene_request_t *request);

#endif
