/* Vectors of numbers, as wide as the processor has them: the portable ones of GCC and Clang, which become AVX-512, AVX2
   or NEON. ROWS x (2 or 3) of them fit the registers as sums of an inner loop. A file that defines DOUBLE gets vectors of
   doubles, all others those of floats. */

#pragma once

#include <stdint.h>

#if defined(__AVX512F__)
#define BYTES 64
#define ROWS 8
#elif defined(__AVX__)
#define BYTES 32
#define ROWS 4
#else
#define BYTES 16
#define ROWS 4
#endif

#ifdef DOUBLE
#define KIND double
typedef int64_t whole;
#else
#define KIND float
typedef int32_t whole;
#endif

typedef KIND real;
#define LANES ((int)(BYTES / sizeof(real)))
typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef whole ivec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef real vec32 __attribute__((vector_size(32), aligned(sizeof(real)), may_alias));
#define INLINE static inline __attribute__((always_inline))

#define PASTE(a, b, c) a##b##c
#define PASTED(a, b, c) PASTE(a, b, c)
#define OF_KIND(before, after) PASTED(before, KIND, after) /* OF_KIND(fedgbo_step_, ) is fedgbo_step_float */

INLINE vec load(const real *from) { return *(const vec *)from; }
INLINE void store(real *to, vec x) { *(vec *)to = x; }
INLINE vec all(real x) { return x - (vec){0}; }
INLINE real total(vec x) { /* in halves, which do not wait for each other */
    real part[LANES];
    int lanes = LANES;
    store(part, x);
#if BYTES == 64 /* GCC 12 makes of the loops a tenth slower code */
    lanes = LANES / 2;
    *(vec32 *)part += *(vec32 *)(part + lanes);
#endif
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) part[l] += part[l + half];
    return part[0];
}
INLINE vec pick(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }
