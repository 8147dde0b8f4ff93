/* Sums of vectors that lose nothing (Knuth's TwoSum, elementwise): total + rest is the sum of all vectors added so far.

   s is the rounded sum of a and b, and (a - (s - z)) + (b - z) what that rounding lost. There are no products that a
   compiler could fuse, so the bits are those of pipeline/aggregators.py. */

#define BLOCK 1024 /* numbers whose total and rest stay in the nearest cache while all vectors are added */

#define SUM(type)                                                                                                \
    void fedgbo_add_##type(long n, long count, const type *const *vectors, double *restrict total,               \
                           double *restrict rest) {                                                              \
        for (long begin = 0; begin < n; begin += BLOCK) {                                                        \
            long end = begin + BLOCK < n ? begin + BLOCK : n;                                                    \
            for (long v = 0; v < count; v++) {                                                                   \
                const type *restrict x = vectors[v];                                                             \
                for (long i = begin; i < end; i++) {                                                             \
                    double a = total[i], b = x[i], s = a + b, z = s - a;                                         \
                    rest[i] += (a - (s - z)) + (b - z);                                                          \
                    total[i] = s;                                                                                \
                }                                                                                                \
            }                                                                                                    \
        }                                                                                                        \
    }                                                                                                            \
    void fedgbo_mean_##type(long n, const double *restrict total, const double *restrict rest, double weight,    \
                            type *restrict mean) {                                                               \
        for (long i = 0; i < n; i++) mean[i] = (type)((total[i] + rest[i]) / weight);                            \
    }

SUM(float)
SUM(double)
