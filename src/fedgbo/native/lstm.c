/* LSTM over time in float32 on one core: the product of a time step, then its gates. H fills whole vectors.

   z = (x, h, 1) is what goes into a time step, K = I + H + 1 numbers, and weight (4H, K) holds the input weights, the
   recurrent weights and the biases of i, f, g, o. With s = weight z in four parts,
       i, f, o = sigmoid(s), g = tanh(s), c' = f c + i g, h' = o tanh(c')
   z (T + 1, B, K): given but for h after the first time step, which is written; its last x is not used
   gates (T, B, 4H): i, f, g, o, written;  cells (T + 1, B, H): the first is given, the rest is written
   room holds the weight in panels of WIDE columns, in the order in which a product reads them */

#include <string.h>

#include "functions.h"
#include "product.h"

void fedgbo_lstm_forward(int T, int B, int I, int H, const float *weight, float *room, float *z, float *cells,
                         float *gates) {
    const int K = I + H + 1;
    for (int n = 0; n < 4 * H; n += WIDE)
        for (int k = 0; k < K; k++)
            for (int l = 0; l < WIDE; l++) room[((long)n * K) + k * WIDE + l] = weight[(long)(n + l) * K + k];
    for (int t = 0; t < T; t++) {
        float *into = z + (long)t * B * K, *gate = gates + (long)t * B * 4 * H, *cell = cells + (long)t * B * H;
        for (int n = 0; n < 4 * H; n += WIDE) {
            job j = {.a = into, .row = K, .step = 1, .b = room + (long)n * K, .b_step = WIDE, .outer = 1, .inner = K,
                     .start = NULL, .out = gate + n, .out_row = 4 * H};
            product(B, WIDE, j);
        }
        for (int b = 0; b < B; b++, gate += 4 * H, cell += H) {
            float *h = into + (long)(B + b) * K + I;
            for (int j = 0; j < H; j += LANES) {
                vec i = sigmoid(load(gate + j)), f = sigmoid(load(gate + H + j));
                vec g = hyperbolic_tangent(load(gate + 2 * H + j)), o = sigmoid(load(gate + 3 * H + j));
                vec c = f * load(cell + j) + i * g;
                store(gate + j, i);
                store(gate + H + j, f);
                store(gate + 2 * H + j, g);
                store(gate + 3 * H + j, o);
                store(cell + (long)B * H + j, c);
                store(h + j, o * hyperbolic_tangent(c));
            }
        }
    }
}

/* grad (T, B, H): the gradient of all hidden states, at grad + t * grad_t + b * grad_b
   dz (T + 1, B, columns): the gradients of x and h, written but for the last, which is given; columns are skipped + H,
      rounded up to whole vectors. `skipped`, the columns of x, is I, or 0 where the gradient of x is not wanted.
   dc (B, H): the gradient of the last cell on entry, of the first one on return
   delta (T, B, 4H): the gradients of s, written;  gates (T, B, 4H) and cells (T + 1, B, H): as `forward` wrote them */
void fedgbo_lstm_backward(int T, int B, int I, int H, int skipped, const float *weight, float *room, const float *cells,
                          const float *gates, const float *grad, long grad_t, long grad_b, float *delta, float *dz,
                          float *dc) {
    const int K = I + H + 1, used = skipped + H, columns = (used + LANES - 1) / LANES * LANES;
    for (int n = 0; n < columns; n += WIDE)
        for (int k = 0; k < 4 * H; k++) {
            float *to = room + (long)n * 4 * H + k * WIDE;
            int there = used - n < WIDE ? used - n : WIDE;
            memset(to, 0, WIDE * sizeof(float));
            memcpy(to, weight + (long)k * K + I - skipped + n, there * sizeof(float));
        }
    vec one = all(1.0f);
    for (int t = T - 1; t >= 0; t--) {
        float *deltas = delta + (long)t * B * 4 * H, *out = dz + (long)t * B * columns;
        for (int b = 0; b < B; b++) {
            long row = (long)t * B + b;
            const float *gate = gates + row * 4 * H, *before = cells + row * H, *after = before + (long)B * H;
            const float *above = grad + t * grad_t + b * grad_b, *carried = out + (long)(B + b) * columns + skipped;
            float *d = deltas + (long)b * 4 * H, *cell = dc + (long)b * H;
            for (int j = 0; j < H; j += LANES) {
                vec i = load(gate + j), f = load(gate + H + j), g = load(gate + 2 * H + j), o = load(gate + 3 * H + j);
                vec tanh_c = hyperbolic_tangent(load(after + j)), dh = load(above + j) + load(carried + j);
                vec from_c = load(cell + j) + dh * o * (one - tanh_c * tanh_c);
                store(d + j, from_c * g * i * (one - i));
                store(d + H + j, from_c * load(before + j) * f * (one - f));
                store(d + 2 * H + j, from_c * i * (one - g * g));
                store(d + 3 * H + j, dh * tanh_c * o * (one - o));
                store(cell + j, from_c * f);
            }
        }
        for (int n = 0; n < columns; n += WIDE) {
            job j = {.a = deltas, .row = 4 * H, .step = 1, .b = room + (long)n * 4 * H, .b_step = WIDE, .outer = 1,
                     .inner = 4 * H, .start = NULL, .out = out + n, .out_row = columns};
            product(B, columns - n < WIDE ? LANES : WIDE, j);
        }
    }
}
