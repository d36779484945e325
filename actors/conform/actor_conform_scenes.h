/* actor_conform_scenes.h - what is played, from simple to hard.  Each scene begins on an empty
 * stage, opens the links that it needs and leaves the rest to the run. */
#ifndef ACTOR_CONFORM_SCENES_H
#define ACTOR_CONFORM_SCENES_H

#include "actor_conform_stage.h"

#define ACTOR_CONFORM_SCENE_LIST(SCENE)                                                            \
    SCENE(link, "handshake, heartbeats, numbers, garbage")                                         \
    SCENE(attach, "an executor comes and goes")                                                    \
    SCENE(serve, "requests of many lengths, one after the other and together")                     \
    SCENE(ends, "stop tokens, NaN, resume, duplicates, refusals")                                  \
    SCENE(cancel, "FINISH at every moment")                                                        \
    SCENE(queue, "a full queue, a wait that is too long")                                          \
    SCENE(plain, "one slot, no overlap")                                                           \
    SCENE(pressure, "more requests than blocks")                                                   \
    SCENE(sliding, "a second cache group with a window")                                           \
    SCENE(starve, "low priority, long prompts, more rows than tokens in a step")                   \
    SCENE(numbers, "messages that came before, messages that are missing")                         \
    SCENE(gateways, "two gateways, one of them leaves")                                            \
    SCENE(refusals, "a refusal for each rule of the executor")                                     \
    SCENE(results, "results twice, late, of another shape")                                        \
    SCENE(restart, "the executor is lost and comes back")                                          \
    SCENE(silence, "a gateway falls silent")                                                       \
    SCENE(mixture, "everything at once, from the seed")                                            \
    SCENE(states, "a third cache group that holds states")                                         \
    SCENE(stop, "the scheduler is asked to end")

#define CONFORM_SCENE_PROTOTYPE(name, text) void actor_conform_scene_##name(conform_stage_t *stage);
ACTOR_CONFORM_SCENE_LIST(CONFORM_SCENE_PROTOTYPE)
#undef CONFORM_SCENE_PROTOTYPE

#endif
