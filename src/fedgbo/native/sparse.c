/* K local steps y <- y - (offset + scale (g + pull (y - x))) of a linear classifier on sparse samples, with the mean
   cross-entropy of a minibatch as the loss: engines/sparse.py.

   y lies as in nn.Linear: weight (classes, features), then bias (classes). Sample r has the features
   indices[indptr[r] ... indptr[r + 1] - 1]; a feature's value is its count over the sum of the sample's counts, rounded
   to float32 as in data/samples.py. Where a sample has no feature its gradient is zero, so a step touches the features of
   its minibatch; all other parameters move by offset and pull alone, in one pass, where there are any. `scores` has room
   for (batch, classes) numbers.
   Returns the mean loss. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define SPARSE(type)                                                                                                   \
    static double to_gradient_##type(type *scores, long classes, long label, double share) {                           \
        type largest = scores[0], picked = scores[label];                                                              \
        double total = 0;                                                                                              \
        for (long c = 1; c < classes; c++) largest = scores[c] > largest ? scores[c] : largest;                        \
        for (long c = 0; c < classes; c++) total += scores[c] = exp((double)scores[c] - largest);                      \
        for (long c = 0; c < classes; c++) scores[c] *= share / total;                                                 \
        scores[label] -= share;                                                                                        \
        return log(total) + largest - picked;                                                                          \
    }                                                                                                                  \
    double fedgbo_sparse_##type(long features, long classes, const int64_t *indptr, const uint16_t *indices,           \
                                const uint8_t *counts, const uint8_t *labels, long steps, long batch,                  \
                                const int64_t *rows, const type *x, const type *offset, const type *scale, double rate, \
                                double pull, type *scores, type *y) {                                                  \
        long length = classes * (features + 1);                                                                        \
        double loss = 0;                                                                                               \
        for (long k = 0; k < steps; k++, rows += batch) {                                                              \
            for (long b = 0; b < batch; b++) {                                                                         \
                type *own = scores + b * classes;                                                                      \
                long begin = indptr[rows[b]], end = indptr[rows[b] + 1], tokens = 0;                                   \
                for (long i = begin; i < end; i++) tokens += counts[i];                                                \
                tokens = tokens > 0 ? tokens : 1;                                                                      \
                for (long c = 0; c < classes; c++) {                                                                   \
                    const type *weight = y + c * features;                                                             \
                    type sum = y[classes * features + c];                                                              \
                    for (long i = begin; i < end; i++) sum += weight[indices[i]] * (type)((float)counts[i] / tokens);  \
                    own[c] = sum;                                                                                      \
                }                                                                                                      \
                loss += to_gradient_##type(own, classes, labels[rows[b]], 1.0 / batch);                                \
            }                                                                                                          \
            if (pull != 0)                                                                                             \
                for (long p = 0; p < length; p++)                                                                      \
                    y[p] -= (scale == NULL ? (type)rate : scale[p]) * (type)pull * (y[p] - x[p]);                      \
            if (offset != NULL)                                                                                        \
                for (long p = 0; p < length; p++) y[p] -= offset[p];                                                   \
            for (long b = 0; b < batch; b++) {                                                                         \
                const type *own = scores + b * classes;                                                                \
                long begin = indptr[rows[b]], end = indptr[rows[b] + 1], tokens = 0;                                   \
                for (long i = begin; i < end; i++) tokens += counts[i];                                                \
                tokens = tokens > 0 ? tokens : 1;                                                                      \
                for (long c = 0; c < classes; c++) {                                                                   \
                    long bias = classes * features + c;                                                                \
                    y[bias] -= (scale == NULL ? (type)rate : scale[bias]) * own[c];                                    \
                    for (long i = begin; i < end; i++) {                                                               \
                        long p = c * features + indices[i];                                                            \
                        y[p] -= (scale == NULL ? (type)rate : scale[p]) * (type)((float)counts[i] / tokens) * own[c];  \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        return loss / (steps * batch);                                                                                 \
    }

SPARSE(float)
SPARSE(double)
