/* Loss and gradient of a small convolutional network for one batch, in float32 on one core, in one call.

   The network is a stack: convolutions (stride 1, no padding), each with or without ReLU and 2x2 max-pooling, then linear
   layers, each but the last with or without ReLU, then cross-entropy. Images go through the convolutions one by one, so
   that all that is read again soon lies in the second cache; the linear layers take the batch as a whole.

   Inside, images are (H, W, C), so that the numbers under one row of a kernel lie together, and weights (kh, kw, C, O). */

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "vectors.h"

#if LANES == 16
#define MOST 13 /* rows of a tile: twice as many sums, and three registers more */
#else
#define MOST 6
#endif
#define WIDE (2 * LANES) /* columns of a tile */

void fedgbo_pool_float_forward(int, int, int, int, int, const float *, float *, uint8_t *);
void fedgbo_pool_float_backward(int, int, int, int, const float *, const uint8_t *, float *);

/* ---- the one product that everything is made of ----
   out[m][n] = start[m][n] + sum over r < outer, k < inner of  a[m row + k step + r jump] * b[k][n] of the r-th b */

typedef struct {
    const float *a;
    long row, step, jump;
    const float *b;
    long b_step, b_jump;
    int outer, inner;
    const float *start; /* null for zero */
    long start_row;
    float *out;
    long out_row;
} job;

INLINE void tile(int rows, const job *of) {
    const job j = *of;
    vec sums[MOST][2];
#pragma GCC unroll 13
    for (int m = 0; m < rows; m++) {
        sums[m][0] = j.start == NULL ? all(0.0f) : load(j.start + m * j.start_row);
        sums[m][1] = j.start == NULL ? all(0.0f) : load(j.start + m * j.start_row + LANES);
    }
    for (int r = 0; r < j.outer; r++) {
        const float *a = j.a + r * j.jump, *b = j.b + r * j.b_jump;
        for (int k = 0; k < j.inner; k++, a += j.step, b += j.b_step) {
            vec b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 13
            for (int m = 0; m < rows; m++) {
                vec x = all(a[m * j.row]);
                sums[m][0] += x * b0;
                sums[m][1] += x * b1;
            }
        }
    }
#pragma GCC unroll 13
    for (int m = 0; m < rows; m++) {
        store(j.out + m * j.out_row, sums[m][0]);
        store(j.out + m * j.out_row + LANES, sums[m][1]);
    }
}

#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        tile(n, j);                                                                                                    \
        break;

static void some_rows(int rows, const job *j) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if MOST == 13
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)
#endif
    }
}

static void product(int rows, int columns, job j) {
    int blocks = (rows + MOST - 1) / MOST;
    for (int i = 0; i < blocks; i++) {
        int first = (int)((long)rows * i / blocks), last = (int)((long)rows * (i + 1) / blocks);
        job part = j;
        part.a += first * j.row;
        part.out += first * j.out_row;
        if (j.start != NULL) part.start += first * j.start_row;
        for (int n = 0; n < columns; n += WIDE) {
            some_rows(last - first, &part);
            part.b += WIDE;
            part.out += WIDE;
            if (part.start != NULL) part.start += WIDE;
        }
    }
}

/* ---- convolutions ---- */

typedef struct {
    int C, H, W, O, kh, kw, relu, pool; /* of the input; outputs; kernel; what follows */
    int h, w, oh, ow;                   /* of the output, and after pooling */
    const float *bias;
    float *packed, *flipped; /* (kh, kw, C, O), and (kh, kw, O, C) with the kernel's columns in reverse */
    float *in;               /* (B, H, W, C) */
    uint8_t *choice;         /* (B, oh, ow, O): see pool.c; without pooling, where ReLU let something through */
    float *d_packed, *d_bias;
} conv;

static void pack(conv *c, const float *weight) {
    for (int o = 0; o < c->O; o++)
        for (int k = 0; k < c->C; k++)
            for (int i = 0; i < c->kh; i++)
                for (int j = 0; j < c->kw; j++) {
                    float x = *weight++;
                    c->packed[((long)(i * c->kw + j) * c->C + k) * c->O + o] = x;
                    if (c->flipped != NULL)
                        c->flipped[((long)(i * c->kw + c->kw - 1 - j) * c->O + o) * c->C + k] = x;
                }
}

static void unpack(const conv *c, float *weight) {
    for (int o = 0; o < c->O; o++)
        for (int k = 0; k < c->C; k++)
            for (int i = 0; i < c->kh; i++)
                for (int j = 0; j < c->kw; j++)
                    *weight++ = c->d_packed[((long)(i * c->kw + j) * c->C + k) * c->O + o];
}

static void conv_forward(const conv *c, int image, float *full, float *out) {
    const float *in = c->in + (long)image * c->H * c->W * c->C;
    for (int y = 0; y < c->h; y++) {
        job j = {in + (long)y * c->W * c->C, c->C, 1, (long)c->W * c->C, c->packed, c->O, (long)c->kw * c->C * c->O,
                 c->kh, c->kw * c->C, c->bias, 0, full + (long)y * c->w * c->O, c->O};
        product(c->w, c->O, j);
    }
    long size = (long)c->oh * c->ow * c->O;
    uint8_t *choice = c->choice + image * size;
    if (c->pool) {
        fedgbo_pool_float_forward(1, c->h, c->w, c->O, c->relu, full, out, choice);
        return;
    }
    for (long i = 0; i < size; i++) {
        int cut = c->relu && full[i] <= 0;
        choice[i] = !cut;
        out[i] = cut ? 0 : full[i];
    }
}

/* grad (oh, ow, O) of what came out; full (h, w, O) and wide (h, w + 2 kw - 2, O) are room; d_in (H, W, C) or null */
static void conv_backward(const conv *c, int image, const float *grad, float *full, float *wide, float *d_in) {
    const float *in = c->in + (long)image * c->H * c->W * c->C;
    long size = (long)c->oh * c->ow * c->O;
    const uint8_t *choice = c->choice + image * size;
    if (c->pool)
        fedgbo_pool_float_backward(1, c->h, c->w, c->O, grad, choice, full);
    else
        for (long i = 0; i < size; i++) full[i] = choice[i] ? grad[i] : 0;
    for (int p = 0; p < c->oh * c->ow; p++) /* what ReLU cut off has none */
        for (int o = 0; o < c->O; o++) {
            long i = (long)p * c->O + o;
            c->d_bias[o] += (c->pool ? choice[i] != 4 : choice[i]) ? grad[i] : 0;
        }
    for (int i = 0; i < c->kh; i++) {
        float *to = c->d_packed + (long)i * c->kw * c->C * c->O;
        job j = {in + (long)i * c->W * c->C, 1, c->C, (long)c->W * c->C, full, c->O, (long)c->w * c->O,
                 c->h, c->w, to, c->O, to, c->O};
        product(c->kw * c->C, c->O, j);
    }
    if (d_in == NULL) return;
    int edge = c->kw - 1;
    long line = (long)(c->w + 2 * edge) * c->O;
    for (int y = 0; y < c->h; y++) {
        memset(wide + y * line, 0, (long)edge * c->O * 4);
        memcpy(wide + y * line + (long)edge * c->O, full + (long)y * c->w * c->O, (long)c->w * c->O * 4);
        memset(wide + y * line + (long)(edge + c->w) * c->O, 0, (long)edge * c->O * 4);
    }
    for (int y = 0; y < c->H; y++) { /* rows i of the kernel reach from output y - i, where there is one */
        int first = y - c->h + 1 > 0 ? y - c->h + 1 : 0, last = y < c->kh - 1 ? y : c->kh - 1;
        job j = {wide + (y - first) * line, c->O, 1, -line, c->flipped + (long)first * c->kw * c->O * c->C, c->C,
                 (long)c->kw * c->O * c->C, last - first + 1, c->kw * c->O, NULL, 0,
                 d_in + (long)y * c->W * c->C, c->C};
        product(c->W, c->C, j);
    }
}

/* ---- linear layers ---- */

typedef struct {
    int I, O, relu;
    const float *weight, *bias; /* (O, I), (O) */
    float *in, *d_in;           /* (B, I) */
} linear;

/* `rows` samples times `columns` outputs; both lie along the inputs, so the sums are added up across the lanes */
INLINE void dots(int rows, int columns, int I, const float *x, const float *weight, const float *bias, float *out,
                 long out_row) {
    vec sums[4][6];
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) sums[m][n] = all(0.0f);
    for (int k = 0; k < I; k += LANES)
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            vec a = load(x + (long)m * I + k);
#pragma GCC unroll 6
            for (int n = 0; n < columns; n++) sums[m][n] += a * load(weight + (long)n * I + k);
        }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            float total = bias[n];
            for (int l = 0; l < LANES; l++) total += sums[m][n][l];
            out[m * out_row + n] = total;
        }
}

INLINE void some_outputs(int columns, const linear *l, int B, int o, float *out) {
    const float *x = l->in, *weight = l->weight + (long)o * l->I;
    int b = 0;
    for (; b + 4 <= B; b += 4)
        dots(4, columns, l->I, x + (long)b * l->I, weight, l->bias + o, out + (long)b * l->O + o, l->O);
    for (; b < B; b++)
        dots(1, columns, l->I, x + (long)b * l->I, weight, l->bias + o, out + (long)b * l->O + o, l->O);
}

static void linear_forward(const linear *l, int B, float *out) {
    for (int o = 0, n; o < l->O; o += n) { /* the more outputs at once, the less often the samples are read */
        int left = l->O - o;
        n = LANES == 16 && (left % 6 == 0 || left >= 12) ? 6 : left >= 4 ? 4 : 1;
        if (n == 6)
            some_outputs(6, l, B, o, out);
        else if (n == 4)
            some_outputs(4, l, B, o, out);
        else
            some_outputs(1, l, B, o, out);
    }
    if (l->relu)
        for (long i = 0; i < (long)B * l->O; i++) out[i] = out[i] > 0 || out[i] != out[i] ? out[i] : 0;
}

/* What becomes of a gradient: it is kept, or a step is taken with it at once, while the weights are at hand. */
typedef struct {
    const float *params; /* where the weights begin, to know which ones these are */
    float *grad;         /* kept here; null for a step */
    const float *offset, *scale; /* of the step, see step.c */
    float rate;
} fate;

void fedgbo_step_float(long, float *, const float *, const float *, const float *, float);

static void meet(fate f, long n, const float *weight, const float *gradient) {
    long at = weight - f.params;
    if (f.grad != NULL)
        memcpy(f.grad + at, gradient, n * 4);
    else
        fedgbo_step_float(n, (float *)weight, gradient, f.offset ? f.offset + at : NULL, f.scale ? f.scale + at : NULL,
                          f.rate);
}

/* grad (B, O) of what came out; some (BLOCK, I) is room for the gradients of BLOCK outputs' weights, which stay in the
   second cache, as these weights do, from the one product to the other and to the step */
#define BLOCK (2 * MOST)

static void linear_backward(const linear *l, int B, const float *grad, fate f, float *some) {
    for (int o = 0; o < l->O; o += BLOCK) {
        int rows = o + BLOCK <= l->O ? BLOCK : l->O - o;
        const float *weight = l->weight + (long)o * l->I;
        if (l->d_in != NULL) {
            job d = {grad + o, l->O, 1, 0, weight, l->I, 0, 1, rows, o ? l->d_in : NULL, l->I, l->d_in, l->I};
            product(B, l->I, d);
        }
        float *to = f.grad == NULL ? some : f.grad + (weight - f.params);
        job j = {grad + o, 1, l->O, 0, l->in, l->I, 0, 1, B, NULL, 0, to, l->I};
        product(rows, l->I, j);
        if (f.grad == NULL) meet(f, (long)rows * l->I, weight, some);
    }
    for (int o = 0; o < l->O; o++) some[o] = 0;
    for (int b = 0; b < B; b++)
        for (int o = 0; o < l->O; o++) some[o] += grad[(long)b * l->O + o];
    meet(f, l->O, l->bias, some);
}

/* Mean cross-entropy of scores (B, N); scores become its gradient */
static float cross_entropy(int B, int N, const int64_t *labels, float *scores) {
    double total = 0;
    for (int b = 0; b < B; b++) {
        float *s = scores + (long)b * N, top = s[0];
        for (int n = 1; n < N; n++) top = s[n] > top ? s[n] : top;
        double sum = 0;
        for (int n = 0; n < N; n++) sum += expf(s[n] - top);
        float log_sum = (float)log(sum) + top;
        total += log_sum - s[labels[b]];
        for (int n = 0; n < N; n++) s[n] = expf(s[n] - log_sum) / B;
        s[labels[b]] -= 1.0f / B;
    }
    return (float)(total / B);
}

/* ---- the whole ----
   plan: B, C, H, W, number of convolutions, of linear layers; O, kh, kw, relu, pool of each; O, relu of each
   x (B, C, H, W); labels (B); params and grad: all weights and biases, as torch lays them out, one after the other;
   without grad, params take a step with the gradient: params <- params - (offset + scale gradient), see step.c
   room: where everything in between lies, or null; returns how many floats of it are needed, or -1 for a label that is
   no output's number */

#define LAYERS 8

static float *take(float **room, long *used, long floats) {
    float *here = *room == NULL ? NULL : *room + *used;
    *used += (floats + 15) / 16 * 16;
    return here;
}

long fedgbo_stack(const int *plan, const float *x, const int64_t *labels, float *params, float *grad,
                  const float *offset, const float *scale, float rate, float *room, float *loss) {
    fate f = {params, grad, offset, scale, rate};
    conv convs[LAYERS];
    linear linears[LAYERS];
    int B = plan[0], C = plan[1], H = plan[2], W = plan[3], n_conv = plan[4], n_linear = plan[5];
    const int *next = plan + 6;
    long used = 0, most_full = 0, most_wide = 0, most_in = 0, most_some = 0;
    const float *at = params;
    for (int s = 0; s < n_conv; s++, next += 5) {
        conv *c = &convs[s];
        *c = (conv){.C = C, .H = H, .W = W, .O = next[0], .kh = next[1], .kw = next[2], .relu = next[3], .pool = next[4]};
        c->h = H - c->kh + 1, c->w = W - c->kw + 1;
        c->oh = c->pool ? c->h / 2 : c->h, c->ow = c->pool ? c->w / 2 : c->w;
        long weights = (long)c->O * C * c->kh * c->kw, full = (long)c->h * c->w * c->O;
        long wide = (long)c->h * (c->w + 2 * c->kw - 2) * c->O, in = (long)H * W * C;
        c->packed = take(&room, &used, weights);
        c->flipped = s ? take(&room, &used, weights) : NULL;
        c->d_packed = take(&room, &used, weights);
        c->d_bias = take(&room, &used, c->O);
        c->in = take(&room, &used, B * in);
        c->choice = (uint8_t *)take(&room, &used, ((long)B * c->oh * c->ow * c->O + 3) / 4);
        c->bias = at + weights;
        if (room != NULL) {
            pack(c, at);
            memset(c->d_packed, 0, weights * 4);
            memset(c->d_bias, 0, c->O * 4);
        }
        at += weights + c->O;
        most_full = full > most_full ? full : most_full;
        most_wide = wide > most_wide ? wide : most_wide;
        most_in = in > most_in ? in : most_in;
        C = c->O, H = c->oh, W = c->ow;
    }
    float *full = take(&room, &used, most_full), *wide = take(&room, &used, most_wide);
    float *one = take(&room, &used, most_in + (long)C * H * W), *other = take(&room, &used, most_in + (long)C * H * W);
    int I = C * H * W;
    for (int s = 0; s < n_linear; s++, next += 2) {
        linear *l = &linears[s];
        *l = (linear){.I = I, .O = next[0], .relu = next[1], .weight = at, .bias = at + (long)next[0] * I};
        l->in = take(&room, &used, (long)B * I);
        l->d_in = s || n_conv ? take(&room, &used, (long)B * I) : NULL;
        at = l->bias + l->O;
        long block = (long)BLOCK * I > l->O ? (long)BLOCK * I : l->O;
        most_some = block > most_some ? block : most_some;
        I = l->O;
    }
    float *some = take(&room, &used, most_some);
    float *scores = take(&room, &used, (long)B * I);
    if (room == NULL) return used;
    for (int b = 0; b < B; b++)
        if (labels[b] < 0 || labels[b] >= I) return -1; /* what lies there is not ours to write */

    int area = H * W; /* of what the convolutions make */
    for (int b = 0; b < B; b++) {
        if (n_conv == 0) break;
        const conv *c = &convs[0];
        float *image = c->in + (long)b * c->H * c->W * c->C;
        for (int k = 0; k < c->C; k++)
            for (int p = 0; p < c->H * c->W; p++) image[(long)p * c->C + k] = x[((long)b * c->C + k) * c->H * c->W + p];
        for (int s = 0; s < n_conv; s++) {
            int last = s == n_conv - 1;
            c = &convs[s];
            conv_forward(c, b, full, last ? one : convs[s + 1].in + (long)b * c->oh * c->ow * c->O);
        }
        float *features = linears[0].in + (long)b * linears[0].I; /* torch's order: channel by channel */
        for (int k = 0; k < C; k++)
            for (int p = 0; p < area; p++) features[(long)k * area + p] = one[(long)p * C + k];
    }
    if (n_conv == 0) memcpy(linears[0].in, x, (long)B * linears[0].I * 4);
    for (int s = 0; s < n_linear; s++)
        linear_forward(&linears[s], B, s == n_linear - 1 ? scores : linears[s + 1].in);

    *loss = cross_entropy(B, I, labels, scores);
    for (int s = n_linear - 1; s >= 0; s--) {
        const linear *l = &linears[s];
        float *out = s == n_linear - 1 ? scores : linears[s + 1].d_in;
        if (l->relu)
            for (long i = 0; i < (long)B * l->O; i++) out[i] = linears[s + 1].in[i] > 0 ? out[i] : 0;
        linear_backward(l, B, out, f, some);
    }
    for (int b = 0; b < B && n_conv; b++) {
        const float *features = linears[0].d_in + (long)b * linears[0].I;
        for (int k = 0; k < C; k++)
            for (int p = 0; p < area; p++) one[(long)p * C + k] = features[(long)k * area + p];
        float *from = one, *to = other;
        for (int s = n_conv - 1; s >= 0; s--) {
            conv_backward(&convs[s], b, from, full, wide, s ? to : NULL);
            float *swap = from;
            from = to, to = swap;
        }
    }
    for (int s = 0; s < n_conv; s++) {
        const conv *c = &convs[s];
        long weights = (long)c->O * c->C * c->kh * c->kw;
        unpack(c, c->packed);
        meet(f, weights, c->bias - weights, c->packed);
        meet(f, c->O, c->bias, c->d_bias);
    }
    return used;
}
