#include "file_dtype.h"

#include "proto_require.h"

typedef struct {
    const char *name;
    uint32_t block_length;
    uint32_t block_size_bytes;
    uint32_t gguf_number;
} dtype_info_t;

static const dtype_info_t DTYPES[FILE_DTYPE_COUNT] = {
    [FILE_DTYPE_F32] = {"F32", 1, 4, 0},        [FILE_DTYPE_F16] = {"F16", 1, 2, 1},
    [FILE_DTYPE_BF16] = {"BF16", 1, 2, 30},     [FILE_DTYPE_Q8_0] = {"Q8_0", 32, 34, 8},
    [FILE_DTYPE_Q4_0] = {"Q4_0", 32, 18, 2},    [FILE_DTYPE_Q4_1] = {"Q4_1", 32, 20, 3},
    [FILE_DTYPE_Q5_0] = {"Q5_0", 32, 22, 6},    [FILE_DTYPE_Q4_K] = {"Q4_K", 256, 144, 12},
    [FILE_DTYPE_Q5_K] = {"Q5_K", 256, 176, 13}, [FILE_DTYPE_Q6_K] = {"Q6_K", 256, 210, 14},
    [FILE_DTYPE_MXFP4] = {"MXFP4", 32, 17, 39},
};

const char *
file_dtype_name(file_dtype_t dtype)
{
    return (unsigned)dtype < FILE_DTYPE_COUNT ? DTYPES[dtype].name : "?";
}

uint32_t
file_dtype_block_length(file_dtype_t dtype)
{
    require((unsigned)dtype < FILE_DTYPE_COUNT);
    return DTYPES[dtype].block_length;
}

uint64_t
file_dtype_row_size_bytes(file_dtype_t dtype, uint32_t cols)
{
    require((unsigned)dtype < FILE_DTYPE_COUNT);
    require(cols % DTYPES[dtype].block_length == 0);
    return (uint64_t)(cols / DTYPES[dtype].block_length) * DTYPES[dtype].block_size_bytes;
}

bool
file_dtype_from_gguf(uint32_t number, file_dtype_t *out)
{
    for (uint32_t i = 0; i < FILE_DTYPE_COUNT; i++) {
        if (DTYPES[i].gguf_number == number) {
            *out = (file_dtype_t)i;
            return true;
        }
    }
    return false;
}

const char *
file_dtype_gguf_name(uint32_t number)
{
    file_dtype_t dtype;
    if (file_dtype_from_gguf(number, &dtype)) {
        return DTYPES[dtype].name;
    }
    switch (number) {
    case 7:
        return "Q5_1";
    case 9:
        return "Q8_1";
    case 10:
        return "Q2_K";
    case 11:
        return "Q3_K";
    case 15:
        return "Q8_K";
    case 24:
        return "I8";
    case 25:
        return "I16";
    case 26:
        return "I32";
    case 27:
        return "I64";
    case 28:
        return "F64";
    default:
        return (number >= 16 && number <= 23) || number == 29 ? "an IQ type" : "not a known type";
    }
}

const char *
file_dtype_list(void)
{
    return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K, Q6_K, MXFP4";
}
