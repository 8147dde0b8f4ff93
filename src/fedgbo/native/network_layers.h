/* The layers of network.c: what one is, its forward and its backward pass.

   Images are (H, W, C) here, so that the numbers under one row of a kernel lie together; all that a convolution makes has
   its channels filled up with zeros to whole vectors, and so have vectors of features. Images go through one by one, so
   that what is read again soon lies in the second cache; linear layers take the batch as a whole. */

#include <string.h>

#include "functions.h"
#include "product.h"

enum { CONVOLUTION, MAX_POOL, MEAN_POOL, ACTIVATION, FLATTEN, LINEAR };
enum { RELU, TANH, SIGMOID, GELU, SILU, DROPOUT, DROPOUT_2D };
#define CUT (-1) /* the choice of a maximum that ReLU made zero */

/* A weight or bias: where torch has it, and where it lies while steps are taken */
typedef struct {
    long at;        /* of its first number in torch's vector */
    int n[4];       /* outputs, inputs, kernel height and width, as torch lays them out */
    long stride[4]; /* of the same four here */
    long size;      /* numbers here, zeros included; 0 for no bias */
    real *value, *grad; /* grad is null where steps are taken */
    const real *start, *offset, *scale; /* of the step; see `meet` */
} param;

typedef struct {
    int kind, how; /* how: the activation; of a MAX_POOL, whether ReLU follows */
    int C, H, W, O, h, w, kh, kw, sh, sw, ph, pw; /* input, output, kernel, stride, padding; features have H = W = 1 */
    int stored, made; /* channels of input and output in memory */
    param weight, bias;
    long drawn, mask; /* of dropout: numbers of a sample's mask, and where the batch's begins among those of all layers */
    real *in; /* the input: */
    long image, row, frame; /* numbers from one image to the next, from one row to the next, before the first pixel */
    whole *choice; /* (B, h, w, made): which number of its window is the maximum */
    real *flipped;   /* (kh, kw, made, stored): the kernel as the way back reads it; null if nothing is behind */
    real *weight_grad, *bias_grad;
} layer;

/* The step y <- y - (offset + scale (g + pull (y - start))), see step.c */
typedef struct {
    real pull, rate;
} step;

void OF_KIND(fedgbo_step_, )(long, real *, const real *, const real *, const real *, real);

/* What becomes of the gradient of `n` numbers of a parameter: it is kept, or a step is taken while they are at hand. */
static void meet(const param *p, step s, long first, long n, real *gradient) {
    if (p->grad != NULL) {
        memcpy(p->grad + first, gradient, n * sizeof(real));
        return;
    }
    real *value = p->value + first;
    if (s.pull != 0)
        for (long i = 0; i < n; i++) gradient[i] += s.pull * (value[i] - p->start[first + i]);
    OF_KIND(fedgbo_step_, )(n, value, gradient, p->offset ? p->offset + first : NULL,
                            p->scale ? p->scale + first : NULL, s.rate);
}

/* ---- convolutions: weights are (kh, kw, stored, made) ---- */

/* `out` is the first pixel of the output, whose rows are out_row apart */
static void conv_forward(const layer *l, const real *in, real *out, long out_row) {
    for (int y = 0; y < l->h; y++) {
        job j = {.a = in + (long)y * l->sh * l->row, .row = (long)l->sw * l->stored, .step = 1, .jump = l->row,
                 .b = l->weight.value, .b_step = l->made, .b_jump = (long)l->kw * l->stored * l->made,
                 .outer = l->kh, .inner = l->kw * l->stored,
                 .start = l->bias.value, .out = out + y * out_row, .out_row = l->made};
        product(l->w, l->made, j);
    }
}

static int taps(int kernel, int stride, int phase) { return phase < kernel ? (kernel - 1 - phase) / stride + 1 : 0; }

/* An input pixel x is under the taps j with (x + pw - j) divisible by the stride, so `flipped` has the taps of one such
   phase together, from right to left. */
static void flip(const layer *l) {
    real *to = l->flipped;
    for (int i = 0; i < l->kh; i++)
        for (int phase = 0; phase < l->sw; phase++)
            for (int t = taps(l->kw, l->sw, phase) - 1; t >= 0; t--) {
                const real *from = l->weight.value + ((long)i * l->kw + phase + t * l->sw) * l->stored * l->made;
                for (int o = 0; o < l->made; o++)
                    for (int c = 0; c < l->stored; c++) *to++ = from[(long)c * l->made + o];
            }
}

/* Pixels of a line in `wide`: a row of gradients with zeros on both sides, as far as the kernel reaches */
static int edge_of(const layer *l) { return (l->kw - 1) / l->sw; }
static int line_of(const layer *l) {
    int reached = (l->W - 1 + l->pw) / l->sw + 1;
    return edge_of(l) + (reached > l->w ? reached : l->w);
}

static void conv_input_grad(const layer *l, const real *grad, real *wide, real *d_in) {
    int edge = edge_of(l);
    long line = (long)line_of(l) * l->made, row = (long)l->w * l->made, left = (long)edge * l->made;
    for (int y = 0; y < l->h; y++) {
        memset(wide + y * line, 0, left * sizeof(real));
        memcpy(wide + y * line + left, grad + y * row, row * sizeof(real));
        memset(wide + y * line + left + row, 0, (line - left - row) * sizeof(real));
    }
    for (int y = 0; y < l->H; y++) { /* kernel rows phase + t sh reach from output top - t, where there is one */
        int top = (y + l->ph) / l->sh, phase = (y + l->ph) % l->sh;
        int first = top - l->h + 1 > 0 ? top - l->h + 1 : 0, last = taps(l->kh, l->sh, phase) - 1;
        last = last < top ? last : top;
        for (int side = 0, before = 0; side < l->sw; before += taps(l->kw, l->sw, side), side++) {
            int x = ((side - l->pw) % l->sw + l->sw) % l->sw, n = taps(l->kw, l->sw, side);
            if (x >= l->W) continue;
            long from = edge + (x + l->pw) / l->sw - (n - 1), kernel = (long)l->made * l->stored;
            job j = {.a = wide + (top - first) * line + from * l->made, .row = l->made, .step = 1, .jump = -line,
                     .b = l->flipped + ((long)(phase + first * l->sh) * l->kw + before) * kernel,
                     .b_step = l->stored, .b_jump = l->sh * l->kw * kernel,
                     .outer = last - first + 1, .inner = n * l->made,
                     .out = d_in + ((long)y * l->W + x) * l->stored, .out_row = (long)l->sw * l->stored};
            product((l->W - 1 - x) / l->sw + 1, l->stored, j);
        }
    }
}

/* grad (h, w, made) of the output; d_in (H, W, stored), or null where no gradient is needed */
static void conv_backward(const layer *l, const real *in, const real *grad, real *wide, real *d_in) {
    for (int o = 0; o < l->made && l->bias.size; o += LANES) {
        vec sum = load(l->bias_grad + o);
        for (long p = 0; p < (long)l->h * l->w; p++) sum += load(grad + p * l->made + o);
        store(l->bias_grad + o, sum);
    }
    for (int i = 0; i < l->kh; i++) {
        real *to = l->weight_grad + (long)i * l->kw * l->stored * l->made;
        job j = {.a = in + i * l->row, .row = 1, .step = (long)l->sw * l->stored, .jump = l->sh * l->row,
                 .b = grad, .b_step = l->made, .b_jump = (long)l->w * l->made, .outer = l->h, .inner = l->w,
                 .start = to, .start_row = l->made, .out = to, .out_row = l->made};
        product(l->kw * l->stored, l->made, j);
    }
    if (d_in != NULL) conv_input_grad(l, grad, wide, d_in);
}

/* ---- pooling ---- */

/* The part of a window that is inside the image, along one axis */
static void window(int at, int stride, int padding, int kernel, int size, int *first, int *last) {
    int begin = at * stride - padding, end = begin + kernel;
    *first = begin > 0 ? begin : 0;
    *last = end < size ? end : size;
}

/* As in torch, the first maximum wins, and NaN wins over all. */
static void max_forward(const layer *l, const real *in, real *out, long out_row, whole *choice) {
    int C = l->stored;
    for (int y = 0; y < l->h; y++)
        for (int x = 0; x < l->w; x++, choice += C) {
            int top, bottom, left, right;
            window(y, l->sh, l->ph, l->kh, l->H, &top, &bottom);
            window(x, l->sw, l->pw, l->kw, l->W, &left, &right);
            for (int c = 0; c < C; c += LANES) {
                vec best = all(-INFINITY);
                ivec which = {0};
                for (int i = top, code = 0; i < bottom; i++)
                    for (int j = left; j < right; j++, code++) {
                        vec v = load(in + i * l->row + (long)j * C + c);
                        ivec wins = (v > best) | (v != v);
                        best = pick(wins, v, best);
                        which = (which & ~wins) | (wins & code);
                    }
                if (l->how) {
                    ivec cut = best <= all(0);
                    best = pick(cut, all(0), best);
                    which = (which & ~cut) | (cut & CUT);
                }
                store(out + y * out_row + (long)x * C + c, best);
                *(ivec *)(choice + c) = which;
            }
        }
}

static void max_backward(const layer *l, const whole *choice, const real *grad, real *d_in) {
    int C = l->stored, once = l->h * l->kh == l->H && l->w * l->kw == l->W && l->kh == l->sh && l->kw == l->sw;
    once = once && l->ph == 0 && l->pw == 0; /* with padding, the last row or column may be in no window */
    if (!once) memset(d_in, 0, (long)l->H * l->W * C * sizeof(real)); /* else every pixel is in one window */
    for (int y = 0; y < l->h; y++)
        for (int x = 0; x < l->w; x++, choice += C, grad += C) {
            int top, bottom, left, right;
            window(y, l->sh, l->ph, l->kh, l->H, &top, &bottom);
            window(x, l->sw, l->pw, l->kw, l->W, &left, &right);
            for (int c = 0; c < C; c += LANES) {
                vec g = load(grad + c);
                ivec which = *(const ivec *)(choice + c);
                for (int i = top, code = 0; i < bottom; i++)
                    for (int j = left; j < right; j++, code++) {
                        real *d = d_in + ((long)i * l->W + j) * C + c;
                        store(d, pick(which == code, g, all(0)) + (once ? all(0) : load(d)));
                    }
            }
        }
}

/* Zeros of the padding count, as torch does by default. */
static void mean_forward(const layer *l, const real *in, real *out, long out_row) {
    int C = l->stored;
    real share = (real)1 / (l->kh * l->kw);
    for (int y = 0; y < l->h; y++, out += out_row)
        for (int x = 0; x < l->w; x++) {
            int top, bottom, left, right;
            real *sum = out + (long)x * C;
            window(y, l->sh, l->ph, l->kh, l->H, &top, &bottom);
            window(x, l->sw, l->pw, l->kw, l->W, &left, &right);
            for (int c = 0; c < C; c++) sum[c] = 0;
            for (int i = top; i < bottom; i++)
                for (int j = left; j < right; j++)
                    for (int c = 0; c < C; c++) sum[c] += in[i * l->row + (long)j * C + c];
            for (int c = 0; c < C; c++) sum[c] *= share;
        }
}

static void mean_backward(const layer *l, const real *grad, real *d_in) {
    int C = l->stored;
    real share = (real)1 / (l->kh * l->kw);
    memset(d_in, 0, (long)l->H * l->W * C * sizeof(real));
    for (int y = 0; y < l->h; y++)
        for (int x = 0; x < l->w; x++, grad += C) {
            int top, bottom, left, right;
            window(y, l->sh, l->ph, l->kh, l->H, &top, &bottom);
            window(x, l->sw, l->pw, l->kw, l->W, &left, &right);
            for (int i = top; i < bottom; i++)
                for (int j = left; j < right; j++)
                    for (int c = 0; c < C; c++) d_in[((long)i * l->W + j) * C + c] += share * grad[c];
        }
}

/* ---- activations ---- */

INLINE vec activated(int how, vec x, vec *slope) {
    vec one = all(1), y;
    switch (how) {
        case TANH:
            y = hyperbolic_tangent(x);
            *slope = one - y * y;
            return y;
        case SIGMOID:
            y = sigmoid(x);
            *slope = y * (one - y);
            return y;
        case SILU:
            y = sigmoid(x);
            *slope = y * (one + x * (one - y));
            return x * y;
        case GELU: /* x times the normal distribution function, whose density is the last factor */
            y = (one + error_function(x * all((real)0.70710678118654752))) * all((real)0.5);
            *slope = y + x * exponential(x * x * all((real)-0.5)) * all((real)0.39894228040143268);
            return x * y;
        default: { /* RELU; NaN stays */
            ivec cut = x <= all(0);
            *slope = pick(cut, all(0), one);
            return pick(cut, all(0), x);
        }
    }
}

/* `n` numbers: their slopes replace them, for the way back */
static void activate(int how, long n, real *in, real *out) {
    vec slope;
    long i = 0;
    for (; i + LANES <= n; i += LANES) {
        store(out + i, activated(how, load(in + i), &slope));
        store(in + i, slope);
    }
    if (i < n) {
        vec x = all(0);
        memcpy(&x, in + i, (n - i) * sizeof(real));
        x = activated(how, x, &slope);
        memcpy(out + i, &x, (n - i) * sizeof(real));
        memcpy(in + i, &slope, (n - i) * sizeof(real));
    }
}

/* Dropout of one sample: numbers are multiplied by the mask, in torch's layout, which replaces them for the way back. A
   number of DROPOUT_2D's mask is for a whole channel. */
static void drop(const layer *l, const real *mask, real *in, real *out, long out_row) {
    long pixels = (long)l->H * l->W;
    for (int y = 0; y < l->H; y++)
        for (int x = 0; x < l->W; x++)
            for (int c = 0; c < l->C; c++) {
                real *a = in + y * l->row + (long)x * l->stored + c;
                real m = mask[l->how == DROPOUT_2D ? c : c * pixels + (long)y * l->W + x];
                out[y * out_row + (long)x * l->stored + c] = *a * m;
                *a = m;
            }
}

/* ---- linear layers: weights are (O, stored) ---- */

/* grad (B, O) with rows `made` apart; some (BLOCK, stored) is room for the gradients of BLOCK outputs' weights, which stay
   in the second cache, as these weights do, from the one product to the other and to the step */
#define BLOCK (2 * MOST)

static void linear_backward(const layer *l, int B, const real *grad, step s, real *some, real *d_in) {
    int I = l->stored;
    for (int o = 0; o < l->O; o += BLOCK) {
        int rows = o + BLOCK <= l->O ? BLOCK : l->O - o;
        if (d_in != NULL) {
            job d = {.a = grad + o, .row = l->made, .step = 1, .b = l->weight.value + (long)o * I, .b_step = I,
                     .outer = 1, .inner = rows, .start = o ? d_in : NULL, .start_row = I, .out = d_in, .out_row = I};
            product(B, I, d);
        }
        job j = {.a = grad + o, .row = 1, .step = l->made, .b = l->in, .b_step = I, .outer = 1, .inner = B,
                 .out = some, .out_row = I};
        product(rows, I, j);
        meet(&l->weight, s, (long)o * I, (long)rows * I, some);
    }
    if (!l->bias.size) return;
    for (int o = 0; o < l->O; o++) some[o] = 0;
    for (int b = 0; b < B; b++)
        for (int o = 0; o < l->O; o++) some[o] += grad[(long)b * l->made + o];
    meet(&l->bias, s, 0, l->O, some);
}
