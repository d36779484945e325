/* Round trips and damage, for every message of the list. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message_maker.h"

enum { ROUNDS = 200, CONTENT_MAX = 300 };

static encoded_t encoded;
static encoded_t again;

static proto_bytes_t
body_of(const encoded_t *message)
{
    return (proto_bytes_t){message->body, message->body_size_bytes};
}

static proto_bytes_t
blob_of(const encoded_t *message)
{
    return (proto_bytes_t){message->blob, message->blob_size_bytes};
}

/* What a sender puts in is what a receiver gets out, and encoding that again gives the same
 * bytes: logs and golden bytes compare by bytes. */
START_TEST(every_message_survives_a_round_trip)
{
    maker_t *maker = maker_new(maker_seed("round trip"), CONTENT_MAX);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t index = 0; index < count; index++) {
            const proto_message_t *message = &messages[index];
            proto_body_t body;
            proto_body_t decoded;
            proto_error_t error = {""};
            maker_fill(maker, message, &body);
            maker_encode(message, &body, &encoded);
            proto_status_t status = proto_body_decode(message->kind, body_of(&encoded),
                                                      blob_of(&encoded), &decoded, &error);
            ck_assert_msg(status == STATUS_OK, "%s: %s", message->name, error.detail);
            const char *field = maker_difference(message, &body, &decoded);
            ck_assert_msg(field == NULL, "%s.%s differs", message->name, field);
            field = maker_out_of_range(message, &decoded, body_of(&encoded), blob_of(&encoded));
            ck_assert_msg(field == NULL, "%s.%s is out of range", message->name, field);
            maker_encode(message, &decoded, &again);
            ck_assert_uint_eq(again.body_size_bytes, encoded.body_size_bytes);
            ck_assert_uint_eq(again.blob_size_bytes, encoded.blob_size_bytes);
            ck_assert_mem_eq(again.body, encoded.body, encoded.body_size_bytes);
            ck_assert_mem_eq(again.blob, encoded.blob, encoded.blob_size_bytes);
        }
    }
    free(maker);
}
END_TEST

/* Memory of a sender must not leak through the gaps between columns. */
START_TEST(columns_are_aligned_and_gaps_are_zero)
{
    const uint32_t slots[] = {0x11111111, 0x22222222, 0x33333333};
    const uint8_t groups[] = {0x44, 0x55};
    proto_body_t body;
    memset(&body, 0, sizeof body);
    body.plan.release_slots = (proto_column_u32_t){slots, 3};
    body.plan.patch_groups = (proto_column_u8_t){groups, 2};
    body.plan.decode_slots = (proto_column_u32_t){slots, 2};
    memset(encoded.blob, 0xee, sizeof encoded.blob);
    maker_encode(proto_message_find(PROTO_KIND_PLAN), &body, &encoded);
    ck_assert_uint_eq(encoded.blob_size_bytes, 128 + 8);
    ck_assert_mem_eq(encoded.blob, slots, 12);
    ck_assert_mem_eq(encoded.blob + 64, groups, 2);
    ck_assert_mem_eq(encoded.blob + 128, slots, 8);
    for (size_t at = 12; at < 128; at++) {
        ck_assert(at == 64 || at == 65 || encoded.blob[at] == 0);
    }
    ck_assert_uint_eq(encoded.blob[encoded.blob_size_bytes], 0xee); /* nothing beyond the end */
}
END_TEST

/* A decoded column is a view: no copy, or the speed of the codec is gone. */
START_TEST(decoded_columns_are_views_into_the_blob)
{
    const int32_t tokens[] = {1, 2, 3};
    proto_body_t body;
    proto_body_t decoded;
    memset(&body, 0, sizeof body);
    body.submit.tokens = (proto_column_i32_t){tokens, 3};
    body.submit.prompt_length = 3;
    maker_encode(proto_message_find(PROTO_KIND_SUBMIT), &body, &encoded);
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_SUBMIT, body_of(&encoded), blob_of(&encoded),
                                       &decoded, NULL),
                     STATUS_OK);
    ck_assert_ptr_eq(decoded.submit.tokens.data, encoded.blob);
}
END_TEST

/* A blob at an odd address would be undefined behaviour to read; it is refused, not read. */
START_TEST(an_unaligned_blob_is_refused)
{
    _Alignas(8) uint8_t memory[128];
    const int32_t tokens[] = {1, 2, 3};
    proto_body_t body;
    proto_body_t decoded;
    memset(&body, 0, sizeof body);
    body.submit.tokens = (proto_column_i32_t){tokens, 3};
    maker_encode(proto_message_find(PROTO_KIND_SUBMIT), &body, &encoded);
    memcpy(memory + 1, encoded.blob, encoded.blob_size_bytes);
    proto_bytes_t odd = {memory + 1, encoded.blob_size_bytes};
    ck_assert(!proto_blob_is_aligned(odd));
    ck_assert(proto_blob_is_aligned((proto_bytes_t){memory + 8, 8}));
    ck_assert(proto_blob_is_aligned((proto_bytes_t){NULL, 0}));
    proto_error_t error;
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_SUBMIT, body_of(&encoded), odd, &decoded, &error),
                     STATUS_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.detail, "copy"));
}
END_TEST

/* A cut message never decodes and never reads past its end: each piece lies in memory of exactly
 * its size, so that the sanitizers see one byte too many. */
START_TEST(a_message_cut_at_any_length_is_refused)
{
    maker_t *maker = maker_new(maker_seed("truncation"), 60);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        const proto_message_t *message = &messages[index];
        proto_body_t body;
        proto_body_t decoded;
        maker_fill(maker, message, &body);
        maker_encode(message, &body, &encoded);
        for (size_t size = 0; size < encoded.body_size_bytes; size++) {
            uint8_t *piece = malloc(size > 0 ? size : 1);
            ck_assert_ptr_nonnull(piece);
            memcpy(piece, encoded.body, size);
            proto_error_t error = {""};
            proto_bytes_t cut = {piece, size};
            ck_assert_int_eq(proto_body_decode(message->kind, cut, blob_of(&encoded), &decoded,
                                               &error),
                             STATUS_ERR_MALFORMED);
            ck_assert_uint_gt(strlen(error.detail), 0);
            free(piece);
        }
        for (size_t size = 0; size < encoded.blob_size_bytes; size++) {
            proto_bytes_t cut = {encoded.blob, size};
            ck_assert_msg(proto_body_decode(message->kind, body_of(&encoded), cut, &decoded,
                                            NULL) == STATUS_ERR_MALFORMED,
                          "%s with %zu of %zu blob bytes", message->name, size,
                          encoded.blob_size_bytes);
        }
    }
    free(maker);
}
END_TEST

static void
try_damaged(const proto_message_t *message, const uint8_t *bytes)
{
    proto_body_t decoded;
    proto_body_t untouched;
    memset(&decoded, 0x5a, sizeof decoded);
    memset(&untouched, 0x5a, sizeof untouched);
    proto_bytes_t body = {bytes, encoded.body_size_bytes};
    proto_status_t status =
        proto_body_decode(message->kind, body, blob_of(&encoded), &decoded, NULL);
    if (status == STATUS_OK) {
        const char *field = maker_out_of_range(message, &decoded, body, blob_of(&encoded));
        ck_assert_msg(field == NULL, "%s.%s is out of range", message->name, field);
    } else {
        ck_assert_int_eq(status, STATUS_ERR_MALFORMED);
        ck_assert_mem_eq(&decoded, &untouched, sizeof decoded);
    }
}

/* One damaged byte anywhere: refused, or decoded to values that are all within their limits. */
START_TEST(no_flipped_byte_gives_a_value_out_of_range)
{
    maker_t *maker = maker_new(maker_seed("flips"), 12);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        const proto_message_t *message = &messages[index];
        proto_body_t body;
        maker_fill(maker, message, &body);
        maker_encode(message, &body, &encoded);
        uint8_t *bytes = malloc(encoded.body_size_bytes);
        ck_assert_ptr_nonnull(bytes);
        memcpy(bytes, encoded.body, encoded.body_size_bytes);
        for (size_t at = 0; at < encoded.body_size_bytes; at++) {
            for (unsigned change = 1; change < 256; change++) {
                bytes[at] = (uint8_t)(encoded.body[at] ^ change);
                try_damaged(message, bytes);
            }
            bytes[at] = encoded.body[at];
        }
        free(bytes);
    }
    free(maker);
}
END_TEST

START_TEST(random_bytes_never_decode_to_values_out_of_range)
{
    maker_t *maker = maker_new(maker_seed("random bytes"), 40);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (int round = 0; round < 20000; round++) {
        const proto_message_t *message = &messages[maker_random(maker) % count];
        encoded.body_size_bytes = 1 + maker_random(maker) % 64;
        encoded.blob_size_bytes = maker_random(maker) % 512;
        for (size_t at = 0; at < encoded.body_size_bytes; at++) {
            encoded.body[at] = (uint8_t)maker_random(maker);
        }
        encoded.body[0] = (uint8_t)((message->is_map ? 0x80u : 0x90u) | (encoded.body[0] & 15u));
        try_damaged(message, encoded.body);
    }
    free(maker);
}
END_TEST

/* The header is what is left when a body is broken. */
START_TEST(headers_survive_a_round_trip)
{
    maker_t *maker = maker_new(maker_seed("headers"), 0);
    for (int round = 0; round < 10000; round++) {
        uint8_t bytes[PROTO_HEADER_SIZE_MAX];
        proto_header_t header = {
            .version = (uint32_t)(maker_random(maker) >> (32 + maker_random(maker) % 32)),
            .kind = (proto_kind_t)(maker_random(maker) % 65536),
            .epoch = maker_random(maker) >> maker_random(maker) % 64,
            .sequence = maker_random(maker) >> maker_random(maker) % 64,
            .request = maker_random(maker) >> maker_random(maker) % 64,
            .cause = maker_random(maker) >> maker_random(maker) % 64,
        };
        proto_header_t decoded;
        size_t size_bytes = proto_header_encode(&header, bytes);
        ck_assert_uint_le(size_bytes, PROTO_HEADER_SIZE_MAX);
        proto_bytes_t whole = {bytes, size_bytes};
        ck_assert_int_eq(proto_header_decode(whole, &decoded), STATUS_OK);
        ck_assert_uint_eq(decoded.version, header.version);
        ck_assert_uint_eq(decoded.kind, header.kind);
        ck_assert_uint_eq(decoded.epoch, header.epoch);
        ck_assert_uint_eq(decoded.sequence, header.sequence);
        ck_assert_uint_eq(decoded.request, header.request);
        ck_assert_uint_eq(decoded.cause, header.cause);
        for (size_t size = 0; size < size_bytes; size++) {
            proto_bytes_t cut = {bytes, size};
            ck_assert_int_eq(proto_header_decode(cut, &decoded), STATUS_ERR_MALFORMED);
        }
    }
    free(maker);
}
END_TEST

/* A newer sender's header has fields that we do not know; a far too long one is no header. */
START_TEST(headers_of_newer_versions_decode)
{
    uint8_t bytes[256];
    proto_header_t header = {9, PROTO_KIND_PLAN, 1, 2, 3, 4};
    proto_header_t decoded;
    size_t size_bytes = proto_header_encode(&header, bytes);
    ck_assert_uint_eq(bytes[0], 0x96);
    bytes[0] = 0x98;
    bytes[size_bytes++] = 0xa1;
    bytes[size_bytes++] = 'x';
    bytes[size_bytes++] = 0xc0;
    proto_bytes_t longer = {bytes, size_bytes};
    ck_assert_int_eq(proto_header_decode(longer, &decoded), STATUS_OK);
    ck_assert_uint_eq(decoded.cause, 4);
    bytes[0] = 0x97;
    bytes[size_bytes - 3] = 0xc4;
    bytes[size_bytes - 2] = 200;
    memset(bytes + size_bytes - 1, 0, 200);
    proto_bytes_t huge = {bytes, size_bytes - 1 + 200};
    ck_assert_int_eq(proto_header_decode(huge, &decoded), STATUS_ERR_MALFORMED);
}
END_TEST

START_TEST(unknown_kinds_and_empty_bodies_are_refused)
{
    const uint8_t body[] = {0x91, 0x01};
    proto_bytes_t bytes = {body, sizeof body};
    proto_bytes_t none = {NULL, 0};
    proto_body_t decoded;
    proto_error_t error;
    ck_assert_int_eq(proto_body_decode((proto_kind_t)120, bytes, none, &decoded, &error),
                     STATUS_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.detail, "120"));
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_PLAN, none, none, &decoded, &error),
                     STATUS_ERR_MALFORMED);
}
END_TEST

/* SAMPLING travels as a column inside SUBMIT: its bytes are checked like any body. */
START_TEST(sampling_decodes_from_a_column)
{
    maker_t *maker = maker_new(maker_seed("sampling"), CONTENT_MAX);
    const proto_message_t *message = proto_message_find(PROTO_KIND_SAMPLING);
    proto_body_t body;
    maker_fill(maker, message, &body);
    maker_encode(message, &body, &encoded);
    ck_assert_uint_eq(encoded.blob_size_bytes, 0);
    proto_column_u8_t column = {encoded.body, (uint32_t)encoded.body_size_bytes};
    proto_body_t decoded;
    memset(&decoded, 0, sizeof decoded);
    ck_assert_int_eq(proto_sampling_decode(column, &decoded.sampling, NULL), STATUS_OK);
    ck_assert_ptr_null(maker_difference(message, &body, &decoded));
    column.count--;
    proto_error_t error;
    ck_assert_int_eq(proto_sampling_decode(column, &decoded.sampling, &error),
                     STATUS_ERR_MALFORMED);
    free(maker);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.codec");
    TCase *tcase = tcase_create("codec");
    tcase_set_timeout(tcase, 110);
    tcase_add_test(tcase, every_message_survives_a_round_trip);
    tcase_add_test(tcase, columns_are_aligned_and_gaps_are_zero);
    tcase_add_test(tcase, decoded_columns_are_views_into_the_blob);
    tcase_add_test(tcase, an_unaligned_blob_is_refused);
    tcase_add_test(tcase, a_message_cut_at_any_length_is_refused);
    tcase_add_test(tcase, no_flipped_byte_gives_a_value_out_of_range);
    tcase_add_test(tcase, random_bytes_never_decode_to_values_out_of_range);
    tcase_add_test(tcase, headers_survive_a_round_trip);
    tcase_add_test(tcase, headers_of_newer_versions_decode);
    tcase_add_test(tcase, unknown_kinds_and_empty_bodies_are_refused);
    tcase_add_test(tcase, sampling_decodes_from_a_column);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
