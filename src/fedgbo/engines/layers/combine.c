/* Vectors that are sums of multiples of others, in one pass: out[o] = the sum over i of factors[o][i] in[i], in float64,
   rounded once to the type of the model. `vectors` has the `ins` that go in, of which the first `own` have that type and
   the others are float64, then the `outs` that come out. Returns whether all numbers that come out are finite. */

#include <stdint.h>
#include <string.h>

#define SOME 256 /* numbers at a time, whose sums stay in the nearest cache */

#define ADD(vector)                                                        \
    if (begun)                                                             \
        for (long j = 0; j < here; j++) sums[j] += factor * (vector)[j];   \
    else                                                                   \
        for (long j = 0; j < here; j++) sums[j] = factor * (vector)[j];

#define COMBINE(type, bits, exponent)                                                                            \
    long fedgbo_combine_##type(long n, long outs, long own, long ins, const double *factors,                     \
                               void *const *vectors) {                                                           \
        bits bad = 0;                                                                                            \
        for (long at = 0; at < n; at += SOME)                                                                    \
            for (long o = 0; o < outs; o++) {                                                                    \
                double sums[SOME];                                                                               \
                long here = n - at < SOME ? n - at : SOME, begun = 0;                                            \
                for (long i = 0; i < ins; i++) {                                                                 \
                    double factor = factors[o * ins + i];                                                        \
                    if (factor == 0.0) continue;                                                                 \
                    if (i < own) {                                                                               \
                        ADD((const type *)vectors[i] + at)                                                       \
                    } else {                                                                                     \
                        ADD((const double *)vectors[i] + at)                                                     \
                    }                                                                                            \
                    begun = 1;                                                                                   \
                }                                                                                                \
                if (!begun) memset(sums, 0, sizeof sums);                                                        \
                type *to = (type *)vectors[ins + o] + at;                                                        \
                for (long j = 0; j < here; j++) {                                                                \
                    type number = (type)sums[j];                                                                 \
                    bits inside;                                                                                 \
                    memcpy(&inside, &number, sizeof number);                                                     \
                    bad |= (inside & exponent) == exponent;                                                      \
                    to[j] = number;                                                                              \
                }                                                                                                \
            }                                                                                                    \
        return !bad;                                                                                             \
    }

COMBINE(float, uint32_t, 0x7f800000u)
COMBINE(double, uint64_t, 0x7ff0000000000000u)
