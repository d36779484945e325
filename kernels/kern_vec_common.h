/* kern_vec_common.h - inside kernels/: what is built from the lanes alone, included at the end of
 * each kern_vec_*.h. */
#ifndef KERN_VEC_COMMON_H
#define KERN_VEC_COMMON_H

KV_INLINE kv_t
kv_zero(void)
{
    return kv_set1(0.0f);
}

/* e^a to about 1 ulp; 0 below -87.3, infinite values do not occur above 88.7. */
KV_INLINE kv_t
kv_exp(kv_t a)
{
    kv_t low = kv_set1(-87.3f);
    kv_t x = kv_min(kv_set1(88.3f), kv_max(low, a)); /* this order keeps NaN */
    kv_t n = kv_round(kv_mul(x, kv_set1(1.44269504f)));
    kv_t r = kv_fma(n, kv_set1(-0.693359375f), x);
    r = kv_fma(n, kv_set1(2.12194440e-4f), r);
    kv_t p = kv_set1(1.9875691500e-4f);
    p = kv_fma(p, r, kv_set1(1.3981999507e-3f));
    p = kv_fma(p, r, kv_set1(8.3334519073e-3f));
    p = kv_fma(p, r, kv_set1(4.1665795894e-2f));
    p = kv_fma(p, r, kv_set1(1.6666665459e-1f));
    p = kv_fma(p, r, kv_set1(5.0000001201e-1f));
    p = kv_fma(p, kv_mul(r, r), kv_add(r, kv_set1(1.0f)));
    return kv_zero_below(kv_scale2(p, n), a, low);
}

/* a / (1 + e^-a) */
KV_INLINE kv_t
kv_silu(kv_t a)
{
    kv_t e = kv_exp(kv_sub(kv_zero(), a));
    return kv_div(a, kv_add(kv_set1(1.0f), e));
}

/* a/2 (1 + tanh(u)) with u = sqrt(2/pi) (a + 0.044715 a^3): GELU in its tanh form (Hendrycks and
 * Gimpel, 2016), written as a / (1 + e^-2u). */
KV_INLINE kv_t
kv_gelu_tanh(kv_t a)
{
    kv_t cubic = kv_mul(kv_mul(a, a), kv_mul(a, kv_set1(0.044715f)));
    kv_t twice = kv_mul(kv_add(a, cubic), kv_set1(1.5957691216f));
    kv_t e = kv_exp(kv_sub(kv_zero(), twice));
    return kv_div(a, kv_add(kv_set1(1.0f), e));
}

/* tanh to a few ulp */
KV_INLINE kv_t
kv_tanh(kv_t a)
{
    kv_t bounded = kv_min(kv_set1(20.0f), kv_max(kv_set1(-20.0f), a));
    kv_t e = kv_exp(kv_add(bounded, bounded));
    kv_t one = kv_set1(1.0f);
    return kv_div(kv_sub(e, one), kv_add(e, one));
}

#endif
