/* kern_elementwise.h - small operations on float rows and bytes. */
#ifndef KERN_ELEMENTWISE_H
#define KERN_ELEMENTWISE_H

#include <stddef.h>
#include <stdint.h>

#include "kern_form.h"
#include "kern_share.h"

/* output = silu(gate) * up; output may be gate or up. */
typedef struct {
    const float *gate; /* [rows][gate_stride] */
    size_t gate_stride;
    const float *up; /* [rows][up_stride] */
    size_t up_stride;
    float *output; /* [rows][output_stride] */
    size_t output_stride;
    uint32_t rows;
    uint32_t cols;
} kern_silu_mul_args_t;

void kern_silu_mul_host(const void *args, kern_share_t *share);

/* output = x * sigmoid(gate), head by head, e.g. for gates that lie between the query heads. */
typedef struct {
    const float *input; /* [rows][input_stride]: heads one after the other */
    size_t input_stride;
    const float *gate; /* [rows][gate_stride]: head h at h * gate_head_stride */
    size_t gate_stride;
    size_t gate_head_stride;
    float *output; /* [rows][output_stride]: heads one after the other; may be the input */
    size_t output_stride;
    kern_form_t output_form; /* OPERAND: output_stride is not used, and output is not the input */
    uint32_t rows;
    uint32_t heads;
    uint32_t head_dim;
} kern_sigmoid_mul_args_t;

void kern_sigmoid_mul_host(const void *args, kern_share_t *share);

/* output[r][h] = input[r][h], head_dim floats each: takes heads out of a row where something else
 * lies between them. */
typedef struct {
    const float *input; /* [rows][input_stride]: head h at h * input_head_stride */
    size_t input_stride;
    size_t input_head_stride;
    float *output; /* [rows][output_stride]: head h at h * output_head_stride; no overlap */
    size_t output_stride;
    size_t output_head_stride;
    uint32_t rows;
    uint32_t heads;
    uint32_t head_dim;
} kern_heads_copy_args_t;

void kern_heads_copy_host(const void *args, kern_share_t *share);

/* output = a + b; output may be a or b. */
typedef struct {
    const float *a; /* [rows][a_stride] */
    size_t a_stride;
    const float *b; /* [rows][b_stride] */
    size_t b_stride;
    float *output; /* [rows][output_stride] */
    size_t output_stride;
    uint32_t rows;
    uint32_t cols;
} kern_add_args_t;

void kern_add_host(const void *args, kern_share_t *share);

/* output[i] = input[indices[i]]; an index outside 0..input_rows-1 gives zeros. */
typedef struct {
    const float *input; /* [input_rows][input_stride] */
    size_t input_stride;
    uint32_t input_rows;
    const int32_t *indices; /* [rows], read at execution */
    float *output;          /* [rows][output_stride]; no overlap with input */
    size_t output_stride;
    uint32_t rows;
    uint32_t cols;
    kern_form_t form; /* of input and output; OPERAND: the strides are not used */
} kern_gather_rows_args_t;

void kern_gather_rows_host(const void *args, kern_share_t *share);

/* Copies bytes; no overlap. */
typedef struct {
    const void *from;
    void *to;
    size_t size_bytes;
} kern_copy_args_t;

void kern_copy_host(const void *args, kern_share_t *share);

/* Sets bytes. */
typedef struct {
    void *to;
    size_t size_bytes;
    uint8_t value;
} kern_fill_args_t;

void kern_fill_host(const void *args, kern_share_t *share);

#endif
