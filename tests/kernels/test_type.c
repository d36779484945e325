/* Block layouts against another implementation, half precision against the definition. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern_expect.h"
#include "kern_pack.h"
#include "kern_type.h"

static const char *
fixture_path(const char *name, char *buffer, size_t size_bytes)
{
    const char *source = getenv("ONEPATH_SOURCE");
    snprintf(buffer, size_bytes, "%s/tests/kernels/fixtures/%s", source != NULL ? source : ".",
             name);
    return buffer;
}

/* Every type reads random blocks as the gguf package does, to the bit; also after packing. */
START_TEST(rows_agree_with_the_fixture)
{
    char path[1024];
    FILE *file = fopen(fixture_path("blocks.bin", path, sizeof path), "rb");
    ck_assert_msg(file != NULL, "%s", path);
    uint32_t header[3];
    int types = 0;
    while (fread(header, sizeof header, 1, file) == 1) {
        uint32_t cols = header[1];
        expect(kern_type_known(header[0]));
        kern_type_t type = (kern_type_t)header[0];
        ck_assert_uint_eq(kern_type_row_size_bytes(type, cols), header[2]);
        uint8_t *row = malloc(header[2]);
        float *wanted = malloc(cols * sizeof(float));
        float *got = malloc(cols * sizeof(float));
        expect(row != NULL && wanted != NULL && got != NULL);
        ck_assert_uint_eq(fread(row, 1, header[2], file), header[2]);
        ck_assert_uint_eq(fread(wanted, sizeof(float), cols, file), cols);
        kern_type_row_to_float(type, row, cols, got);
        for (uint32_t i = 0; i < cols; i++) {
            expect_msg(got[i] == wanted[i], "%s[%u]: %.9g, not %.9g", kern_type_name(type), i,
                       (double)got[i], (double)wanted[i]);
        }
        uint8_t *tile = aligned_alloc(64, kern_pack_layout(type, cols).size_bytes);
        expect(tile != NULL);
        kern_pack_tile(type, row, 1, cols, tile);
        kern_pack_row_to_float(type, tile, 0, cols, got);
        for (uint32_t i = 0; i < cols; i++) {
            expect_msg(got[i] == wanted[i], "packed %s[%u]", kern_type_name(type), i);
        }
        free(tile);
        free(row);
        free(wanted);
        free(got);
        types++;
    }
    fclose(file);
    ck_assert_int_eq(types, 7);
}
END_TEST

/* MXFP4 as the gguf package reads it, to the bit: BF16 loses nothing, the smallest scale included.
 */
START_TEST(mxfp4_becomes_bf16_without_loss)
{
    char path[1024];
    FILE *file = fopen(fixture_path("mxfp4.bin", path, sizeof path), "rb");
    ck_assert_msg(file != NULL, "%s", path);
    uint32_t header[3];
    uint8_t row[8 * 17];
    float wanted[256];
    uint16_t got[256];
    ck_assert_uint_eq(fread(header, sizeof header, 1, file), 1);
    ck_assert_uint_eq(header[0], 39);
    ck_assert_uint_eq(header[1], 256);
    ck_assert_uint_eq(header[2], sizeof row);
    ck_assert_uint_eq(fread(row, 1, sizeof row, file), sizeof row);
    ck_assert_uint_eq(fread(wanted, sizeof *wanted, 256, file), 256);
    fclose(file);
    kern_mxfp4_row_to_bf16(row, 256, got);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t bits = (uint32_t)got[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        expect_msg(value == wanted[i], "[%u]: %.9g, not %.9g", i, (double)value, (double)wanted[i]);
    }
    row[17 * 3] = 255;
    kern_mxfp4_row_to_bf16(row, 256, got);
    expect((got[96] & 0x7F80u) == 0x7F80u && (got[96] & 0x7Fu) != 0);
}
END_TEST

/* Every half goes to float and back unchanged. */
START_TEST(halves_survive_the_round_trip)
{
    for (uint32_t half = 0; half < 0x10000; half++) {
        float value = kern_half_to_float((uint16_t)half);
        uint32_t exponent = (half >> 10) & 31;
        double fraction = (double)(half & 1023) / 1024.0;
        if (exponent == 31) {
            expect((half & 1023) != 0 ? isnan(value) : isinf(value));
            continue;
        }
        double wanted =
            exponent == 0 ? ldexp(fraction, -14) : ldexp(1.0 + fraction, (int)exponent - 15);
        wanted = (half & 0x8000) != 0 ? -wanted : wanted;
        expect((double)value == wanted);
        ck_assert_uint_eq(kern_float_to_half(value), half);
    }
}
END_TEST

/* Between two halves the nearer one is taken, the even one in the middle. */
START_TEST(floats_round_to_the_nearest_half)
{
    for (uint32_t half = 0; half < 0x7BFF; half++) {
        double low = (double)kern_half_to_float((uint16_t)half);
        double high = (double)kern_half_to_float((uint16_t)(half + 1));
        float middle = (float)((low + high) / 2);
        ck_assert_uint_eq(kern_float_to_half(middle), half + (half & 1));
        ck_assert_uint_eq(kern_float_to_half(nextafterf(middle, 0.0f)), half);
        ck_assert_uint_eq(kern_float_to_half(nextafterf(middle, 1e9f)), half + 1);
    }
    ck_assert_uint_eq(kern_float_to_half(65519.0f), 0x7BFF);
    ck_assert_uint_eq(kern_float_to_half(65520.0f), 0x7C00);
    ck_assert_uint_eq(kern_float_to_half(-INFINITY), 0xFC00);
}
END_TEST

/* A type or a row length from a file may be anything. */
START_TEST(unknown_types_and_odd_rows_are_refused)
{
    expect(!kern_type_known(4));
    expect(!kern_type_known(31));
    expect(!kern_type_known(UINT32_MAX));
    ck_assert_uint_eq(kern_type_row_size_bytes(KERN_TYPE_Q4_0, 33), 0);
    ck_assert_uint_eq(kern_type_row_size_bytes(KERN_TYPE_Q4_K, 128), 0);
    ck_assert_uint_eq(kern_type_row_size_bytes(KERN_TYPE_Q4_1, 64), 40);
    ck_assert_uint_eq(kern_type_row_size_bytes(KERN_TYPE_BF16, 7), 14);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.type");
    TCase *tests = tcase_create("type");
    tcase_add_test(tests, rows_agree_with_the_fixture);
    tcase_add_test(tests, mxfp4_becomes_bf16_without_loss);
    tcase_add_test(tests, halves_survive_the_round_trip);
    tcase_add_test(tests, floats_round_to_the_nearest_half);
    tcase_add_test(tests, unknown_types_and_odd_rows_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
