/* Adding vectors to a sum without losing what is rounded away: Knuth's TwoSum, elementwise.

   total + rest is the sum, exactly; t is the rounded sum of a and b, and (a - (t - z)) + (b - z) what that rounding lost.
   There are no products in it that a compiler could fuse, so the bits are those of engines/mean.py.

   Several vectors are added in one pass. Without `rest` there is no sum yet, and the first vector begins it. A `divisor`
   above 0 ends it: `total` becomes (total + rest) / divisor, and no rest is written. */

#include <stddef.h>

#define BLOCK 128

#define ADD(name, type)                                                                                          \
    void name(long n, long count, const type *const *restrict vectors, double *restrict total,                   \
              double *restrict rest, long begun, double divisor) {                                               \
        double t[BLOCK], r[BLOCK];                                                                               \
        for (long from = 0; from < n; from += BLOCK) {                                                           \
            long size = n - from < BLOCK ? n - from : BLOCK;                                                     \
            for (long i = 0; i < size; i++) {                                                                    \
                t[i] = begun ? total[from + i] : vectors[0][from + i];                                           \
                r[i] = begun && rest != NULL ? rest[from + i] : 0.0;                                             \
            }                                                                                                    \
            for (long v = begun ? 0 : 1; v < count; v++) {                                                       \
                const type *restrict x = vectors[v] + from;                                                      \
                for (long i = 0; i < size; i++) {                                                                \
                    double a = t[i], b = x[i], s = a + b, z = s - a;                                             \
                    r[i] += (a - (s - z)) + (b - z);                                                             \
                    t[i] = s;                                                                                    \
                }                                                                                                \
            }                                                                                                    \
            if (divisor > 0)                                                                                     \
                for (long i = 0; i < size; i++) total[from + i] = (t[i] + r[i]) / divisor;                       \
            else                                                                                                 \
                for (long i = 0; i < size; i++) total[from + i] = t[i], rest[from + i] = r[i];                   \
        }                                                                                                        \
    }

ADD(fedgbo_add_float, float)
ADD(fedgbo_add_double, double)
