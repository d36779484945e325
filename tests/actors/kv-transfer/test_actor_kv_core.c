/* The data plane's core: order, fences, cancels, refusals, and every single message of a transfer
 * lost, doubled, late, early or corrupt. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_world.h"

enum { T = 4711, COLUMNS = 5 };

static world_t world;

static void
open_world(void)
{
    const actor_kv_core_options_t options = {.transfer_count_max = 4,
                                             .column_count_max = 64,
                                             .piece_size_bytes = 24};
    world_open(&world, &options);
    world.checks_twins = true;
}

/* Two parts, layer by layer. */
static void
play(void)
{
    world_expect(&world, T, COLUMNS);
    world_serve(&world, T, COLUMNS);
    world_part(&world, T, 0, 0, 3, false, 7);
    world_deliver(&world);
    world_ready(&world, 7, 1);
    world_deliver(&world);
    world_ready(&world, 7, 3);
    world_deliver(&world);
    world_part(&world, T, 1, 3, COLUMNS, true, 8);
    world_ready(&world, 7, PROTO_ROWS_MAX);
    world_deliver(&world);
    world_ready(&world, 8, 2);
    world_deliver(&world);
    world_ready(&world, 8, WORLD_LAYERS);
}

/* Whatever happened: roles cancel, schedulers fence, and nothing is left. */
static void
clean_up(void)
{
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t before = world.sides[side].done_count;
        world_cancel(&world, side, T);
        ck_assert_uint_gt(world.sides[side].done_count, before);
        uint32_t fenced = world.sides[side].fenced_count;
        world_fence(&world, side, T, 99);
        world_deliver(&world);
        ck_assert_uint_eq(world.sides[side].fenced_count, fenced + 1);
        ck_assert_uint_eq(world.sides[side].fenced_generation, 99);
    }
    world_run(&world);
    for (uint32_t side = 0; side < 2; side++) {
        actor_kv_figures_t figures = world_figures(&world, side);
        ck_assert_uint_eq(figures.open_count, 0);
        ck_assert_uint_eq(figures.parked_count, 0);
    }
    ck_assert_uint_eq(world.fenced_writes, 0);
}

/* Pieces go out as layers get ready, before the last layer is; then both roles are told, once. */
START_TEST(a_transfer_lands_layer_by_layer)
{
    open_world();
    world_link(&world, 16);
    world_expect(&world, T, COLUMNS);
    world_serve(&world, T, COLUMNS);
    world_part(&world, T, 0, 0, COLUMNS, true, 7);
    world_deliver(&world);
    ck_assert_uint_eq(world.sides[WORLD_P].watched, 7);
    ck_assert_uint_eq(world_figures(&world, WORLD_D).piece_count, 0);
    world_ready(&world, 7, 1);
    world_deliver(&world);
    ck_assert_uint_eq(world_figures(&world, WORLD_D).piece_count,
                      2); /* cut: 5 blocks of 8 bytes are more than 24 */
    ck_assert_uint_eq(world.sides[WORLD_D].done_count, 0);
    world_ready(&world, 7, WORLD_LAYERS);
    world_deliver(&world);
    for (uint32_t side = 0; side < 2; side++) {
        ck_assert_uint_eq(world.sides[side].done_count, 1);
        ck_assert_int_eq(world.sides[side].done_status, STATUS_OK);
    }
    ck_assert(world_is_right(&world, COLUMNS));
    ck_assert_uint_eq(world.sides[WORLD_P].watch_count, 0);
    clean_up();
    world_close(&world);
}
END_TEST

/* A prompt that is whole in the other side's cache is the same round with no block. */
START_TEST(a_transfer_of_no_blocks_is_a_whole_round)
{
    open_world();
    world_link(&world, 16);
    world_expect(&world, T, 0);
    world_serve(&world, T, 0);
    world_part(&world, T, 0, 0, 0, true, 0);
    world_deliver(&world);
    for (uint32_t side = 0; side < 2; side++) {
        ck_assert_uint_eq(world.sides[side].done_count, 1);
        ck_assert_int_eq(world.sides[side].done_status, STATUS_OK);
    }
    clean_up();
    world_close(&world);
}
END_TEST

/* Messages of one transfer come over several links, in any order. */
START_TEST(early_messages_wait_for_what_opens_them)
{
    open_world();
    world_link(&world, 16);
    world_part(&world, T, 0, 0, 2, false, 0);
    world_part(&world, T, 1, 2, COLUMNS, true, 0);
    world_serve(&world, T, COLUMNS);
    world_deliver(&world); /* offer and pieces reach a destination that expects nothing yet */
    ck_assert_uint_gt(world_figures(&world, WORLD_D).parked_count, 1);
    world_expect(&world, T, COLUMNS);
    world_deliver(&world);
    ck_assert_int_eq(world.sides[WORLD_D].done_status, STATUS_OK);
    ck_assert_uint_eq(world.sides[WORLD_D].done_count, 1);
    ck_assert(world_is_right(&world, COLUMNS));
    clean_up();
    world_close(&world);
}
END_TEST

/* What nobody ever opens is dropped, and its sender is told. */
START_TEST(what_nobody_expects_is_answered)
{
    open_world();
    world_link(&world, 16);
    world_serve(&world, T, COLUMNS);
    world_part(&world, T, 0, 0, COLUMNS, true, 0);
    world_run(&world);
    ck_assert_int_eq(world.sides[WORLD_P].done_status, STATUS_ERR_NOT_FOUND);
    clean_up();
    world_close(&world);
}
END_TEST

/* A source's fence is answered at once, whatever a peer does; what was read behind it is refused.
 */
START_TEST(a_fence_at_the_source_waits_for_nobody)
{
    open_world();
    world_link(&world, 16);
    world.hold_copies = true;
    play();
    world_deliver(&world);
    world_fence(&world, WORLD_P, T, 3);
    ck_assert_uint_eq(world.sides[WORLD_P].fenced_count, 1);
    ck_assert_uint_eq(world_figures(&world, WORLD_P).open_count, 0);
    world_run_copies(&world);
    ck_assert_int_lt(world.sides[WORLD_D].done_status, 0);
    clean_up();
    world_close(&world);
}
END_TEST

/* At the destination a copy that has begun ends first; then, and not before, the fence holds. */
START_TEST(a_fence_at_the_destination_waits_for_its_own_copies)
{
    open_world();
    world_link(&world, 16);
    world.hold_copies = true;
    play();
    world_deliver(&world);
    world_fence(&world, WORLD_D, T, 4);
    ck_assert_uint_eq(world.sides[WORLD_D].fenced_count, 0);
    ck_assert_uint_eq(world.sides[WORLD_D].done_count, 1);
    ck_assert_int_eq(world.sides[WORLD_D].done_status, STATUS_ERR_CANCELLED);
    world_run_copies(&world);
    ck_assert_uint_eq(world.sides[WORLD_D].fenced_count, 1);
    ck_assert_uint_eq(world.sides[WORLD_D].fenced_generation, 4);
    ck_assert_uint_eq(world.fenced_writes, 0);
    world_run(&world);
    ck_assert_int_lt(world.sides[WORLD_P].done_status, 0);
    clean_up();
    world_close(&world);
}
END_TEST

/* A cancel before, while and after; also of what nobody knows, which then can never open. */
START_TEST(a_cancel_at_any_moment_is_answered_once)
{
    for (uint32_t moment = 0; moment < 6; moment++) {
        for (uint32_t side = 0; side < 2; side++) {
            open_world();
            world_link(&world, 16);
            world.hold_copies = true;
            if (moment == 0) {
                world_cancel(&world, side, T);
            }
            world_expect(&world, T, COLUMNS);
            if (moment == 1) {
                world_cancel(&world, side, T);
            }
            world_serve(&world, T, COLUMNS);
            if (moment == 2) {
                world_cancel(&world, side, T);
            }
            world_part(&world, T, 0, 0, COLUMNS, true, 7);
            world_ready(&world, 7, 2);
            world_deliver(&world);
            if (moment == 3) {
                world_cancel(&world, side, T);
            }
            world_run_copies(&world);
            if (moment == 4) {
                world_cancel(&world, side, T);
            }
            world_ready(&world, 7, WORLD_LAYERS);
            world_run(&world);
            if (moment == 5) {
                ck_assert_int_eq(world.sides[side].done_status, STATUS_OK);
                world_cancel(&world, side, T);
                ck_assert_int_eq(world.sides[side].done_status, STATUS_OK); /* as the first time */
            } else {
                ck_assert_int_lt(world.sides[side].done_status, 0);
            }
            clean_up();
            world_close(&world);
        }
    }
}
END_TEST

/* ---- refusals
 * ------------------------------------------------------------------------------------ */

/* Another block size: found when arenas meet; each transfer says both values. */
START_TEST(another_layout_is_refused_with_both_values)
{
    open_world();
    world_link(&world, 32);
    ck_assert_uint_gt(world.sides[WORLD_P].nak_count, 0);
    world_expect(&world, T, COLUMNS);
    world_serve(&world, T, COLUMNS);
    world_run(&world);
    ck_assert_int_eq(world.sides[WORLD_P].done_status, STATUS_ERR_FINGERPRINT);
    ck_assert_str_eq(world.sides[WORLD_P].done_code, "layout");
    ck_assert_ptr_nonnull(strstr(world.sides[WORLD_P].done_detail, "here"));
    ck_assert_ptr_nonnull(strstr(world.sides[WORLD_P].done_detail, "kv-d"));
    clean_up();
    world_close(&world);
}
END_TEST

/* A piece that lies: columns nobody wants, layers that jump or do not exist, foreign blocks, a
 * number that jumps, after the end.  The transfer fails on both sides; nothing is written. */
static void
give_piece(uint32_t what)
{
    static const uint8_t groups[] = {0};
    uint32_t columns[] = {0};
    uint32_t counts[] = {1};
    uint32_t blocks[] = {1};
    static const uint32_t generations[] = {5};
    proto_body_t body = {.kv_part = {.transfer = T,
                                     .layer_end = 1,
                                     .run_groups = {groups, 1},
                                     .run_columns = {columns, 1},
                                     .run_counts = {counts, 1},
                                     .run_blocks = {blocks, 1},
                                     .run_generations = {generations, 1}}};
    switch (what) {
    case 0:
        columns[0] = COLUMNS;
        break;
    case 1:
        body.kv_part.layer_begin = 1;
        body.kv_part.layer_end = 2;
        break;
    case 2:
        body.kv_part.layer_end = WORLD_LAYERS + 1;
        break;
    case 3:
        blocks[0] = WORLD_BLOCKS;
        break;
    case 4:
        blocks[0] = 0;
        break;
    case 5:
        body.kv_part.piece = 1;
        break;
    case 6:
        counts[0] = 2;
        break;
    case 7:
        body.kv_part.run_columns.count = 0;
        break;
    case 8:
        body.kv_part.layer_end = 0;
        break;
    default:
        break;
    }
    world_give(&world, WORLD_D, WORLD_PEER_KV, PROTO_KIND_KV_PART, &body);
}

START_TEST(pieces_that_lie_end_the_transfer)
{
    for (uint32_t what = 0; what < 9; what++) {
        open_world();
        world_link(&world, 16);
        world_expect(&world, T, COLUMNS);
        world_serve(&world, T, COLUMNS);
        world_deliver(&world);
        give_piece(what);
        world_run(&world);
        ck_assert_msg(world.sides[WORLD_D].done_status < 0, "case %u", what);
        ck_assert_msg(world.sides[WORLD_P].done_status < 0, "case %u", what);
        ck_assert_uint_gt(world_figures(&world, WORLD_D).refused_count, 0);
        ck_assert_uint_eq(world_figures(&world, WORLD_D).size_bytes, 0);
        clean_up();
        world_close(&world);
    }
}
END_TEST

/* The source's own scheduler and role may be wrong too. */
START_TEST(parts_that_lie_end_the_transfer)
{
    for (uint32_t what = 0; what < 4; what++) {
        open_world();
        world_link(&world, 16);
        world_expect(&world, T, COLUMNS);
        world_serve(&world, T, COLUMNS);
        if (what == 0) {
            world_part(&world, T, 1, 0, COLUMNS, true, 0); /* the first one is missing */
        } else if (what == 1) {
            world_part(&world, T, 0, 0, 3, false, 0);
            world_part(&world, T, 1, 2, COLUMNS, true, 0); /* column 2 twice */
        } else if (what == 2) {
            world_part(&world, T, 0, 0, 3, true, 0); /* the end, and columns are missing */
        } else {
            world_part(&world, T, 0, 0, COLUMNS, true, 9);
            world_part(&world, T, 1, 0, 0, true, 9); /* after the end */
        }
        world_run(&world);
        ck_assert_msg(world.sides[WORLD_P].done_status < 0, "case %u", what);
        ck_assert_msg(world.sides[WORLD_D].done_status < 0, "case %u", what);
        clean_up();
        world_close(&world);
    }
}
END_TEST

/* ---- who goes
 * -------------------------------------------------------------------------------------- */

static void
take_down(uint32_t side, uint32_t peer, proto_role_t role)
{
    proto_body_t body = {.peer_down = {.peer = peer, .role = role, .detail = proto_text("killed")}};
    world_give(&world, side, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, &body);
}

/* Whoever goes takes its transfers along, on both sides; the others are told. */
START_TEST(transfers_end_with_whom_they_need)
{
    static const struct {
        uint32_t side;
        uint32_t peer;
        proto_role_t role;
    } cases[] = {
        {WORLD_P, WORLD_PEER_KV, PROTO_ROLE_KV_TRANSFER},
        {WORLD_D, WORLD_PEER_KV, PROTO_ROLE_KV_TRANSFER},
        {WORLD_P, WORLD_PEER_EXECUTOR, PROTO_ROLE_EXECUTOR},
        {WORLD_D, WORLD_PEER_EXECUTOR, PROTO_ROLE_EXECUTOR},
        {WORLD_P, WORLD_PEER_SCHEDULER, PROTO_ROLE_SCHEDULER},
        {WORLD_D, WORLD_PEER_SCHEDULER, PROTO_ROLE_SCHEDULER},
        {WORLD_P, WORLD_PEER_ROLE, PROTO_ROLE_PREFILL_ROLE},
        {WORLD_D, WORLD_PEER_ROLE, PROTO_ROLE_DECODE_ROLE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_world();
        world_link(&world, 16);
        world.hold_copies = true;
        world_expect(&world, T, COLUMNS);
        world_serve(&world, T, COLUMNS);
        world_part(&world, T, 0, 0, COLUMNS, true, 7);
        world_ready(&world, 7, 2);
        world_deliver(&world);
        take_down(cases[i].side, cases[i].peer, cases[i].role);
        if (cases[i].role == PROTO_ROLE_KV_TRANSFER) {
            take_down(1 - cases[i].side, WORLD_PEER_KV, PROTO_ROLE_KV_TRANSFER);
        }
        world_run_copies(&world);
        world_run(&world);
        for (uint32_t side = 0; side < 2; side++) {
            ck_assert_uint_eq(world_figures(&world, side).open_count, 0);
            if (cases[i].side != side || cases[i].peer != WORLD_PEER_ROLE) {
                ck_assert_msg(world.sides[side].done_status < 0, "case %zu side %u", i, side);
            }
        }
        world_close(&world);
    }
}
END_TEST

/* A successor under the same name is another peer: what was for the old one does not go to it. */
START_TEST(a_restarted_peer_is_another_one)
{
    open_world();
    world_link(&world, 16);
    take_down(WORLD_P, WORLD_PEER_KV, PROTO_ROLE_KV_TRANSFER);
    proto_body_t body = {.peer_up = {.peer = WORLD_PEER_KV,
                                     .role = PROTO_ROLE_KV_TRANSFER,
                                     .name = proto_text("kv-d"),
                                     .epoch = 12}};
    world_give(&world, WORLD_P, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &body);
    world_expect(&world, T, COLUMNS);
    world_serve(&world, T, COLUMNS); /* for epoch 11 */
    world_part(&world, T, 0, 0, COLUMNS, true, 0);
    world_run(&world);
    ck_assert_int_eq(world.sides[WORLD_P].done_status, STATUS_ERR_DEADLINE);
    ck_assert_uint_eq(world_figures(&world, WORLD_D).piece_count, 0);
    clean_up();
    world_close(&world);
}
END_TEST

/* ---- every message, every fault
 * ---------------------------------------------------------------------- */

/* Whatever happens to any single message between the two, the run ends; if the destination's role
 * hears that all is well, it is; and afterwards nothing is left on either side. */
START_TEST(any_single_message_may_go_wrong)
{
    uint32_t met_count = 0;
    for (uint32_t fault = WORLD_FAULT_LOST; fault < WORLD_FAULT_COUNT; fault++) {
        for (uint32_t at = 0;; at++) {
            open_world();
            world_link(&world, 16);
            world.fault = (world_fault_t)fault;
            world.fault_at = at;
            play();
            world_run(&world);
            bool is_met = world.fault_met;
            met_count += is_met ? 1 : 0;
            const world_side_t *d = &world.sides[WORLD_D];
            ck_assert_msg(d->done_count <= 1, "fault %u at %u: %u ends", fault, at, d->done_count);
            if (d->done_count == 1 && d->done_status == STATUS_OK && fault != WORLD_FAULT_CORRUPT) {
                ck_assert_msg(world_is_right(&world, COLUMNS), "fault %u at %u", fault, at);
            }
            if (!is_met) {
                ck_assert_int_eq(d->done_status, STATUS_OK);
                ck_assert_uint_eq(d->done_count, 1);
                ck_assert(world_is_right(&world, COLUMNS));
            }
            if (fault == WORLD_FAULT_TWICE) {
                ck_assert_int_eq(d->done_status, STATUS_OK);
            }
            clean_up();
            world_close(&world);
            if (!is_met) {
                break;
            }
        }
    }
    ck_assert_uint_gt(met_count, 60);
}
END_TEST

/* ---- saved bytes
 * ---------------------------------------------------------------------------------------- */

/* Any byte of a saved state may be another one: refused, or a core that keeps its invariants. */
START_TEST(hostile_states_are_refused_or_sound)
{
    static uint8_t bytes[1 << 18];
    open_world();
    world.checks_twins = false;
    world_link(&world, 16);
    world.hold_copies = true;
    play();
    world_deliver(&world);
    for (uint32_t side = 0; side < 2; side++) {
        proto_pack_t state = {.out = bytes, .capacity_bytes = sizeof bytes};
        proto_pack_t secret = {.out = NULL};
        world.sides[side].ops->save(world.sides[side].core, &state, &secret);
        ck_assert(proto_pack_is_complete(&state));
        for (size_t at = 0; at < state.size_bytes; at += 3) {
            bytes[at] ^= 0x41;
            actor_kv_core_t *twin = NULL;
            if (actor_kv_core_restore((proto_bytes_t){bytes, state.size_bytes},
                                      (proto_bytes_t){NULL, 0}, &twin, NULL) == STATUS_OK) {
                actor_kv_core_ops(twin)->check(twin);
                actor_kv_core_destroy(&twin);
            }
            bytes[at] ^= 0x41;
        }
        for (size_t size = 0; size < state.size_bytes; size += 17) {
            actor_kv_core_t *twin = NULL;
            ck_assert_int_ne(actor_kv_core_restore((proto_bytes_t){bytes, size},
                                                   (proto_bytes_t){NULL, 0}, &twin, NULL),
                             STATUS_OK);
        }
    }
    world_close(&world);
}
END_TEST

/* A peer that came when there was no more room is nobody's executor: what it has is not ours. */
START_TEST(only_an_executor_or_a_drafter_has_our_cache)
{
    open_world();
    enum { PEERS = 9 };
    for (uint32_t i = 0; i < PEERS; i++) {
        proto_body_t up = {.peer_up = {.peer = WORLD_PEER_OTHERS + i,
                                       .role = PROTO_ROLE_KV_TRANSFER,
                                       .name = proto_text("kv-x"),
                                       .epoch = 20 + i}};
        world_give(&world, WORLD_P, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &up);
    }
    const world_arena_t arena = {.rank_count = 1, .granularity = 16, .pages = WORLD_BLOCKS};
    world_arena(&world, WORLD_P, WORLD_PEER_OTHERS + PEERS - 1, &arena);
    ck_assert_uint_eq(world.sides[WORLD_P].refused_count, 1);
    proto_body_t up = {.peer_up = {.peer = WORLD_PEER_EXECUTOR,
                                   .role = _i == 0 ? PROTO_ROLE_EXECUTOR : PROTO_ROLE_DRAFTER,
                                   .name = proto_text("executor"),
                                   .epoch = 1}};
    world_give(&world, WORLD_P, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &up);
    world_arena(&world, WORLD_P, WORLD_PEER_EXECUTOR, &arena); /* the place is still free */
    ck_assert_uint_eq(world.sides[WORLD_P].refused_count, 1);
    take_down(WORLD_P, WORLD_PEER_EXECUTOR, up.peer_up.role);
    world_arena(&world, WORLD_P, WORLD_PEER_EXECUTOR, &arena); /* it has gone */
    ck_assert_uint_eq(world.sides[WORLD_P].refused_count, 2);
    world_close(&world);
}
END_TEST

/* A rank with fewer pages than the one that blocks are checked against would be read past its end.
 */
START_TEST(ranks_have_the_same_pages)
{
    open_world();
    world_link(&world, 16);
    proto_body_t gone = {.kv_arena = {.region = 0}};
    world_give(&world, WORLD_D, WORLD_PEER_KV, PROTO_KIND_KV_ARENA, &gone);
    world_arena_t arena = {.rank_count = 2, .granularity = 16, .pages = WORLD_BLOCKS};
    world_arena(&world, WORLD_D, WORLD_PEER_KV, &arena);
    uint64_t refused = world_figures(&world, WORLD_D).refused_count;
    arena.rank = 1;
    arena.pages = WORLD_BLOCKS / 2;
    world_arena(&world, WORLD_D, WORLD_PEER_KV, &arena);
    ck_assert_uint_eq(world_figures(&world, WORLD_D).refused_count, refused + 1);
    arena.pages = WORLD_BLOCKS;
    world_arena(&world, WORLD_D, WORLD_PEER_KV, &arena); /* its place is still free */
    ck_assert_uint_eq(world_figures(&world, WORLD_D).refused_count, refused + 1);
    world_close(&world);
}
END_TEST

/* Blocks of pieces that wait were checked against a cache; with it they go. */
START_TEST(a_lost_cache_takes_its_early_pieces)
{
    open_world();
    world_link(&world, 16);
    world_serve(&world, T, COLUMNS);
    world_part(&world, T, 0, 0, COLUMNS, true, 0);
    world_deliver(&world);
    ck_assert_uint_gt(world_figures(&world, WORLD_D).parked_count, 1);
    proto_body_t gone = {.kv_arena = {.region = 0}};
    world_give(&world, WORLD_D, WORLD_PEER_KV, PROTO_KIND_KV_ARENA, &gone);
    ck_assert_uint_eq(world_figures(&world, WORLD_D).parked_count, 0);
    clean_up();
    world_close(&world);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.kv_core");
    TCase *tests = tcase_create("core");
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, a_transfer_lands_layer_by_layer);
    tcase_add_test(tests, a_transfer_of_no_blocks_is_a_whole_round);
    tcase_add_test(tests, early_messages_wait_for_what_opens_them);
    tcase_add_test(tests, what_nobody_expects_is_answered);
    tcase_add_test(tests, a_fence_at_the_source_waits_for_nobody);
    tcase_add_test(tests, a_fence_at_the_destination_waits_for_its_own_copies);
    tcase_add_test(tests, a_cancel_at_any_moment_is_answered_once);
    tcase_add_test(tests, another_layout_is_refused_with_both_values);
    tcase_add_test(tests, pieces_that_lie_end_the_transfer);
    tcase_add_test(tests, parts_that_lie_end_the_transfer);
    tcase_add_test(tests, transfers_end_with_whom_they_need);
    tcase_add_test(tests, a_restarted_peer_is_another_one);
    tcase_add_test(tests, any_single_message_may_go_wrong);
    tcase_add_test(tests, hostile_states_are_refused_or_sound);
    tcase_add_loop_test(tests, only_an_executor_or_a_drafter_has_our_cache, 0, 2);
    tcase_add_test(tests, ranks_have_the_same_pages);
    tcase_add_test(tests, a_lost_cache_takes_its_early_pieces);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
