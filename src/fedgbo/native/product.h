/* The products that a network is made of, on one core.

   `product` has its columns along the lanes, which must fill whole vectors; rows and the inner length are free:
       out[m][n] = start[m][n] + sum over r < outer, k < inner of  a[m row + k step + r jump] * b[k][n] of the r-th b
   `dots` has the inner length along the lanes: out[m][n] = bias[n] + sum over k of x[m][k] weight[n][k]. */

#include <stddef.h>

#include "vectors.h"

#if BYTES == 64
#define MOST 13     /* rows of a tile: with two vectors each, their sums and three more vectors fill the registers */
#define DOT_COLUMNS 6
#else
#define MOST 6
#define DOT_COLUMNS 3
#endif
#define DOT_ROWS 4
#define WIDE (2 * LANES) /* columns of a tile */

typedef struct {
    const real *a;
    long row, step, jump;
    const real *b;
    long b_step, b_jump;
    int outer, inner;
    const real *start; /* null for zero */
    long start_row;
    real *out;
    long out_row;
} job;

INLINE void tile(int rows, int vectors, const job *of) {
    const job j = *of;
    vec sums[MOST][2];
#pragma GCC unroll 13
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sums[m][v] = j.start == NULL ? all(0) : load(j.start + m * j.start_row + v * LANES);
    for (int r = 0; r < j.outer; r++) {
        const real *a = j.a + r * j.jump, *b = j.b + r * j.b_jump;
        for (int k = 0; k < j.inner; k++, a += j.step, b += j.b_step) {
            vec b0 = load(b), b1 = vectors == 2 ? load(b + LANES) : b0;
#pragma GCC unroll 13
            for (int m = 0; m < rows; m++) {
                vec x = all(a[m * j.row]);
                sums[m][0] += x * b0;
                if (vectors == 2) sums[m][1] += x * b1;
            }
        }
    }
#pragma GCC unroll 13
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) store(j.out + m * j.out_row + v * LANES, sums[m][v]);
}

#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        if (vectors == 2)                                                                                              \
            tile(n, 2, j);                                                                                             \
        else                                                                                                           \
            tile(n, 1, j);                                                                                             \
        break;

static void some_rows(int rows, int vectors, const job *j) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if MOST == 13
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)
#endif
    }
}
#undef CASE

static void product(int rows, int columns, job j) {
    int blocks = (rows + MOST - 1) / MOST;
    for (int i = 0; i < blocks; i++) { /* of equal size, up to one row */
        int first = (int)((long)rows * i / blocks), last = (int)((long)rows * (i + 1) / blocks);
        job part = j;
        part.a += first * j.row;
        part.out += first * j.out_row;
        if (j.start != NULL) part.start += first * j.start_row;
        for (int n = 0; n < columns; n += WIDE) {
            some_rows(last - first, columns - n < WIDE ? 1 : 2, &part);
            part.b += WIDE;
            part.out += WIDE;
            if (part.start != NULL) part.start += WIDE;
        }
    }
}

typedef struct {
    int rows, columns, inner; /* inner fills whole vectors */
    const real *x;            /* (rows, inner) */
    const real *weight;       /* (columns, inner) */
    const real *bias;         /* (columns), null for zero */
    real *out;
    long out_row;
} dot_job;

INLINE void dot_tile(int rows, int columns, const dot_job *j, int m0, int n0) {
    const real *x = j->x + (long)m0 * j->inner, *weight = j->weight + (long)n0 * j->inner;
    vec sums[DOT_ROWS][DOT_COLUMNS];
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 6
        for (int n = 0; n < columns; n++) sums[m][n] = all(0);
    for (long k = 0; k < j->inner; k += LANES) {
        vec w[DOT_COLUMNS];
#pragma GCC unroll 6
        for (int n = 0; n < columns; n++) w[n] = load(weight + (long)n * j->inner + k);
#pragma GCC unroll 4
        for (int m = 0; m < rows; m++) {
            vec a = load(x + (long)m * j->inner + k);
#pragma GCC unroll 6
            for (int n = 0; n < columns; n++) sums[m][n] += a * w[n];
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 6
        for (int n = 0; n < columns; n++) {
            real bias = j->bias == NULL ? 0 : j->bias[n0 + n];
            j->out[(m0 + m) * j->out_row + n0 + n] = bias + total(sums[m][n]);
        }
}

INLINE void dot_rows(int columns, const dot_job *j, int n0) {
    int m = 0;
    for (; m + 4 <= j->rows; m += 4) dot_tile(4, columns, j, m, n0);
    if (j->rows - m == 3) dot_tile(3, columns, j, m, n0);
    if (j->rows - m == 2) dot_tile(2, columns, j, m, n0);
    if (j->rows - m == 1) dot_tile(1, columns, j, m, n0);
}

static void dots(dot_job j) {
    int blocks = (j.columns + DOT_COLUMNS - 1) / DOT_COLUMNS;
    for (int i = 0; i < blocks; i++) {
        int n = (int)((long)j.columns * i / blocks), next = (int)((long)j.columns * (i + 1) / blocks);
        switch (next - n) {
            case 1: dot_rows(1, &j, n); break;
            case 2: dot_rows(2, &j, n); break;
            case 3: dot_rows(3, &j, n); break;
#if DOT_COLUMNS == 6
            case 4: dot_rows(4, &j, n); break;
            case 5: dot_rows(5, &j, n); break;
            case 6: dot_rows(6, &j, n); break;
#endif
        }
    }
}
