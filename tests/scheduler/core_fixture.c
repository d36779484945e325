#include "core_fixture.h"

sched_world_t world;
sched_core_options_t options;
sched_fake_options_t executor;

void
set_defaults(void)
{
    options = (sched_core_options_t){.slot_count_max = 8, .queue_len_max = 16};
    executor = (sched_fake_options_t){
        .slot_count = 4,
        .step_tokens_max = 64,
        .model_len_max = 256,
        .page_tokens = 4,
        .parent_count = 17,
        .group_count = 1,
        .granularities = {4},
        .packings = {1},
    };
}

void
start(void)
{
    sched_world_init(&world, &options, &executor);
}

void
finish(void)
{
    sched_world_run(&world);
    sched_world_expect_idle(&world);
}

static void
clean_up(void)
{
    sched_world_fini(&world);
}

sched_fake_request_t *
submit(uint32_t prompt, uint32_t generation)
{
    sched_fake_request_t *request = sched_world_request(&world, prompt, generation, 0, 0);
    ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
    return request;
}

sched_why_t
why(const sched_fake_request_t *request)
{
    sched_why_t out;
    ck_assert_int_eq(sched_core_why(world.core, world.now_ns, WORLD_OWNER, request->id, &out),
                     STATUS_OK);
    return out;
}

TCase *
add_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, set_defaults, clean_up);
    tcase_set_timeout(tcase, 30);
    suite_add_tcase(suite, tcase);
    return tcase;
}
