/* Sums of vectors that lose nothing (Knuth's TwoSum, elementwise): total + rest is the sum of all vectors added so far.

   s is the rounded sum of a and b, and (a - (s - z)) + (b - z) what that rounding lost. There are no products that a
   compiler could fuse, so the bits are those of pipeline/aggregators.py. */

#include "vectors.h"

#define GROUP ((int)(BYTES / sizeof(double))) /* numbers whose total and rest stay in registers */
#define GROUP_OF(type) type __attribute__((vector_size(GROUP * sizeof(type)), aligned(sizeof(type)), may_alias))
typedef GROUP_OF(float) group_of_float;
typedef GROUP_OF(double) group_of_double;

#define ADD(number, a, b, r)                                                                                     \
    do {                                                                                                         \
        number s = (a) + (b), z = s - (a);                                                                       \
        (r) += ((a) - (s - z)) + ((b) - z);                                                                      \
        (a) = s;                                                                                                 \
    } while (0)

#define SUM(type)                                                                                                \
    void fedgbo_add_##type(long n, long count, const type *const *vectors, double *restrict total,               \
                           double *restrict rest) {                                                              \
        long i = 0;                                                                                              \
        for (; i + GROUP <= n; i += GROUP) {                                                                     \
            group_of_double a = *(group_of_double *)(total + i), r = *(group_of_double *)(rest + i);             \
            for (long v = 0; v < count; v++) {                                                                   \
                const group_of_##type *x = (const group_of_##type *)(vectors[v] + i);                            \
                group_of_double b = __builtin_convertvector(*x, group_of_double);                                \
                ADD(group_of_double, a, b, r);                                                                   \
            }                                                                                                    \
            *(group_of_double *)(total + i) = a, *(group_of_double *)(rest + i) = r;                             \
        }                                                                                                        \
        for (; i < n; i++)                                                                                       \
            for (long v = 0; v < count; v++) ADD(double, total[i], (double)vectors[v][i], rest[i]);              \
    }                                                                                                            \
    void fedgbo_mean_##type(long n, const double *restrict total, const double *restrict rest, double weight,    \
                            type *restrict mean) {                                                               \
        for (long i = 0; i < n; i++) mean[i] = (type)((total[i] + rest[i]) / weight);                            \
    }

SUM(float)
SUM(double)
