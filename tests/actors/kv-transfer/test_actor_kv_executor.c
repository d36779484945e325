/* Two executors of a real model register their caches, and pages go from one to the other. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "actor_executor.h"
#include "kv_node.h"

enum { COLUMNS = 6 };

static cluster_t cluster;

static int
run_executor(const char *scheduler_endpoint, const char *kv_endpoint)
{
    char model[512];
    const char *source = getenv("ONEPATH_SOURCE");
    (void)snprintf(model, sizeof model, "%s/tests/models/fixtures/tiny-llama",
                   source != NULL ? source : ".");
    const actor_executor_options_t options = {
        .name = "executor-real",
        .scheduler_endpoint = scheduler_endpoint,
        .kv_endpoint = kv_endpoint,
        .ring_fd = -1,
        .run = {.model_path = model,
                .slot_count = 2,
                .model_len_max = 256,
                .step_tokens_max = 64,
                .block_granularity = 16,
                .thread_count = 1,
                .enforce_eager = true,
                .cache_size_bytes = 8 << 20},
    };
    return actor_executor_run(&options);
}

static bool
both_are_done(const cluster_t *self)
{
    return self->source.role.done_count > 0 && self->destination.role.done_count > 0;
}

/* Two groups would need another manifest: tiny-llama has one, so the state's run is left out. */
static void
say_runs(cluster_t *self, uint64_t transfer)
{
    static const uint8_t groups[] = {0};
    static const uint32_t columns[] = {0};
    static const uint32_t counts[] = {COLUMNS};
    static const uint32_t from[] = {1, 2, 3, 4, 5, 6};
    static const uint32_t to[] = {7, 9, 8, 12, 11, 10};
    static const uint32_t generations[] = {1, 1, 1, 1, 1, 1};
    proto_body_t body = {.transfer_expect = {.transfer = transfer,
                                             .wanted = 96,
                                             .run_groups = {groups, 1},
                                             .run_columns = {columns, 1},
                                             .run_counts = {counts, 1},
                                             .run_blocks = {to, COLUMNS},
                                             .run_generations = {generations, COLUMNS}}};
    actor_shell_inject(self->destination.role.shell, PROTO_KIND_TRANSFER_EXPECT, 0, &body);
    body = (proto_body_t){.transfer_serve = {.transfer = transfer,
                                             .wanted = 96,
                                             .kv_name = proto_text(self->destination.name),
                                             .kv_epoch = self->destination.epoch,
                                             .run_groups = {groups, 1},
                                             .run_columns = {columns, 1},
                                             .run_counts = {counts, 1},
                                             .run_blocks = {to, COLUMNS},
                                             .run_generations = {generations, COLUMNS}}};
    actor_shell_inject(self->source.role.shell, PROTO_KIND_TRANSFER_SERVE, 0, &body);
    body = (proto_body_t){.transfer_part = {.transfer = transfer,
                                            .is_last = true,
                                            .run_groups = {groups, 1},
                                            .run_columns = {columns, 1},
                                            .run_counts = {counts, 1},
                                            .run_blocks = {from, COLUMNS},
                                            .run_generations = {generations, COLUMNS}}};
    actor_shell_inject(self->source.scheduler.shell, PROTO_KIND_TRANSFER_PART, 0, &body);
}

START_TEST(caches_of_real_executors_are_registered_and_copied)
{
    const cluster_options_t options = {.way = _i == 0 ? ACTOR_KV_WAY_SHARED : ACTOR_KV_WAY_TCP,
                                       .source_ranks = 1,
                                       .destination_ranks = 1,
                                       .checksums = true,
                                       .run_executor = run_executor};
    cluster_open(&cluster, &options);
    say_runs(&cluster, 5);
    cluster_wait(&cluster, both_are_done, "both roles are told");
    ck_assert_msg(cluster.destination.role.done_status == STATUS_OK, "%s",
                  cluster.destination.role.done_detail);
    ck_assert_msg(cluster.source.role.done_status == STATUS_OK, "%s",
                  cluster.source.role.done_detail);
    ck_assert_uint_gt(cluster.destination.role.done_bytes, 0);
    ck_assert_uint_eq(cluster.destination.role.done_bytes % COLUMNS, 0);
    cluster_close(&cluster);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.kv_executor");
    TCase *tests = tcase_create("executor");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, caches_of_real_executors_are_registered_and_copied, 0, 2);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
