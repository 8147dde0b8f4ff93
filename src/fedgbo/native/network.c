/* K local steps of a network on one core, in one call: minibatches, loss, gradient and step.

   The network is a stack: convolutions, pooling and activations on images, then flatten, then linear layers and
   activations, then the mean cross-entropy or the mean squared error of a batch. engines/layers/network.py makes its plan.

   plan     batch size B; loss; channels, height and width of a sample (features: count, 1, 1); whether samples are images;
            number of layers; for each layer kind, outputs, kernel (2), stride (2), padding (2), how, bias
   x        samples in torch's layout, of which rows[0], rows[1], ... are the batches, one after the other
   targets  labels (int64), or outputs (reals) for the mean squared error, of the same samples
   params   all weights and biases in torch's layout, which take `steps` steps, see `step`; or, where `grad` is given, one
            batch's gradient is put there and params stay
   masks    of all dropouts, as torch draws and scales them: for each step, for each such layer, for each sample
   room     zeros at first, kept from call to call with the same plan
   losses   (steps)
   entropy  weight of FedMAX's term on the input of the last layer, which must then be linear; 0 for none
   Without room, returns how many reals of it are needed. Returns -1 for a label that is no output's number. */

#include "network_layers.h"

#define LAYERS 64
#define NUMBERS 10 /* of a layer in the plan */
enum { CROSS_ENTROPY, SQUARED_ERROR };

typedef struct {
    int B, loss, images, count, outputs; /* layers 0 ... images - 1 take one image at a time */
    layer layers[LAYERS];
    real *image_grads[2], *batch_grads[2]; /* on the way back, in turns: of a layer's output and of its input */
    real *wide, *some;                     /* room of the layers */
    real *scores;                          /* (B, filled(outputs)) */
    real entropy;                          /* weight of FedMAX's term, see `max_entropy` */
    const real *masks;                     /* of this step */
    long drawn;                            /* numbers in them */
} network;

static int filled(int n) { return (n + LANES - 1) / LANES * LANES; }
static long larger(long a, long b) { return a > b ? a : b; }

static real *take(real *room, long *used, long count) {
    real *here = room == NULL ? NULL : room + *used;
    *used += (count + 63) / 64 * 64; /* begin at a line of the cache */
    return here;
}

/* ---- parameters: between torch's layout and ours ---- */

static int as_in_torch(const param *p) {
    return p->size == (long)p->n[0] * p->n[1] * p->n[2] * p->n[3] && p->n[2] * p->n[3] == 1 &&
           (p->n[1] == 1 ? p->stride[0] == 1 : p->stride[1] == 1);
}

static void arrange(const param *p, int in, real *ours, real *theirs) {
    long area = (long)p->n[2] * p->n[3];
    for (int o = 0; o < p->n[0]; o++)
        for (int i = 0; i < p->n[2]; i++)
            for (int j = 0; j < p->n[3]; j++) {
                real *a = ours + o * p->stride[0] + i * p->stride[2] + j * p->stride[3];
                real *b = theirs + (long)o * p->n[1] * area + (long)i * p->n[3] + j;
                for (int c = 0; c < p->n[1]; c++)
                    if (in)
                        a[c * p->stride[1]] = b[c * area];
                    else
                        b[c * area] = a[c * p->stride[1]];
            }
}

static param parameter(long *at, const int n[4], const long stride[4], long size) {
    param p = {.at = *at, .size = size};
    memcpy(p.n, n, sizeof p.n);
    memcpy(p.stride, stride, sizeof p.stride);
    *at += (long)n[0] * n[1] * n[2] * n[3];
    return p;
}

/* Where a parameter lies while steps are taken: at torch's place if the layouts agree, else in room of its own */
static void place(param *p, real *room, long *used, real *const from[5]) {
    real *to[5];
    if (p->size == 0) return;
    for (int k = 0; k < 5; k++) {
        real *theirs = from == NULL || from[k] == NULL ? NULL : from[k] + p->at;
        real *ours = as_in_torch(p) ? theirs : take(room, used, p->size);
        to[k] = theirs == NULL ? NULL : ours;
        if (to[k] == theirs || k == 1) continue;
        memset(to[k], 0, p->size * sizeof(real)); /* a NaN may have come into the zeros in the call before */
        arrange(p, 1, to[k], theirs);
    }
    p->value = to[0], p->grad = to[1], p->start = to[2], p->offset = to[3], p->scale = to[4];
}

static void give_back(const param *p, real *params, real *grad) {
    if (p->size == 0 || as_in_torch(p)) return;
    if (grad != NULL)
        arrange(p, 0, p->grad, grad + p->at);
    else
        arrange(p, 0, p->value, params + p->at);
}

/* ---- the network from its plan ---- */

static void shape(layer *l, const int *plan, int *trained, long *at) {
    l->kind = plan[0], l->O = plan[1], l->kh = plan[2], l->kw = plan[3], l->sh = plan[4], l->sw = plan[5];
    l->ph = plan[6], l->pw = plan[7], l->how = plan[8];
    int bias = plan[9];
    l->h = l->w = 1, l->made = filled(l->O);
    if (l->kind == CONVOLUTION || l->kind == MAX_POOL || l->kind == MEAN_POOL) {
        l->h = (l->H + 2 * l->ph - l->kh) / l->sh + 1;
        l->w = (l->W + 2 * l->pw - l->kw) / l->sw + 1;
    } else if (l->kind == ACTIVATION)
        l->h = l->H, l->w = l->W;
    if (l->kind == MAX_POOL || l->kind == MEAN_POOL || l->kind == ACTIVATION) l->made = l->stored;
    int n[4] = {l->O, l->C, l->kh, l->kw}, biases[4] = {l->O, 1, 1, 1};
    long kernel = (long)l->stored * l->made;
    long packed[4] = {1, l->made, l->kw * kernel, kernel}, rows[4] = {l->stored, 1, 0, 0}, ones[4] = {1, 0, 0, 0};
    if (l->kind == CONVOLUTION)
        l->weight = parameter(at, n, packed, l->kh * l->kw * kernel);
    else if (l->kind == LINEAR)
        l->weight = parameter(at, n, rows, (long)l->O * l->stored);
    else
        return;
    if (bias) l->bias = parameter(at, biases, ones, l->kind == CONVOLUTION ? l->made : l->O);
    *trained = 1;
}

static int dropout(const layer *l) { return l->kind == ACTIVATION && (l->how == DROPOUT || l->how == DROPOUT_2D); }

static long build(network *net, const int *plan, real *room, real *const from[5]) {
    long used = 0, at = 0, most_image = 0, most_batch = 0, most_wide = 0, most_some = 0;
    int C = plan[2], H = plan[3], W = plan[4], on_images = plan[5], trained = 0, B = plan[0];
    int stored = on_images && plan[7] == CONVOLUTION ? C : filled(C); /* whose few channels lie together */
    net->B = B, net->loss = plan[1], net->count = plan[6], net->images = 0, net->drawn = 0;
    for (int i = 0; i < net->count; i++) {
        layer *l = &net->layers[i];
        *l = (layer){.C = C, .H = H, .W = W, .stored = stored};
        int behind = trained;
        shape(l, plan + 7 + i * NUMBERS, &trained, &at);
        int framed = l->kind == CONVOLUTION, again = framed || l->kind == ACTIVATION || !on_images;
        l->row = (long)(W + 2 * l->pw * framed) * stored;
        l->image = (H + 2 * l->ph * framed) * l->row;
        l->frame = framed ? l->ph * l->row + (long)l->pw * stored : 0;
        l->in = take(room, &used, again ? B * l->image : l->image);
        place(&l->weight, room, &used, from);
        place(&l->bias, room, &used, from);
        if (l->kind == CONVOLUTION) {
            l->flipped = behind ? take(room, &used, l->weight.size) : NULL;
            l->weight_grad = take(room, &used, l->weight.size);
            l->bias_grad = take(room, &used, l->made);
            if (behind) most_wide = larger(most_wide, (long)l->h * line_of(l) * l->made);
        }
        if (dropout(l)) {
            l->drawn = l->how == DROPOUT ? (long)C * H * W : C;
            l->mask = net->drawn;
            net->drawn += B * l->drawn;
        }
        if (l->kind == MAX_POOL)
            l->choice = (whole *)take(room, &used, (long)B * l->h * l->w * l->made); /* as wide as reals */
        if (l->kind == LINEAR) most_some = larger(most_some, larger((long)BLOCK * stored, l->O));
        if (!again) l->image = 0; /* one image's place for all */
        if (on_images) {
            net->images = i + 1;
            most_image = larger(most_image, (long)H * W * stored);
        } else
            most_batch = larger(most_batch, (long)B * stored);
        if (l->kind == FLATTEN) on_images = 0;
        C = l->O, H = l->h, W = l->w, stored = l->made;
    }
    net->outputs = C;
    for (int k = 0; k < 2; k++) {
        net->image_grads[k] = take(room, &used, most_image);
        net->batch_grads[k] = take(room, &used, most_batch);
    }
    net->wide = take(room, &used, most_wide);
    net->some = take(room, &used, most_some);
    net->scores = take(room, &used, (long)B * stored);
    return used;
}

/* ---- forward ---- */

static void put_sample(const network *net, int b, const real *sample) {
    const layer *l = &net->layers[0];
    real *in = l->in + b * l->image + l->frame;
    if (net->images == 0)
        memcpy(in, sample, l->C * sizeof(real));
    for (int c = 0; c < l->C && net->images; c++)
        for (int y = 0; y < l->H; y++)
            for (int x = 0; x < l->W; x++) in[y * l->row + (long)x * l->stored + c] = *sample++;
}

static void forward_image(const network *net, int i, int b) {
    const layer *l = &net->layers[i], *next = l + 1;
    int last = i == net->count - 1;
    real *in = l->in + b * l->image;
    real *out = last ? net->scores + (long)b * l->made : next->in + b * next->image + next->frame;
    long out_row = last ? 0 : next->row;
    if (l->kind == CONVOLUTION)
        conv_forward(l, in, out, out_row);
    else if (l->kind == MAX_POOL)
        max_forward(l, in, out, out_row, l->choice + (long)b * l->h * l->w * l->made);
    else if (l->kind == MEAN_POOL)
        mean_forward(l, in, out, out_row);
    else if (l->kind == FLATTEN) /* torch's order: channel by channel */
        for (int c = 0; c < l->C; c++)
            for (int p = 0; p < l->H * l->W; p++) *out++ = in[(long)p * l->stored + c];
    else if (dropout(l))
        drop(l, net->masks + l->mask + b * l->drawn, in, out, out_row);
    else if (l->C == l->stored)
        for (int y = 0; y < l->H; y++) activate(l->how, l->row, in + y * l->row, out + y * out_row);
    else /* zeros beside the channels stay zeros */
        for (int y = 0; y < l->H; y++)
            for (int x = 0; x < l->W; x++)
                activate(l->how, l->C, in + y * l->row + (long)x * l->stored, out + y * out_row + (long)x * l->stored);
}

static void forward_batch(const network *net, int i) {
    const layer *l = &net->layers[i];
    real *out = i == net->count - 1 ? net->scores : (l + 1)->in;
    if (l->kind == LINEAR) {
        dot_job j = {net->B, l->O, l->stored, l->in, l->weight.value, l->bias.value, out, l->made};
        dots(j);
        return;
    }
    for (int b = 0; b < net->B; b++) {
        real *in = l->in + (long)b * l->stored, *to = out + (long)b * l->stored;
        if (dropout(l))
            drop(l, net->masks + l->mask + b * l->drawn, in, to, 0);
        else
            activate(l->how, l->C, in, to);
    }
}

#define IGNORED -100 /* a label that cross-entropy leaves out, as torch does */

/* ---- losses: return the mean over the batch; scores become its gradient ---- */

static double cross_entropy(const network *net, const int64_t *labels, const int64_t *rows) {
    double total = 0;
    int N = net->outputs, counted = 0;
    for (int b = 0; b < net->B; b++) counted += labels[rows[b]] != IGNORED;
    for (int b = 0; b < net->B; b++) {
        real *s = net->scores + (long)b * filled(N), top = s[0];
        long label = labels[rows[b]];
        if (label == IGNORED) {
            for (int n = 0; n < filled(N); n++) s[n] = 0;
            continue;
        }
        for (int n = 1; n < N; n++) top = s[n] > top ? s[n] : top;
        real picked = s[label], sum = 0;
        for (int n = 0; n < N; n += LANES) store(s + n, exponential(load(s + n) - all(top)));
        for (int n = 0; n < N; n++) sum += s[n];
        total += log((double)sum) + top - picked;
        real share = 1 / (sum * counted);
        for (int n = 0; n < N; n++) s[n] *= share;
        for (int n = N; n < filled(N); n++) s[n] = 0;
        s[label] -= (real)1 / counted;
    }
    return total / counted;
}

static double squared_error(const network *net, const real *targets, const int64_t *rows) {
    double total = 0, count = (double)net->B * net->outputs;
    for (int b = 0; b < net->B; b++) {
        real *s = net->scores + (long)b * filled(net->outputs);
        const real *target = targets + rows[b] * net->outputs;
        for (int n = 0; n < net->outputs; n++) {
            s[n] -= target[n];
            total += (double)s[n] * s[n];
            s[n] *= (real)(2 / count);
        }
    }
    return total / count;
}

/* FedMAX's term, mean over the batch, of the last layer's input a (B, d): KL(uniform || softmax(a)), times its weight.
   grad (B, stored), where it is needed, gets the term's gradient as well: (softmax(a) - 1/d) times weight / B */
static double max_entropy(const network *net, real *grad) {
    const layer *l = &net->layers[net->count - 1];
    double total = 0;
    int d = l->C;
    real weight = net->entropy / net->B;
    for (int b = 0; b < net->B; b++) {
        const real *a = l->in + (long)b * l->stored;
        real top = a[0], sum = 0, mean = 0;
        for (int n = 1; n < d; n++) top = a[n] > top ? a[n] : top;
        for (int n = 0; n < d; n += LANES) store(net->some + n, exponential(load(a + n) - all(top)));
        for (int n = 0; n < d; n++) sum += net->some[n], mean += a[n] / d;
        total += log((double)sum) + top - mean - log((double)d);
        for (int n = 0; n < d && grad != NULL; n++)
            grad[(long)b * l->stored + n] += weight * (net->some[n] / sum - (real)1 / d);
    }
    return net->entropy * total / net->B;
}

/* ---- backward ---- */

static void swap(real **a, real **b) {
    real *kept = *a;
    *a = *b, *b = kept;
}

/* Gradients of the layers that take a batch; returns where that of the first one's input is, and adds to the loss */
static real *backward_batch(const network *net, step s, int needed, double *loss) {
    real *grad = net->scores, *to = net->batch_grads[0], *other = net->batch_grads[1];
    for (int i = net->count - 1; i >= net->images; i--) {
        const layer *l = &net->layers[i];
        if (l->kind == ACTIVATION) {
            for (int b = 0; b < net->B; b++)
                for (int n = 0; n < l->C; n++) grad[(long)b * l->stored + n] *= l->in[(long)b * l->stored + n];
            continue;
        }
        linear_backward(l, net->B, grad, s, net->some, i > needed ? to : NULL);
        if (net->entropy != 0 && i == net->count - 1) *loss += max_entropy(net, i > needed ? to : NULL);
        grad = to;
        swap(&to, &other);
    }
    return grad;
}

static void backward_image(const network *net, int b, const real *features, int needed) {
    real *grad = net->image_grads[0], *to = net->image_grads[1];
    for (int i = net->images - 1; i >= needed; i--) {
        const layer *l = &net->layers[i];
        const real *in = l->in + b * l->image;
        long pixels = (long)l->H * l->W;
        if (l->kind == ACTIVATION) {
            for (long n = 0; n < pixels * l->stored; n++) grad[n] *= in[n];
            continue;
        }
        if (l->kind == FLATTEN) {
            if (l->C != l->stored) memset(to, 0, pixels * l->stored * sizeof(real));
            for (int c = 0; c < l->C; c++)
                for (long p = 0; p < pixels; p++) to[p * l->stored + c] = *features++;
        } else if (l->kind == MAX_POOL)
            max_backward(l, l->choice + (long)b * l->h * l->w * l->made, grad, to);
        else if (l->kind == MEAN_POOL)
            mean_backward(l, grad, to);
        else
            conv_backward(l, in, grad, net->wide, i > needed ? to : NULL);
        swap(&grad, &to);
    }
}

/* ---- one batch, and all of them ---- */

static double one_step(const network *net, const real *x, const void *targets, const int64_t *rows, step s) {
    const layer *first = &net->layers[0];
    long sample = (long)first->C * first->H * first->W;
    int needed = 0; /* the first layer with parameters: no gradient is needed behind it */
    while (net->layers[needed].weight.size == 0) needed++;
    for (int i = 0; i < net->images; i++)
        if (net->layers[i].flipped != NULL) flip(&net->layers[i]);
    for (int b = 0; b < net->B; b++) {
        put_sample(net, b, x + rows[b] * sample);
        for (int i = 0; i < net->images; i++) forward_image(net, i, b);
    }
    for (int i = net->images; i < net->count; i++) forward_batch(net, i);
    double loss = net->loss == CROSS_ENTROPY ? cross_entropy(net, targets, rows) : squared_error(net, targets, rows);
    const real *grad = backward_batch(net, s, needed, &loss);
    if (needed >= net->images) return loss;
    for (int i = needed; i < net->images; i++) {
        const layer *l = &net->layers[i];
        if (l->kind != CONVOLUTION) continue;
        memset(l->weight_grad, 0, l->weight.size * sizeof(real));
        memset(l->bias_grad, 0, l->made * sizeof(real));
    }
    int width = net->layers[net->images - 1].made;
    for (int b = 0; b < net->B; b++) backward_image(net, b, grad + (long)b * width, needed);
    for (int i = needed; i < net->images; i++) {
        const layer *l = &net->layers[i];
        if (l->kind != CONVOLUTION) continue;
        meet(&l->weight, s, 0, l->weight.size, l->weight_grad);
        if (l->bias.size) meet(&l->bias, s, 0, l->bias.size, l->bias_grad);
    }
    return loss;
}

long OF_KIND(fedgbo_network_, )(const int *plan, const real *x, const void *targets, const int64_t *rows, long steps,
                                real *params, real *grad, const real *start, real pull, const real *offset,
                                const real *scale, real rate, real entropy, const real *masks, real *room,
                                double *losses) {
    network net;
    real *from[5] = {params, grad, (real *)start, (real *)offset, (real *)scale};
    long used = build(&net, plan, room, room == NULL ? NULL : from);
    if (room == NULL) return used;
    net.entropy = entropy, net.masks = masks;
    step s = {pull, rate};
    for (long k = 0; k < steps; k++, rows += net.B, net.masks += net.drawn) {
        for (int b = 0; b < net.B && net.loss == CROSS_ENTROPY; b++) {
            int64_t label = ((const int64_t *)targets)[rows[b]];
            if (label == IGNORED) continue;
            if (label < 0 || label >= net.outputs) return -1; /* what lies there is not ours to write */
        }
        losses[k] = (real)one_step(&net, x, targets, rows, s);
    }
    for (int i = 0; i < net.count; i++) {
        give_back(&net.layers[i].weight, params, grad);
        give_back(&net.layers[i].bias, params, grad);
    }
    return used;
}
