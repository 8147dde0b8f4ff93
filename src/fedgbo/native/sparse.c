/* K local steps y <- y - (offset + scale (g + pull (y - x))) of a linear classifier on sparse samples, with the mean
   cross-entropy of a minibatch as the loss: engines/one_call.py.

   y has the layout of nn.Linear: weight (classes, features), then bias (classes). Sample r has the features
   indices[indptr[r] ... indptr[r + 1] - 1]. The value of a feature is its count divided by the sum of the sample's counts,
   rounded to float32 as in data/samples.py. The gradient is zero for all features that are not in the minibatch, so a local
   step changes only the features of its minibatch. The offset, which changes all parameters, is subtracted `steps` times
   at the end; until then, local step k reads parameter p as y[p] - k offset[p]. With `pull`, the two are applied to all
   parameters in every local step. `scores` has room for (batch, classes) numbers.
   Returns the mean loss. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "vectors.h"

static double to_gradient(real *scores, long classes, long label, double share) {
    real largest = scores[0], picked = scores[label];
    double total = 0;
    for (long c = 1; c < classes; c++) largest = scores[c] > largest ? scores[c] : largest;
    for (long c = 0; c < classes; c++) total += scores[c] = exp((double)scores[c] - largest);
    for (long c = 0; c < classes; c++) scores[c] *= share / total;
    scores[label] -= share;
    return log(total) + largest - picked;
}

static long tokens_of(const uint8_t *counts, long begin, long end) {
    long tokens = 0;
    for (long i = begin; i < end; i++) tokens += counts[i];
    return tokens > 0 ? tokens : 1;
}

double OF_KIND(fedgbo_sparse_, )(long features, long classes, const int64_t *indptr, const uint16_t *indices,
                                 const uint8_t *counts, const uint8_t *labels, long steps, long batch,
                                 const int64_t *rows, const real *x, const real *offset, const real *scale, double rate,
                                 double pull, real *scores, real *y) {
    long biases = classes * features, length = biases + classes;
    const real *later = pull == 0 ? offset : NULL; /* subtracted at the end */
    double loss = 0;
    for (long k = 0; k < steps; k++, rows += batch) {
        for (long b = 0; b < batch; b++) {
            real *own = scores + b * classes;
            long begin = indptr[rows[b]], end = indptr[rows[b] + 1], tokens = tokens_of(counts, begin, end);
            for (long c = 0; c < classes; c++) own[c] = y[biases + c] - (later == NULL ? 0 : k * later[biases + c]);
            for (long i = begin; i < end; i++) {
                real value = (float)counts[i] / tokens;
                for (long c = 0, p = indices[i]; c < classes; c++, p += features)
                    own[c] += (y[p] - (later == NULL ? 0 : k * later[p])) * value;
            }
            loss += to_gradient(own, classes, labels[rows[b]], 1.0 / batch);
        }
        if (pull != 0) {
            for (long p = 0; p < length; p++)
                y[p] -= (scale == NULL ? (real)rate : scale[p]) * (real)pull * (y[p] - x[p]);
            for (long p = 0; p < length && offset != NULL; p++) y[p] -= offset[p];
        }
        for (long b = 0; b < batch; b++) {
            const real *own = scores + b * classes;
            long begin = indptr[rows[b]], end = indptr[rows[b] + 1], tokens = tokens_of(counts, begin, end);
            for (long c = 0; c < classes; c++)
                y[biases + c] -= (scale == NULL ? (real)rate : scale[biases + c]) * own[c];
            for (long i = begin; i < end; i++) {
                real value = (float)counts[i] / tokens;
                for (long c = 0, p = indices[i]; c < classes; c++, p += features)
                    y[p] -= (scale == NULL ? (real)rate : scale[p]) * value * own[c];
            }
        }
    }
    for (long p = 0; p < length && later != NULL; p++) y[p] -= steps * later[p];
    return loss / (steps * batch);
}
