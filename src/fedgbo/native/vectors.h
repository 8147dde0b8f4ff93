/* Vectors of floats, as wide as the processor has them: the portable ones of GCC and Clang, which become AVX-512, AVX2
   or NEON. ROWS x (2 or 3) of them fit the registers as sums of an inner loop. */

#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 8
#elif defined(__AVX__)
#define LANES 8
#define ROWS 4
#else
#define LANES 4
#define ROWS 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec x) { *(vec *)to = x; }
INLINE vec all(float x) { return x - (vec){0}; }
