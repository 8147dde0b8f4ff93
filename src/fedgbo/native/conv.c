/* A convolution at the input of a network, together with the 2x2 max-pooling after it, in float32 on one core.

   Images have few channels there, so the vectors run along the outputs. Two rows of outputs, which make one row of
   pooled ones, stay in the first cache from the product to the maximum and back: nothing of full size is written.

   x       (B, C, H, W): the images
   weight  (C kh kw, O): transposed, so that the outputs of one tap lie together; O is a multiple of 2 LANES
   pooled  (B, H'/2, W'/2, O) with H' = H - kh + 1: the maxima, after ReLU if that is wanted
   choice  like pooled: which of the four values won (see pool.c)
   rows    (2, W', O): room for two rows of outputs */

#include "vectors.h"

void fedgbo_pool_float_forward(int, int, int, int, int, const float *, float *, uint8_t *);
void fedgbo_pool_float_backward(int, int, int, int, const float *, const uint8_t *, float *);

typedef struct {
    int C, H, W, kh, kw, O;
} shape;

/* `pixels` neighbours in a row, 2 LANES outputs of each */
INLINE void product(int pixels, shape s, const float *x, const float *weight, const float *bias, float *out) {
    vec sums[ROWS][2];
#pragma GCC unroll 8
    for (int p = 0; p < pixels; p++) {
        sums[p][0] = load(bias);
        sums[p][1] = load(bias + LANES);
    }
    for (int c = 0; c < s.C; c++)
        for (int i = 0; i < s.kh; i++) {
            const float *row = x + ((long)c * s.H + i) * s.W;
            for (int j = 0; j < s.kw; j++, weight += s.O) {
                vec w0 = load(weight), w1 = load(weight + LANES);
#pragma GCC unroll 8
                for (int p = 0; p < pixels; p++) {
                    vec a = all(row[j + p]);
                    sums[p][0] += a * w0;
                    sums[p][1] += a * w1;
                }
            }
        }
#pragma GCC unroll 8
    for (int p = 0; p < pixels; p++) {
        store(out + (long)p * s.O, sums[p][0]);
        store(out + (long)p * s.O + LANES, sums[p][1]);
    }
}

static void row_forward(shape s, const float *x, const float *weight, const float *bias, float *out) {
    int width = s.W - s.kw + 1;
    for (int o = 0; o < s.O; o += 2 * LANES) {
        int p = 0;
        for (; p + ROWS <= width; p += ROWS) product(ROWS, s, x + p, weight + o, bias + o, out + (long)p * s.O + o);
        for (; p + 2 <= width; p += 2) product(2, s, x + p, weight + o, bias + o, out + (long)p * s.O + o);
        if (p < width) product(1, s, x + p, weight + o, bias + o, out + (long)p * s.O + o);
    }
}

void fedgbo_conv_forward(int B, int C, int H, int W, int kh, int kw, int O, int relu, const float *x,
                         const float *weight, const float *bias, float *pooled, uint8_t *choice, float *rows) {
    shape s = {C, H, W, kh, kw, O};
    int height = H - kh + 1, width = W - kw + 1;
    long line = (long)(width / 2) * O;
    for (int b = 0; b < B; b++, x += (long)C * H * W)
        for (int y = 0; y + 1 < height; y += 2, pooled += line, choice += line) {
            row_forward(s, x + (long)y * W, weight, bias, rows);
            row_forward(s, x + (long)(y + 1) * W, weight, bias, rows + (long)width * O);
            fedgbo_pool_float_forward(1, 2, width, O, relu, rows, pooled, choice);
        }
}

/* The gradients of `down` x `along` weights of the kernel, 2 LANES outputs of each, from one row of outputs */
INLINE void outer(int down, int along, shape s, const float *x, const float *grad, float *weight) {
    vec sums[9][2];
    int width = s.W - s.kw + 1;
#pragma GCC unroll 3
    for (int i = 0; i < down; i++)
#pragma GCC unroll 3
        for (int j = 0; j < along; j++) {
            sums[i * along + j][0] = load(weight + ((long)i * s.kw + j) * s.O);
            sums[i * along + j][1] = load(weight + ((long)i * s.kw + j) * s.O + LANES);
        }
    for (int p = 0; p < width; p++) {
        vec g0 = load(grad + (long)p * s.O), g1 = load(grad + (long)p * s.O + LANES);
#pragma GCC unroll 3
        for (int i = 0; i < down; i++)
#pragma GCC unroll 3
            for (int j = 0; j < along; j++) {
                vec a = all(x[(long)i * s.W + p + j]);
                sums[i * along + j][0] += a * g0;
                sums[i * along + j][1] += a * g1;
            }
    }
#pragma GCC unroll 3
    for (int i = 0; i < down; i++)
#pragma GCC unroll 3
        for (int j = 0; j < along; j++) {
            store(weight + ((long)i * s.kw + j) * s.O, sums[i * along + j][0]);
            store(weight + ((long)i * s.kw + j) * s.O + LANES, sums[i * along + j][1]);
        }
}

static void row_backward(shape s, const float *x, const float *grad, float *weight) {
    int blocks = LANES == 16 && s.kw % 3 == 0 ? s.kh / 3 * 3 : 0; /* 3 x 3 taps need 18 registers for their sums */
    for (int o = 0; o < s.O; o += 2 * LANES)
        for (int c = 0; c < s.C; c++) {
            const float *plane = x + (long)c * s.H * s.W;
            float *to = weight + (long)c * s.kh * s.kw * s.O + o;
            int i = 0;
            for (; i < blocks; i += 3)
                for (int j = 0; j < s.kw; j += 3)
                    outer(3, 3, s, plane + (long)i * s.W + j, grad + o, to + ((long)i * s.kw + j) * s.O);
            for (; i < s.kh; i++) {
                int j = 0;
                for (; j + 3 <= s.kw; j += 3)
                    outer(1, 3, s, plane + (long)i * s.W + j, grad + o, to + ((long)i * s.kw + j) * s.O);
                for (; j < s.kw; j++)
                    outer(1, 1, s, plane + (long)i * s.W + j, grad + o, to + ((long)i * s.kw + j) * s.O);
            }
        }
}

/* weight (C kh kw, O) and bias (O) are added to; `image` has room for one image's gradients of both, so that each sum
   stays short, and small numbers are not lost in large ones */
void fedgbo_conv_backward(int B, int C, int H, int W, int kh, int kw, int O, const float *x, const float *grad,
                          const uint8_t *choice, float *weight, float *bias, float *rows, float *image) {
    shape s = {C, H, W, kh, kw, O};
    int height = H - kh + 1, width = W - kw + 1;
    long line = (long)(width / 2) * O, taps = (long)C * kh * kw * O;
    for (int b = 0; b < B; b++, x += (long)C * H * W) {
        for (long i = 0; i < taps + O; i++) image[i] = 0;
        for (int y = 0; y + 1 < height; y += 2, grad += line, choice += line) {
            fedgbo_pool_float_backward(1, 2, width, O, grad, choice, rows);
            row_backward(s, x + (long)y * W, rows, image);
            row_backward(s, x + (long)(y + 1) * W, rows + (long)width * O, image);
            for (int p = 0; p < width / 2; p++)
                for (int o = 0; o < O; o++) image[taps + o] += choice[(long)p * O + o] == 4 ? 0 : grad[(long)p * O + o];
        }
        for (long i = 0; i < taps; i++) weight[i] += image[i];
        for (int o = 0; o < O; o++) bias[o] += image[taps + o];
    }
}
