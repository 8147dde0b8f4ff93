/* One pass over the weights: y <- y - (offset + scale g), in place. A null pointer stands for no offset, or for the one
   number `rate` as every scale. With `more`, g is the sum of two gradients. Every element stands for itself, so bits
   depend on nothing but its own numbers. */

#include <stddef.h>

#define LOOPS(G)                                                                                                       \
    if (offset == NULL && scale == NULL)                                                                               \
        for (long i = 0; i < n; i++) y[i] -= rate * G;                                                                 \
    else if (scale == NULL)                                                                                            \
        for (long i = 0; i < n; i++) y[i] -= offset[i] + rate * G;                                                     \
    else if (offset == NULL)                                                                                           \
        for (long i = 0; i < n; i++) y[i] -= scale[i] * G;                                                             \
    else                                                                                                               \
        for (long i = 0; i < n; i++) y[i] -= offset[i] + scale[i] * G;

#define STEP(name, NUMBER)                                                                                             \
    void name(long n, NUMBER *restrict y, const NUMBER *restrict g, const NUMBER *restrict more,                       \
              const NUMBER *restrict offset, const NUMBER *restrict scale, NUMBER rate) {                              \
        if (more == NULL) {                                                                                            \
            LOOPS(g[i])                                                                                                \
        } else {                                                                                                       \
            LOOPS((g[i] + more[i]))                                                                                    \
        }                                                                                                              \
    }

STEP(fedgbo_step_float, float)
STEP(fedgbo_step_double, double)
