/* Adding vectors to a sum without losing what is rounded away: Knuth's TwoSum, elementwise.

   total + rest is the sum, exactly; t is the rounded sum of a and b, and (a - (t - z)) + (b - z) what that rounding lost.
   There are no products in it that a compiler could fuse, so the bits are those of engines/mean.py.

   Several vectors are added in one pass. Unless the sum was `begun`, the first vector begins it; there may be no `rest`
   then. A `divisor` above 0 ends it: `total` becomes (total + rest) / divisor, and no rest is written. */

#include <stddef.h>

#define SOME 8  /* numbers of a pack, which the compiler makes of as many registers as it takes */
#define PACKS 4 /* at a time, so that none waits for another */

typedef double pack __attribute__((vector_size(8 * SOME), aligned(8), may_alias));
typedef double pack_double __attribute__((vector_size(8 * SOME), aligned(8), may_alias));
typedef float pack_float __attribute__((vector_size(4 * SOME), aligned(4), may_alias));

/* `at` numbers on, for a pack or for one number: N is how many there are, T and X their types */
#define ADD_SOME(N, T, X, LOAD)                                                                                  \
    {                                                                                                            \
        T t[N], r[N];                                                                                            \
        for (int i = 0; i < N; i++) {                                                                            \
            long here = at + i * (long)(sizeof(T) / 8);                                                          \
            t[i] = begun ? *(const T *)(total + here) : LOAD(*(const X *)(vectors[0] + here), T);                \
            r[i] = begun && rest != NULL ? *(const T *)(rest + here) : (T){0};                                   \
        }                                                                                                        \
        for (long v = begun ? 0 : 1; v < count; v++)                                                             \
            for (int i = 0; i < N; i++) {                                                                        \
                T b = LOAD(*(const X *)(vectors[v] + at + i * (long)(sizeof(T) / 8)), T);                        \
                T a = t[i], s = a + b, z = s - a;                                                                \
                r[i] += (a - (s - z)) + (b - z);                                                                 \
                t[i] = s;                                                                                        \
            }                                                                                                    \
        for (int i = 0; i < N; i++) {                                                                            \
            long here = at + i * (long)(sizeof(T) / 8);                                                          \
            if (divisor > 0)                                                                                     \
                *(T *)(total + here) = (t[i] + r[i]) / divisor;                                                  \
            else                                                                                                 \
                *(T *)(total + here) = t[i], *(T *)(rest + here) = r[i];                                         \
        }                                                                                                        \
    }
#define CONVERTED(x, T) __builtin_convertvector(x, T)
#define CAST(x, T) ((T)(x))

#define ADD(type)                                                                                                \
    void fedgbo_add_##type(long n, long count, const type *const *vectors, double *total, double *rest,          \
                           long begun, double divisor) {                                                         \
        long at = 0;                                                                                             \
        for (; at + PACKS * SOME <= n; at += PACKS * SOME) ADD_SOME(PACKS, pack, pack_##type, CONVERTED)         \
        for (; at < n; at++) ADD_SOME(1, double, type, CAST)                                                     \
    }

ADD(float)
ADD(double)
