/* Transfer plans across unequal tensor-parallel degrees, against a copy unit by unit. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "actor_kv_plan.h"

enum {
    FIELDS = 5,
    RANKS = ACTOR_KV_RANK_COUNT_MAX,
    ROUNDS = 3000,
    PAGES = 3,
    PAGE_MAX = 16384,
};

static uint64_t state;

static uint32_t
draw(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % below);
}

/* A model's cache, whatever the ranks. */
typedef struct {
    uint32_t field_count;
    actor_kv_field_t fields[FIELDS]; /* parts: extents and units only */
    bool is_replicated[FIELDS];
} cache_t;

/* The same cut among ranks. */
typedef struct {
    uint32_t rank_count;
    actor_kv_field_t fields[RANKS][FIELDS];
    actor_kv_layout_t layouts[RANKS];
    uint8_t *pages[RANKS][FIELDS];
} side_t;

static void
make_cache(cache_t *cache)
{
    memset(cache, 0, sizeof *cache);
    cache->field_count = 1 + draw(FIELDS);
    for (uint32_t f = 0; f < cache->field_count; f++) {
        actor_kv_field_t *field = &cache->fields[f];
        field->layer = f;
        field->name = draw(4);
        field->dtype = draw(2);
        field->rows = 1 + draw(6);
        field->part_count = 1 + draw(ACTOR_KV_PART_COUNT_MAX);
        cache->is_replicated[f] = draw(4) == 0;
        for (uint32_t p = 0; p < field->part_count; p++) {
            field->parts[p].extent = 1 + draw(24);
            field->parts[p].unit_bytes = 1 + draw(12);
        }
    }
}

/* Even pieces; where there are fewer units than ranks, several ranks have the same ones. */
static void
cut(actor_kv_part_t *part, bool is_replicated, uint32_t rank, uint32_t rank_count)
{
    if (is_replicated) {
        part->begin = 0;
        part->count = part->extent;
    } else if (part->extent < rank_count) {
        part->begin = rank * part->extent / rank_count;
        part->count = 1;
    } else {
        part->begin = rank * part->extent / rank_count;
        part->count = (rank + 1) * part->extent / rank_count - part->begin;
    }
}

static void
make_side(const cache_t *cache, side_t *side)
{
    memset(side, 0, sizeof *side);
    side->rank_count = 1 + draw(RANKS);
    for (uint32_t r = 0; r < side->rank_count; r++) {
        actor_kv_layout_t *layout = &side->layouts[r];
        uint64_t at = 0;
        for (uint32_t f = 0; f < cache->field_count; f++) {
            actor_kv_field_t *field = &side->fields[r][f];
            *field = cache->fields[f];
            for (uint32_t p = 0; p < field->part_count; p++) {
                cut(&field->parts[p], cache->is_replicated[f], r, side->rank_count);
            }
            field->page0_offset_bytes = at;
            field->stride_bytes = actor_kv_page_bytes(field) + draw(64);
            at += field->stride_bytes * PAGES;
            ck_assert_uint_le(actor_kv_page_bytes(field), PAGE_MAX);
            side->pages[r][f] = calloc(1, actor_kv_page_bytes(field) + 1);
        }
        layout->arena_bytes = at;
        layout->rank = r;
        layout->rank_count = side->rank_count;
        layout->layer_count = cache->field_count;
        layout->group_count = 1;
        layout->groups[0] = (actor_kv_group_t){.granularity = 16, .page_count = PAGES};
        layout->field_count = cache->field_count;
        layout->fields = side->fields[r];
        ck_assert_int_eq(actor_kv_layout_check(layout, NULL), STATUS_OK);
    }
}

static void
free_side(side_t *side, const cache_t *cache)
{
    for (uint32_t r = 0; r < side->rank_count; r++) {
        for (uint32_t f = 0; f < cache->field_count; f++) {
            free(side->pages[r][f]);
        }
    }
}

/* What a byte of a unit holds: a hash of where it belongs, the same on every rank that has it. */
static uint8_t
content(uint32_t field, uint32_t row, uint32_t part, uint32_t at)
{
    uint32_t x = field * 2654435761u ^ row * 40503u ^ part * 97u ^ at * 2246822519u;
    return (uint8_t)(x >> 13 ^ x);
}

/* Visits every byte of a rank's page with what belongs there. */
static bool
visit(const actor_kv_field_t *field, uint32_t index, uint8_t *page, bool is_write)
{
    uint64_t at = 0;
    for (uint32_t row = 0; row < field->rows; row++) {
        for (uint32_t p = 0; p < field->part_count; p++) {
            const actor_kv_part_t *part = &field->parts[p];
            uint32_t first = part->begin * part->unit_bytes;
            for (uint32_t i = 0; i < part->count * part->unit_bytes; i++, at++) {
                uint8_t wanted = content(index, row, p, first + i);
                if (is_write) {
                    page[at] = wanted;
                } else if (page[at] != wanted) {
                    return false;
                }
            }
        }
    }
    return true;
}

static void
check_round(const cache_t *cache, side_t *from, side_t *to)
{
    static actor_kv_fragment_t fragments[FIELDS * ACTOR_KV_PART_COUNT_MAX * RANKS];
    const actor_kv_layout_t *sources[RANKS];
    for (uint32_t r = 0; r < from->rank_count; r++) {
        sources[r] = &from->layouts[r];
        for (uint32_t f = 0; f < cache->field_count; f++) {
            ck_assert(visit(&from->fields[r][f], f, from->pages[r][f], true));
        }
    }
    for (uint32_t r = 0; r < to->rank_count; r++) {
        uint32_t count = 0;
        ck_assert_int_eq(actor_kv_plan_make(sources, from->rank_count, &to->layouts[r], fragments,
                                            sizeof fragments / sizeof *fragments, &count),
                         STATUS_OK);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t f = fragments[i].field;
            actor_kv_fragment_copy(&fragments[i], from->pages[fragments[i].source][f],
                                   to->pages[r][f]);
        }
        for (uint32_t f = 0; f < cache->field_count; f++) {
            ck_assert_msg(visit(&to->fields[r][f], f, to->pages[r][f], false),
                          "field %u of rank %u of %u, from %u ranks", f, r, to->rank_count,
                          from->rank_count);
        }
    }
}

/* Whatever the degrees, the extents and what is replicated: every rank gets exactly its bytes. */
START_TEST(every_rank_gets_its_own_bytes)
{
    state = (uint64_t)time(NULL);
    (void)fprintf(stderr, "seed %llu\n", (unsigned long long)state);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        cache_t cache;
        static side_t from;
        static side_t to;
        make_cache(&cache);
        make_side(&cache, &from);
        make_side(&cache, &to);
        check_round(&cache, &from, &to);
        free_side(&from, &cache);
        free_side(&to, &cache);
    }
}
END_TEST

static void
make_heads(actor_kv_field_t *field, actor_kv_layout_t *layout, uint32_t rank, uint32_t ranks)
{
    *field = (actor_kv_field_t){
        .rows = 64,
        .part_count = 1,
        .parts = {{.extent = 8, .unit_bytes = 128}},
    };
    cut(&field->parts[0], false, rank, ranks);
    field->stride_bytes = actor_kv_page_bytes(field);
    *layout = (actor_kv_layout_t){
        .arena_bytes = 10 * field->stride_bytes,
        .rank = rank,
        .rank_count = ranks,
        .layer_count = 1,
        .group_count = 1,
        .groups = {{.granularity = 64, .page_count = 10}},
        .field_count = 1,
        .fields = field,
    };
}

/* Equal degrees copy whole pages: one run of bytes, not one for each row. */
START_TEST(equal_degrees_move_whole_pages)
{
    actor_kv_field_t fields[2];
    actor_kv_layout_t layouts[2];
    const actor_kv_layout_t *sources[2] = {&layouts[0], &layouts[1]};
    make_heads(&fields[0], &layouts[0], 0, 2);
    make_heads(&fields[1], &layouts[1], 1, 2);
    actor_kv_fragment_t fragments[4];
    uint32_t count = 0;
    ck_assert_int_eq(actor_kv_plan_make(sources, 2, &layouts[1], fragments, 4, &count), STATUS_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(fragments[0].source, 1);
    ck_assert_uint_eq(fragments[0].rows, 1);
    ck_assert_uint_eq(fragments[0].bytes, actor_kv_page_bytes(&fields[1]));
}
END_TEST

/* A cache that differs in anything but ranks and places is another cache. */
START_TEST(caches_of_another_kind_are_refused)
{
    actor_kv_field_t fields[2];
    actor_kv_layout_t layouts[2];
    const actor_kv_layout_t *sources[1] = {&layouts[0]};
    actor_kv_fragment_t fragments[4];
    uint32_t count = 0;
    for (uint32_t what = 0; what < 6; what++) {
        make_heads(&fields[0], &layouts[0], 0, 1);
        make_heads(&fields[1], &layouts[1], 0, 1);
        uint32_t *const changed[] = {&fields[1].rows,
                                     &fields[1].dtype,
                                     &fields[1].name,
                                     &layouts[1].groups[0].granularity,
                                     &layouts[1].groups[0].window,
                                     &fields[1].parts[0].unit_bytes};
        *changed[what] += 1;
        ck_assert_int_eq(actor_kv_plan_make(sources, 1, &layouts[1], fragments, 4, &count),
                         STATUS_ERR_FINGERPRINT);
    }
}
END_TEST

/* Fan-out: a unit that no source has, and bytes that come twice, are found before any copy. */
START_TEST(gaps_and_overlaps_are_refused)
{
    actor_kv_field_t fields[3];
    actor_kv_layout_t layouts[3];
    make_heads(&fields[0], &layouts[0], 0, 2);
    make_heads(&fields[1], &layouts[1], 1, 2);
    make_heads(&fields[2], &layouts[2], 0, 1);
    const actor_kv_layout_t *half[2] = {&layouts[0], &layouts[0]};
    const actor_kv_layout_t *both[2] = {&layouts[0], &layouts[1]};
    actor_kv_fragment_t fragments[4];
    uint32_t count = 0;
    ck_assert_int_eq(actor_kv_plan_make(half, 2, &layouts[2], fragments, 4, &count),
                     STATUS_ERR_INVALID);
    ck_assert_int_eq(actor_kv_plan_make(both, 2, &layouts[2], fragments, 4, &count), STATUS_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(actor_kv_plan_check(&layouts[2], fragments, 1), STATUS_ERR_INVALID);
    fragments[1] = fragments[0];
    ck_assert_int_eq(actor_kv_plan_check(&layouts[2], fragments, 2), STATUS_ERR_INVALID);
    ck_assert_int_eq(actor_kv_plan_make(both, 2, &layouts[2], fragments, 1, &count),
                     STATUS_ERR_TOO_LARGE);
}
END_TEST

/* A layout comes from a peer: nothing in it may lead outside the arena. */
START_TEST(hostile_layouts_are_refused)
{
    actor_kv_field_t field;
    actor_kv_layout_t layout;
    proto_error_t error;
    make_heads(&field, &layout, 0, 1);
    ck_assert_int_eq(actor_kv_layout_check(&layout, &error), STATUS_OK);
    for (uint32_t what = 0; what < 12; what++) {
        make_heads(&field, &layout, 0, 1);
        switch (what) {
        case 0:
            field.page0_offset_bytes = 1;
            break;
        case 1:
            field.page0_offset_bytes = UINT64_MAX - 3;
            break;
        case 2:
            field.stride_bytes -= 1;
            break;
        case 3:
            field.stride_bytes = UINT64_MAX / 2;
            break;
        case 4:
            field.parts[0].begin = UINT32_MAX;
            break;
        case 5:
            field.parts[0].count = 0;
            break;
        case 6:
            field.part_count = 4;
            break;
        case 7:
            layout.groups[0].page_count = 11;
            break;
        case 8:
            field.group = 1;
            break;
        case 9:
            layout.rank = 1;
            break;
        case 10:
            field.rows = UINT32_MAX;
            break;
        default:
            field.layer = 1;
            break;
        }
        ck_assert_msg(actor_kv_layout_check(&layout, &error) == STATUS_ERR_INVALID, "case %u",
                      what);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.kv_plan");
    TCase *tests = tcase_create("plan");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, every_rank_gets_its_own_bytes);
    tcase_add_test(tests, equal_degrees_move_whole_pages);
    tcase_add_test(tests, caches_of_another_kind_are_refused);
    tcase_add_test(tests, gaps_and_overlaps_are_refused);
    tcase_add_test(tests, hostile_layouts_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
