/* Adding a vector to a sum without losing what is rounded away: Knuth's TwoSum, elementwise.

   total + rest is the sum, exactly; t is the rounded sum of a and b, and (a - (t - z)) + (b - z) what that rounding lost.
   There are no products in it that a compiler could fuse, so the bits are those of engines/mean.py. */

#define ADD(name, type)                                                                                      \
    void name(long n, const type *restrict x, double *restrict total, double *restrict rest) {               \
        for (long i = 0; i < n; i++) {                                                                       \
            double a = total[i], b = x[i], t = a + b, z = t - a;                                             \
            rest[i] += (a - (t - z)) + (b - z);                                                              \
            total[i] = t;                                                                                    \
        }                                                                                                    \
    }

ADD(fedgbo_add_float, float)
ADD(fedgbo_add_double, double)
