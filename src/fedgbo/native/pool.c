/* 2x2 max-pooling, with or without ReLU, on channels-last images (B, H, W, C) in one pass over the values.

   `choice` (B, H/2, W/2, C) keeps which of the four values won, so that the way back writes every gradient once
   instead of zeroing and scattering. As in torch the first maximum wins and NaN wins over all; a last odd row or
   column is left out. The loops are compiled twice, for float and for double. */

#include <stdint.h>
#include <string.h>

#define BLOCK 16 /* channels at once */
#define DEAD 4   /* the choice where ReLU cut the maximum off: no gradient */
#define INLINE static inline __attribute__((always_inline))
#define JOIN(a, b) a##b
#define CALLED(prefix, name) JOIN(prefix, name)

typedef uint8_t bytes __attribute__((vector_size(BLOCK)));

#define NUMBER float
#define INTEGER int32_t
#define NAME(name) CALLED(fedgbo_pool_float_, name)
#include "pool_loops.h"
#undef NUMBER
#undef INTEGER
#undef NAME

#define NUMBER double
#define INTEGER int64_t
#define NAME(name) CALLED(fedgbo_pool_double_, name)
#include "pool_loops.h"
