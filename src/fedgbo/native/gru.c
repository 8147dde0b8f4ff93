/* GRU over time in float32 on one core: the recurrent product and the gates of a time step in one pass.

   A tile of ROWS x (2 or 3) vectors of sums stays in registers through the inner loop of a product. */

#include "functions.h"

int fedgbo_lanes(void) { return LANES; }

/* ---- GRU, forward ----
   r = sigmoid(x_r + W_r h), z = sigmoid(x_z + W_z h), n = tanh(x_n + r (W_n h + b_n)), h' = n + z (h - n)
   projected (T, B, 3H): x_r, x_z, x_n, still without the biases; replaced by r, z, n
   bias      (4H): of r, z, n and, inside r's product, b_n
   packed    (H / LANES, H, 3, LANES): W_r, W_z, W_n, transposed, the columns that make LANES units together
   hidden    (T + 1, B, H): hidden[0] is the start, the rest is written;  inner (T, B, H): W_n h + b_n */

INLINE void gru_tile(int rows, int H, const float *packed, const float *bias, const float *h,
                     const float *previous, float *gates, float *inner, float *next) {
    vec sums[ROWS][3];
    for (int i = 0; i < rows; i++)
        for (int g = 0; g < 3; g++) sums[i][g] = all(0.0f);
    for (int k = 0; k < H; k++) {
        const float *w = packed + (long)k * 3 * LANES;
        vec w0 = load(w), w1 = load(w + LANES), w2 = load(w + 2 * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vec a = all(h[(long)i * H + k]);
            sums[i][0] += a * w0;
            sums[i][1] += a * w1;
            sums[i][2] += a * w2;
        }
    }
    vec b_r = load(bias), b_z = load(bias + H), b_n = load(bias + 2 * H), b_q = load(bias + 3 * H);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) { /* the pointers already stand at this tile's units */
        float *gate = gates + (long)i * 3 * H;
        vec q = sums[i][2] + b_q;
        vec r = sigmoid(load(gate) + b_r + sums[i][0]);
        vec z = sigmoid(load(gate + H) + b_z + sums[i][1]);
        vec n = hyperbolic_tangent(load(gate + 2 * H) + b_n + r * q);
        store(gate, r);
        store(gate + H, z);
        store(gate + 2 * H, n);
        store(inner + (long)i * H, q);
        store(next + (long)i * H, n + z * (load(previous + (long)i * H) - n));
    }
}

void fedgbo_gru_forward(int T, int B, int H, const float *packed, const float *bias, float *projected, float *inner,
                        float *hidden) {
    for (int t = 0; t < T; t++) {
        const float *h = hidden + (long)t * B * H;
        float *next = hidden + (long)(t + 1) * B * H;
        for (int j = 0; j < H; j += LANES) {
            const float *panel = packed + (long)j * 3 * H;
            float *gates = projected + (long)t * B * 3 * H + j, *q = inner + (long)t * B * H + j;
            int i = 0;
            for (; i + ROWS <= B; i += ROWS)
                gru_tile(ROWS, H, panel, bias + j, h + (long)i * H, h + (long)i * H + j, gates + (long)i * 3 * H,
                         q + (long)i * H, next + (long)i * H + j);
            for (; i < B; i++)
                gru_tile(1, H, panel, bias + j, h + (long)i * H, h + (long)i * H + j, gates + (long)i * 3 * H,
                         q + (long)i * H, next + (long)i * H + j);
        }
    }
}

/* ---- GRU, backward ----
   grad  rows (t, b) of the output's gradient at grad + t * grad_t + b * grad_b
   delta (T, B, 4H), written: the gradients of  W_n h + b_n,  the r, the z and the n pre-activations
   packed (H / (2 LANES), 3H, 2, LANES): W_n, W_r, W_z below each other
   carry (B, H): zero at the start; the start's gradient at the end */

INLINE void product_tile(int rows, int depth, const float *packed, const float *a, long a_row, float *out, int H) {
    vec sums[ROWS][2];
    for (int i = 0; i < rows; i++) {
        sums[i][0] = load(out + (long)i * H);
        sums[i][1] = load(out + (long)i * H + LANES);
    }
    for (int k = 0; k < depth; k++) {
        vec w0 = load(packed + (long)k * 2 * LANES), w1 = load(packed + (long)k * 2 * LANES + LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vec x = all(a[i * a_row + k]);
            sums[i][0] += x * w0;
            sums[i][1] += x * w1;
        }
    }
    for (int i = 0; i < rows; i++) {
        store(out + (long)i * H, sums[i][0]);
        store(out + (long)i * H + LANES, sums[i][1]);
    }
}

void fedgbo_gru_backward(int T, int B, int H, const float *packed, const float *gates, const float *inner,
                         const float *hidden, const float *grad, long grad_t, long grad_b, float *delta,
                         float *carry) {
    for (int t = T - 1; t >= 0; t--) {
        float *deltas = delta + (long)t * B * 4 * H;
        for (int i = 0; i < B; i++) {
            long row = (long)t * B + i;
            const float *gate = gates + row * 3 * H, *q = inner + row * H, *h = hidden + row * H;
            const float *above = grad + t * grad_t + i * grad_b;
            float *d = deltas + (long)i * 4 * H, *c = carry + (long)i * H;
            for (int j = 0; j < H; j += LANES) {
                vec r = load(gate + j), z = load(gate + H + j), n = load(gate + 2 * H + j);
                vec dh = load(above + j) + load(c + j);
                vec dn = dh * (all(1.0f) - z) * (all(1.0f) - n * n);
                store(d + j, dn * r);
                store(d + H + j, dn * load(q + j) * r * (all(1.0f) - r));
                store(d + 2 * H + j, dh * (load(h + j) - n) * z * (all(1.0f) - z));
                store(d + 3 * H + j, dn);
                store(c + j, dh * z);
            }
        }
        for (int j = 0; j < H; j += 2 * LANES) {
            const float *panel = packed + (long)j * 3 * H;
            int i = 0;
            for (; i + ROWS <= B; i += ROWS)
                product_tile(ROWS, 3 * H, panel, deltas + (long)i * 4 * H, 4 * H, carry + (long)i * H + j, H);
            for (; i < B; i++)
                product_tile(1, 3 * H, panel, deltas + (long)i * 4 * H, 4 * H, carry + (long)i * H + j, H);
        }
    }
}
