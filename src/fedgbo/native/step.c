/* One pass over the weights: y <- y - (offset + scale g), in place. A null pointer stands for no offset, or for the one
   number `rate` as every scale. Every element stands for itself, so bits depend on nothing but its own numbers. */

#include <stddef.h>

#define STEP(name, NUMBER)                                                                                             \
    void name(long n, NUMBER *restrict y, const NUMBER *restrict g, const NUMBER *restrict offset,                     \
              const NUMBER *restrict scale, NUMBER rate) {                                                             \
        if (offset == NULL && scale == NULL)                                                                           \
            for (long i = 0; i < n; i++) y[i] -= rate * g[i];                                                          \
        else if (scale == NULL)                                                                                        \
            for (long i = 0; i < n; i++) y[i] -= offset[i] + rate * g[i];                                              \
        else if (offset == NULL)                                                                                       \
            for (long i = 0; i < n; i++) y[i] -= scale[i] * g[i];                                                      \
        else                                                                                                           \
            for (long i = 0; i < n; i++) y[i] -= offset[i] + scale[i] * g[i];                                          \
    }

STEP(fedgbo_step_float, float)
STEP(fedgbo_step_double, double)
