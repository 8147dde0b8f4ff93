/* exp, sigmoid, tanh and erf of vectors. For floats these are Cephes' polynomials, within 2 ulp or 1e-7 of libm; for
   doubles, libm's functions lane by lane. NaN stays NaN. */

#include <math.h>

#include "vectors.h"

#ifdef DOUBLE

INLINE vec exponential(vec x) {
    for (int l = 0; l < LANES; l++) x[l] = exp(x[l]);
    return x;
}

INLINE vec hyperbolic_tangent(vec x) {
    for (int l = 0; l < LANES; l++) x[l] = tanh(x[l]);
    return x;
}

INLINE vec error_function(vec x) {
    for (int l = 0; l < LANES; l++) x[l] = erf(x[l]);
    return x;
}

#else

INLINE vec exponential(vec x) {
    x = pick(x > all(88.0f), all(88.0f), x);
    x = pick(x < all(-87.0f), all(-87.0f), x);
    const vec magic = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    vec shifted = x * all(1.44269504088896341f) + magic;
    vec n = shifted - magic;
    vec r = x - n * all(0.693359375f) - n * all(-2.12194440e-4f);
    vec p = all(1.9875691500e-4f);
    p = p * r + all(1.3981999507e-3f);
    p = p * r + all(8.3334519073e-3f);
    p = p * r + all(4.1665795894e-2f);
    p = p * r + all(1.6666665459e-1f);
    p = p * r + all(5.0000001201e-1f);
    p = p * r * r + r + all(1.0f);
    ivec exponent = ((ivec)shifted - (ivec)magic) << 23;
    return (vec)((ivec)p + exponent);
}

INLINE vec hyperbolic_tangent(vec x) {
    vec large = all(1.0f) - all(2.0f) / (exponential(x + x) + all(1.0f));
    vec z = x * x; /* near 0 the formula above would cancel */
    vec p = all(-5.70498872745e-3f);
    p = p * z + all(2.06390887954e-2f);
    p = p * z + all(-5.37397155531e-2f);
    p = p * z + all(1.33314422036e-1f);
    p = p * z + all(-3.33332819422e-1f);
    return pick(z < all(0.390625f), p * z * x + x, large);
}

/* Abramowitz and Stegun, 7.1.26: within 2e-7 */
INLINE vec error_function(vec x) {
    vec size = pick(x < all(0.0f), -x, x), t = all(1.0f) / (all(1.0f) + all(0.3275911f) * size);
    vec p = all(1.061405429f);
    p = p * t + all(-1.453152027f);
    p = p * t + all(1.421413741f);
    p = p * t + all(-0.284496736f);
    p = p * t + all(0.254829592f);
    vec y = all(1.0f) - p * t * exponential(-size * size);
    return pick(x < all(0.0f), -y, y);
}

#endif

INLINE vec sigmoid(vec x) { return all(1) / (all(1) + exponential(-x)); }
