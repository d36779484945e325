/* Version N talks to N-1: golden bytes of released versions, shorter and longer arrays, maps with
 * other keys.  A field put in the middle of a list shifts all later ones: these tests see it. */
#include <check.h>
#include <dirent.h>
#include <jansson.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message_maker.h"

static encoded_t encoded;
static msgpack_sbuffer buffer;
static msgpack_packer packer;
static msgpack_unpacked unpacked;

static void
set_up(void)
{
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    msgpack_unpacked_init(&unpacked);
}

static void
tear_down(void)
{
    msgpack_unpacked_destroy(&unpacked);
    msgpack_sbuffer_destroy(&buffer);
}

static proto_bytes_t
packed(void)
{
    return (proto_bytes_t){(const uint8_t *)buffer.data, buffer.size};
}

static proto_bytes_t
blob_of(const encoded_t *message)
{
    return (proto_bytes_t){message->blob, message->blob_size_bytes};
}

/* ---- golden bytes --------------------------------------------------------------------------- */

static size_t
read_hex(const char *text, uint8_t *out, size_t capacity_bytes)
{
    size_t size_bytes = 0;
    unsigned byte;
    while (sscanf(text + 2 * size_bytes, "%2x", &byte) == 1) {
        ck_assert_uint_lt(size_bytes, capacity_bytes);
        out[size_bytes++] = (uint8_t)byte;
    }
    return size_bytes;
}

static void
compare_json(const char *name, const char *stored_text, const char *now_text)
{
    json_error_t error;
    size_t flags = JSON_DECODE_INT_AS_REAL;
    json_t *stored = json_loads(stored_text, flags, &error);
    json_t *now = json_loads(now_text, flags, &error);
    ck_assert_ptr_nonnull(stored);
    ck_assert_ptr_nonnull(now);
    const char *key;
    json_t *value;
    json_object_foreach(stored, key, value)
    {
        /* Fields that came later may be added; what was there keeps its meaning. */
        ck_assert_msg(json_equal(value, json_object_get(now, key)), "%s.%s changed: %s", name, key,
                      now_text);
    }
    json_decref(stored);
    json_decref(now);
}

static void
check_golden(const proto_message_t *message, const char *json)
{
    static char now[1 << 16];
    proto_body_t body;
    proto_error_t error = {""};
    proto_bytes_t bytes = {encoded.body, encoded.body_size_bytes};
    proto_status_t status =
        proto_body_decode(message->kind, bytes, blob_of(&encoded), &body, &error);
    ck_assert_msg(status == STATUS_OK, "%s: %s", message->name, error.detail);
    ck_assert_uint_lt(proto_body_to_json(message->kind, &body, true, 1000, now, sizeof now),
                      sizeof now);
    compare_json(message->name, json, now);

    /* As long as no field came, the encoder gives the very same bytes. */
    ck_assert_int_eq(msgpack_unpack_next(&unpacked, (const char *)bytes.data, bytes.size_bytes,
                                         NULL),
                     MSGPACK_UNPACK_SUCCESS);
    uint32_t stored_count =
        message->is_map ? unpacked.data.via.map.size : unpacked.data.via.array.size;
    ck_assert_uint_le(stored_count, message->field_count);
    if (stored_count == message->field_count) {
        static encoded_t again;
        maker_encode(message, &body, &again);
        ck_assert_uint_eq(again.body_size_bytes, encoded.body_size_bytes);
        ck_assert_mem_eq(again.body, encoded.body, encoded.body_size_bytes);
        ck_assert_uint_eq(again.blob_size_bytes, encoded.blob_size_bytes);
        ck_assert_mem_eq(again.blob, encoded.blob, encoded.blob_size_bytes);
    }
}

static void
check_golden_file(const char *path, bool *seen, uint32_t seen_count)
{
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s", path);
    static char line[1 << 17];
    const proto_message_t *message = NULL;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        unsigned number;
        char name[64];
        if (sscanf(line, "message %63s %u", name, &number) == 2) {
            message = proto_message_find((proto_kind_t)number);
            ck_assert_msg(message != NULL, "%s is gone", name);
            ck_assert_str_eq(message->name, name);
            ck_assert_uint_lt(number, seen_count);
            seen[number] = true;
        } else if (strncmp(line, "body ", 5) == 0) {
            encoded.body_size_bytes = read_hex(line + 5, encoded.body, sizeof encoded.body);
        } else if (strncmp(line, "blob ", 5) == 0) {
            encoded.blob_size_bytes = read_hex(line + 5, encoded.blob, sizeof encoded.blob);
        } else if (strncmp(line, "json ", 5) == 0) {
            check_golden(message, line + 5);
        } else {
            ck_assert_int_eq(line[0], '#');
        }
    }
    (void)fclose(file);
}

START_TEST(golden_bytes_of_every_version_still_decode)
{
    const char *source = getenv("ONEPATH_SOURCE");
    char directory[1024];
    char path[2048];
    bool seen[128] = {false};
    int files = 0;
    (void)snprintf(directory, sizeof directory, "%s/tests/proto/golden",
                   source != NULL ? source : ".");
    DIR *listing = opendir(directory);
    ck_assert_msg(listing != NULL, "%s", directory);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] != '.') {
            (void)snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
            check_golden_file(path, seen, 128);
            files++;
        }
    }
    (void)closedir(listing);
    ck_assert_int_gt(files, 0);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        ck_assert_msg(seen[messages[index].kind], "%s has no golden bytes: tests/proto/golden.c",
                      messages[index].name);
    }
}
END_TEST

/* ---- arrays --------------------------------------------------------------------------------- */

/* Zero for the fields from `count` on: what an older sender did not know. */
static void
clear_from(const proto_message_t *message, uint32_t count, proto_body_t *body)
{
    if (count < message->field_count) {
        size_t begin = message->fields[count].offset_bytes;
        memset((uint8_t *)body + begin, 0, message->struct_size_bytes - begin);
    }
}

START_TEST(shorter_arrays_of_older_senders_decode)
{
    maker_t *maker = maker_new(maker_seed("shorter"), 50);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        const proto_message_t *message = &messages[index];
        if (message->is_map) {
            continue;
        }
        proto_body_t body;
        maker_fill(maker, message, &body);
        maker_encode(message, &body, &encoded);
        ck_assert_int_eq(msgpack_unpack_next(&unpacked, (const char *)encoded.body,
                                             encoded.body_size_bytes, NULL),
                         MSGPACK_UNPACK_SUCCESS);
        ck_assert_int_eq(unpacked.data.type, MSGPACK_OBJECT_ARRAY);
        ck_assert_uint_eq(unpacked.data.via.array.size, message->field_count);
        for (uint32_t kept = message->field_count + 1; kept-- > 0;) {
            msgpack_sbuffer_clear(&buffer);
            msgpack_pack_array(&packer, kept);
            for (uint32_t at = 0; at < kept; at++) {
                msgpack_pack_object(&packer, unpacked.data.via.array.ptr[at]);
            }
            proto_body_t decoded;
            proto_error_t error = {""};
            clear_from(message, kept, &body);
            ck_assert_msg(proto_body_decode(message->kind, packed(), blob_of(&encoded), &decoded,
                                            &error) == STATUS_OK,
                          "%s with %u fields: %s", message->name, kept, error.detail);
            const char *field = maker_difference(message, &body, &decoded);
            ck_assert_msg(field == NULL, "%s.%s with %u fields", message->name, field, kept);
        }
    }
    free(maker);
}
END_TEST

START_TEST(longer_arrays_of_newer_senders_decode)
{
    maker_t *maker = maker_new(maker_seed("longer"), 50);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        const proto_message_t *message = &messages[index];
        if (message->is_map) {
            continue;
        }
        proto_body_t body;
        proto_body_t decoded;
        maker_fill(maker, message, &body);
        maker_encode(message, &body, &encoded);
        ck_assert_int_eq(msgpack_unpack_next(&unpacked, (const char *)encoded.body,
                                             encoded.body_size_bytes, NULL),
                         MSGPACK_UNPACK_SUCCESS);
        msgpack_sbuffer_clear(&buffer);
        msgpack_pack_array(&packer, message->field_count + 3);
        for (uint32_t at = 0; at < message->field_count; at++) {
            msgpack_pack_object(&packer, unpacked.data.via.array.ptr[at]);
        }
        msgpack_pack_array(&packer, 2); /* a new column, behind all that we know */
        msgpack_pack_uint64(&packer, 1 << 19);
        msgpack_pack_uint64(&packer, 7);
        msgpack_pack_map(&packer, 1);
        msgpack_pack_str(&packer, 1);
        msgpack_pack_str_body(&packer, "k", 1);
        msgpack_pack_nil(&packer);
        msgpack_pack_double(&packer, 0.5);
        proto_bytes_t blob = {encoded.blob, (1 << 19) + 28};
        ck_assert_int_eq(proto_body_decode(message->kind, packed(), blob, &decoded, NULL),
                         STATUS_OK);
        ck_assert_ptr_null(maker_difference(message, &body, &decoded));
    }
    free(maker);
}
END_TEST

START_TEST(a_body_of_the_other_form_is_refused)
{
    proto_body_t body;
    proto_error_t error;
    msgpack_pack_map(&packer, 0);
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_PLAN, packed(), (proto_bytes_t){NULL, 0}, &body,
                                       &error),
                     STATUS_ERR_MALFORMED);
    msgpack_sbuffer_clear(&buffer);
    msgpack_pack_array(&packer, 0);
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_HELLO, packed(), (proto_bytes_t){NULL, 0}, &body,
                                       &error),
                     STATUS_ERR_MALFORMED);
}
END_TEST

/* ---- maps ----------------------------------------------------------------------------------- */

static void
pack_text(const char *text)
{
    msgpack_pack_str(&packer, strlen(text));
    msgpack_pack_str_body(&packer, text, strlen(text));
}

/* Handshakes come before a version is agreed on: other keys, another order and missing keys are
 * all right, the same key twice is not. */
START_TEST(handshake_maps_skip_unknown_keys)
{
    msgpack_pack_map(&packer, 6);
    pack_text("capabilities");
    msgpack_pack_array(&packer, 2);
    pack_text("x");
    msgpack_pack_map(&packer, 1);
    pack_text("name"); /* a known key, but within an unknown value */
    pack_text("inner");
    pack_text("epoch");
    msgpack_pack_uint64(&packer, 77);
    pack_text("version_min");
    msgpack_pack_uint64(&packer, 1);
    pack_text("nam");
    msgpack_pack_nil(&packer);
    pack_text("name");
    pack_text("gateway");
    pack_text("names");
    msgpack_pack_bin(&packer, 3);
    msgpack_pack_bin_body(&packer, "abc", 3);
    proto_body_t body;
    proto_bytes_t none = {NULL, 0};
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_HELLO, packed(), none, &body, NULL), STATUS_OK);
    ck_assert_uint_eq(body.hello.epoch, 77);
    ck_assert_uint_eq(body.hello.version_min, 1);
    ck_assert_uint_eq(body.hello.version_max, 0);
    ck_assert_uint_eq(body.hello.name.size_bytes, 7);
    ck_assert_mem_eq(body.hello.name.data, "gateway", 7);
    ck_assert_uint_eq(body.hello.fingerprint.size_bytes, 0);
}
END_TEST

START_TEST(handshake_maps_refuse_a_key_twice)
{
    msgpack_pack_map(&packer, 2);
    pack_text("epoch");
    msgpack_pack_uint64(&packer, 1);
    pack_text("epoch");
    msgpack_pack_uint64(&packer, 2);
    proto_body_t body;
    proto_error_t error;
    proto_bytes_t none = {NULL, 0};
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_HELLO, packed(), none, &body, &error),
                     STATUS_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(error.detail, "twice"));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.versions");
    TCase *tcase = tcase_create("versions");
    tcase_set_timeout(tcase, 50);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, golden_bytes_of_every_version_still_decode);
    tcase_add_test(tcase, shorter_arrays_of_older_senders_decode);
    tcase_add_test(tcase, longer_arrays_of_newer_senders_decode);
    tcase_add_test(tcase, a_body_of_the_other_form_is_refused);
    tcase_add_test(tcase, handshake_maps_skip_unknown_keys);
    tcase_add_test(tcase, handshake_maps_refuse_a_key_twice);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
