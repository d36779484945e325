/* Every limit of every field, from both sides: 0, the limit, one beyond.  The bytes for the decoder
 * are made by msgpack-c, so this also compares our reading with an independent writer. */
#include <check.h>
#include <math.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "message_maker.h"

/* Zero pages, as much as the largest column needs; untouched pages cost nothing. */
static uint8_t *zeros;
static uint8_t *blob_room;
static msgpack_sbuffer buffer;
static msgpack_packer packer;

static void
set_up(void)
{
    zeros = mmap(NULL, PROTO_BLOB_SIZE_MAX + 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    blob_room = mmap(NULL, PROTO_BLOB_SIZE_MAX + 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(zeros, MAP_FAILED);
    ck_assert_ptr_ne(blob_room, MAP_FAILED);
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
}

static void
tear_down(void)
{
    msgpack_sbuffer_destroy(&buffer);
    (void)munmap(zeros, PROTO_BLOB_SIZE_MAX + 4096);
    (void)munmap(blob_room, PROTO_BLOB_SIZE_MAX + 4096);
}

static void
pack_text(const char *data, size_t size_bytes)
{
    msgpack_pack_str(&packer, size_bytes);
    msgpack_pack_str_body(&packer, data, size_bytes);
}

/* The field's value: a number, a size or a count. */
static void
pack_field(const proto_field_t *field, uint64_t amount)
{
    switch (field->type) {
    case PROTO_FIELD_U32:
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
        msgpack_pack_uint64(&packer, amount);
        break;
    case PROTO_FIELD_F64:
        msgpack_pack_double(&packer, (double)amount);
        break;
    case PROTO_FIELD_BOOL:
        (void)(amount != 0 ? msgpack_pack_true(&packer) : msgpack_pack_false(&packer));
        break;
    case PROTO_FIELD_STR:
        pack_text((const char *)zeros, amount);
        break;
    case PROTO_FIELD_BIN:
        msgpack_pack_bin(&packer, amount);
        msgpack_pack_bin_body(&packer, zeros, amount);
        break;
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        msgpack_pack_array(&packer, 2);
        msgpack_pack_uint64(&packer, 0);
        msgpack_pack_uint64(&packer, amount);
        break;
    }
}

/* A body in which one field has an amount and the others are 0. */
static proto_bytes_t
pack_body(const proto_message_t *message, const proto_field_t *chosen, uint64_t amount)
{
    msgpack_sbuffer_clear(&buffer);
    if (message->is_map) {
        msgpack_pack_map(&packer, message->field_count);
    } else {
        msgpack_pack_array(&packer, message->field_count);
    }
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        if (message->is_map) {
            pack_text(field->name, strlen(field->name));
        }
        pack_field(field, field == chosen ? amount : 0);
    }
    return (proto_bytes_t){(const uint8_t *)buffer.data, buffer.size};
}

static bool
has_limit(const proto_field_t *field)
{
    return field->type != PROTO_FIELD_F64 && field->type != PROTO_FIELD_BOOL;
}

START_TEST(the_decoder_takes_each_limit_and_refuses_one_more)
{
    const proto_bytes_t blob = {zeros, PROTO_BLOB_SIZE_MAX};
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        const proto_message_t *message = &messages[index];
        for (uint32_t at = 0; at < message->field_count; at++) {
            const proto_field_t *field = &message->fields[at];
            proto_body_t body;
            proto_error_t error = {""};
            if (!has_limit(field)) {
                continue;
            }
            proto_bytes_t bytes = pack_body(message, field, 0);
            ck_assert_msg(proto_body_decode(message->kind, bytes, blob, &body, &error) == STATUS_OK,
                          "%s.%s = 0: %s", message->name, field->name, error.detail);
            bytes = pack_body(message, field, field->limit);
            ck_assert_msg(proto_body_decode(message->kind, bytes, blob, &body, &error) == STATUS_OK,
                          "%s.%s at its limit: %s", message->name, field->name, error.detail);
            if (field->limit == UINT64_MAX) {
                continue;
            }
            bytes = pack_body(message, field, field->limit + 1);
            ck_assert_msg(proto_body_decode(message->kind, bytes, blob, &body, &error) ==
                              STATUS_ERR_MALFORMED,
                          "%s.%s beyond its limit", message->name, field->name);
            ck_assert_msg(strstr(error.detail, field->name) != NULL, "%s", error.detail);
        }
    }
}
END_TEST

static void
set_field(proto_body_t *body, const proto_field_t *field, uint64_t amount)
{
    void *value = (uint8_t *)body + field->offset_bytes;
    switch (field->type) {
    case PROTO_FIELD_U32:
        *(uint32_t *)value = (uint32_t)amount;
        break;
    case PROTO_FIELD_U64:
        *(uint64_t *)value = amount;
        break;
    case PROTO_FIELD_I64:
        *(int64_t *)value = -(int64_t)amount; /* the other sign than above */
        break;
    case PROTO_FIELD_STR:
        *(proto_text_t *)value = (proto_text_t){(const char *)zeros, (uint32_t)amount};
        break;
    case PROTO_FIELD_BIN:
        *(proto_bytes_t *)value = (proto_bytes_t){zeros, amount};
        break;
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        *(proto_column_u8_t *)value = (proto_column_u8_t){zeros, (uint32_t)amount};
        break;
    case PROTO_FIELD_F64:
    case PROTO_FIELD_BOOL:
        break;
    }
}

static proto_status_t
encode_with(const proto_message_t *message, const proto_field_t *field, uint64_t amount,
            size_t less_body, size_t less_blob)
{
    static uint8_t out[PROTO_BODY_SIZE_MAX];
    proto_body_t body;
    size_t body_size = 0;
    size_t blob_size = 0;
    size_t body_bound = 0;
    size_t blob_bound = 0;
    memset(&body, 0, sizeof body);
    set_field(&body, field, amount);
    proto_body_bound(message->kind, &body, &body_bound, &blob_bound);
    ck_assert_uint_le(body_bound, sizeof out);
    return proto_body_encode(message->kind, &body, out, body_bound - less_body, &body_size,
                             blob_room, blob_bound - less_blob, &blob_size);
}

/* What a receiver would refuse is not sent. */
START_TEST(the_encoder_takes_each_limit_and_refuses_one_more)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        const proto_message_t *message = &messages[index];
        for (uint32_t at = 0; at < message->field_count; at++) {
            const proto_field_t *field = &message->fields[at];
            bool whole_range = field->limit == UINT64_MAX ||
                               (field->type == PROTO_FIELD_U32 && field->limit == UINT32_MAX);
            if (!has_limit(field)) {
                continue;
            }
            ck_assert_msg(encode_with(message, field, field->limit, 0, 0) == STATUS_OK,
                          "%s.%s at its limit", message->name, field->name);
            ck_assert_msg(whole_range || encode_with(message, field, field->limit + 1, 0, 0) ==
                                             STATUS_ERR_INVALID,
                          "%s.%s beyond its limit", message->name, field->name);
        }
    }
}
END_TEST

START_TEST(too_little_room_is_reported_not_overrun)
{
    const proto_message_t *submit = proto_message_find(PROTO_KIND_SUBMIT);
    for (uint32_t at = 0; at < submit->field_count; at++) {
        const proto_field_t *field = &submit->fields[at];
        if (field->type >= PROTO_FIELD_COL_U8) {
            ck_assert_int_eq(encode_with(submit, field, 100, 0, 1), STATUS_ERR_TOO_LARGE);
        }
        if (field->type == PROTO_FIELD_BIN) {
            /* More than the bound's slack of 24 bytes a field. */
            ck_assert_int_eq(encode_with(submit, field, 1000, 24 * submit->field_count, 0),
                             STATUS_ERR_TOO_LARGE);
        }
    }
}
END_TEST

/* Several columns within their limits can still be too much together. */
START_TEST(a_blob_beyond_its_limit_is_refused)
{
    static uint8_t out[4096];
    proto_body_t body;
    size_t body_size = 0;
    size_t blob_size = 0;
    memset(&body, 0, sizeof body);
    body.plan.patch_slots = (proto_column_u32_t){(const uint32_t *)(void *)zeros, PROTO_BLOCKS_MAX};
    body.plan.patch_columns = body.plan.patch_slots;
    body.plan.patch_counts = body.plan.patch_slots;
    body.plan.patch_blocks = body.plan.patch_slots;
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_PLAN, &body, out, sizeof out, &body_size,
                                       blob_room, PROTO_BLOB_SIZE_MAX + 4096, &blob_size),
                     STATUS_OK);
    ck_assert_uint_eq(blob_size, PROTO_BLOB_SIZE_MAX);
    body.plan.decode_slots = (proto_column_u32_t){(const uint32_t *)(void *)zeros, 1};
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_PLAN, &body, out, sizeof out, &body_size,
                                       blob_room, PROTO_BLOB_SIZE_MAX + 4096, &blob_size),
                     STATUS_ERR_TOO_LARGE);
    proto_bytes_t bytes = {out, 10};
    proto_bytes_t huge = {zeros, (size_t)PROTO_BLOB_SIZE_MAX + 1};
    proto_error_t error;
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_PLAN, bytes, huge, &body, &error),
                     STATUS_ERR_TOO_LARGE);
    bytes.size_bytes = (size_t)PROTO_BODY_SIZE_MAX + 1;
    bytes.data = zeros;
    huge.size_bytes = 0;
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_PLAN, bytes, huge, &body, &error),
                     STATUS_ERR_TOO_LARGE);
}
END_TEST

static proto_status_t
decode_step(void)
{
    proto_body_t body;
    proto_bytes_t bytes = {(const uint8_t *)buffer.data, buffer.size};
    return proto_body_decode(PROTO_KIND_NAK, bytes, (proto_bytes_t){NULL, 0}, &body, NULL);
}

/* NAK is [u64, u32, i64, str].  A value of another type is refused, never converted. */
START_TEST(values_of_a_wrong_type_are_refused)
{
    for (int wrong = 0; wrong < 9; wrong++) {
        msgpack_sbuffer_clear(&buffer);
        msgpack_pack_array(&packer, 4);
        (void)(wrong == 1 ? msgpack_pack_double(&packer, 1.0) : msgpack_pack_int(&packer, 1));
        (void)(wrong == 2 ? msgpack_pack_int(&packer, -1) : msgpack_pack_int(&packer, 1));
        if (wrong == 3) {
            pack_text("1", 1);
        } else if (wrong == 4) {
            msgpack_pack_uint64(&packer, UINT64_MAX);
        } else if (wrong == 5) {
            msgpack_pack_int64(&packer, INT64_MIN);
        } else if (wrong == 6) {
            msgpack_pack_nil(&packer);
        } else {
            msgpack_pack_int(&packer, -1000);
        }
        if (wrong == 7) {
            msgpack_pack_bin(&packer, 1);
            msgpack_pack_bin_body(&packer, "x", 1);
        } else {
            pack_text("x", 1);
        }
        ck_assert_msg(decode_step() ==
                          (wrong == 0 || wrong == 8 ? STATUS_OK : STATUS_ERR_MALFORMED),
                      "case %d", wrong);
    }
}
END_TEST

static proto_status_t
decode_sampling_real(double value)
{
    msgpack_sbuffer_clear(&buffer);
    msgpack_pack_array(&packer, 1);
    msgpack_pack_double(&packer, value);
    proto_sampling_t sampling;
    proto_column_u8_t column = {(const uint8_t *)buffer.data, (uint32_t)buffer.size};
    return proto_sampling_decode(column, &sampling, NULL);
}

/* NaN compares false with every bound, so it must not get as far as a comparison. */
START_TEST(floats_must_be_finite)
{
    ck_assert_int_eq(decode_sampling_real(0.7), STATUS_OK);
    ck_assert_int_eq(decode_sampling_real(-1e308), STATUS_OK);
    ck_assert_int_eq(decode_sampling_real((double)NAN), STATUS_ERR_MALFORMED);
    ck_assert_int_eq(decode_sampling_real((double)INFINITY), STATUS_ERR_MALFORMED);
    ck_assert_int_eq(decode_sampling_real(-(double)INFINITY), STATUS_ERR_MALFORMED);

    uint8_t out[1024];
    _Alignas(64) float values[] = {1, 2, NAN};
    proto_body_t body;
    size_t body_size = 0;
    size_t blob_size = 0;
    memset(&body, 0, sizeof body);
    body.sampling.top_p = (double)NAN;
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_SAMPLING, &body, out, sizeof out, &body_size,
                                       blob_room, 4096, &blob_size),
                     STATUS_ERR_INVALID);
    memset(&body, 0, sizeof body);
    body.tokens.logprob_values = (proto_column_f32_t){values, 3};
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_TOKENS, &body, out, sizeof out, &body_size,
                                       blob_room, 4096, &blob_size),
                     STATUS_ERR_INVALID);
    values[2] = 3;
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_TOKENS, &body, out, sizeof out, &body_size,
                                       blob_room, 4096, &blob_size),
                     STATUS_OK);
    uint32_t infinity = 0xff800000u;
    memcpy(blob_room + 4, &infinity, sizeof infinity);
    proto_bytes_t bytes = {out, body_size};
    proto_bytes_t blob = {blob_room, blob_size};
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_TOKENS, bytes, blob, &body, NULL),
                     STATUS_ERR_MALFORMED);
}
END_TEST

/* Writers in other languages send a whole number for 1.0. */
START_TEST(whole_numbers_are_floats_too)
{
    msgpack_pack_array(&packer, 3);
    msgpack_pack_int(&packer, 1);
    msgpack_pack_int(&packer, -3);
    msgpack_pack_float(&packer, 0.5f);
    proto_sampling_t sampling;
    proto_column_u8_t column = {(const uint8_t *)buffer.data, (uint32_t)buffer.size};
    ck_assert_int_eq(proto_sampling_decode(column, &sampling, NULL), STATUS_OK);
    ck_assert_double_eq(sampling.temperature, 1.0);
    ck_assert_double_eq(sampling.top_p, -3.0);
    ck_assert_double_eq(sampling.min_p, 0.5);
}
END_TEST

static proto_status_t
decode_columns(const uint64_t pairs[][2], uint32_t pair_count, uint64_t blob_size)
{
    /* LOAD has no columns; EXECUTOR_INFO has four in a row at the end, after ten numbers. */
    msgpack_sbuffer_clear(&buffer);
    msgpack_pack_array(&packer, 10 + pair_count);
    pack_text("", 0);
    pack_text("", 0);
    for (int index = 0; index < 8; index++) {
        msgpack_pack_int(&packer, 0);
    }
    for (uint32_t index = 0; index < pair_count; index++) {
        msgpack_pack_array(&packer, 2);
        msgpack_pack_uint64(&packer, pairs[index][0]);
        msgpack_pack_uint64(&packer, pairs[index][1]);
    }
    proto_body_t body;
    proto_bytes_t bytes = {(const uint8_t *)buffer.data, buffer.size};
    return proto_body_decode(PROTO_KIND_EXECUTOR_INFO, bytes, (proto_bytes_t){zeros, blob_size},
                             &body, NULL);
}

START_TEST(columns_must_lie_apart_and_within_the_blob)
{
    const uint64_t good[][2] = {{0, 4}, {64, 16}, {128, 1}};
    ck_assert_int_eq(decode_columns(good, 3, 132), STATUS_OK);
    ck_assert_int_eq(decode_columns(good, 3, 131), STATUS_ERR_MALFORMED);
    const uint64_t apart[][2] = {{64, 4}, {1024, 4}};
    ck_assert_int_eq(decode_columns(apart, 2, 4096), STATUS_OK);
    const uint64_t odd[][2] = {{4, 4}};
    ck_assert_int_eq(decode_columns(odd, 1, 4096), STATUS_ERR_MALFORMED);
    const uint64_t same[][2] = {{0, 4}, {0, 4}};
    ck_assert_int_eq(decode_columns(same, 2, 4096), STATUS_ERR_MALFORMED);
    const uint64_t overlapping[][2] = {{0, 17}, {64, 4}};
    ck_assert_int_eq(decode_columns(overlapping, 2, 4096), STATUS_ERR_MALFORMED);
    const uint64_t backwards[][2] = {{128, 4}, {0, 4}};
    ck_assert_int_eq(decode_columns(backwards, 2, 4096), STATUS_ERR_MALFORMED);
    const uint64_t far[][2] = {{UINT64_MAX - 63, 4}};
    ck_assert_int_eq(decode_columns(far, 1, 4096), STATUS_ERR_MALFORMED);
    const uint64_t wide[][2] = {{64, UINT32_MAX}};
    ck_assert_int_eq(decode_columns(wide, 1, 4096), STATUS_ERR_MALFORMED);
    const uint64_t beyond[][2] = {{4096, 1}};
    ck_assert_int_eq(decode_columns(beyond, 1, 4096), STATUS_ERR_MALFORMED);
    const uint64_t empty[][2] = {{0, 0}, {0, 0}};
    ck_assert_int_eq(decode_columns(empty, 2, 0), STATUS_OK);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.limits");
    TCase *tcase = tcase_create("limits");
    tcase_set_timeout(tcase, 50);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, the_decoder_takes_each_limit_and_refuses_one_more);
    tcase_add_test(tcase, the_encoder_takes_each_limit_and_refuses_one_more);
    tcase_add_test(tcase, too_little_room_is_reported_not_overrun);
    tcase_add_test(tcase, a_blob_beyond_its_limit_is_refused);
    tcase_add_test(tcase, values_of_a_wrong_type_are_refused);
    tcase_add_test(tcase, floats_must_be_finite);
    tcase_add_test(tcase, whole_numbers_are_floats_too);
    tcase_add_test(tcase, columns_must_lie_apart_and_within_the_blob);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
