/* The loops of pool.c for one type of number. */

typedef NUMBER NAME(vec) __attribute__((vector_size(BLOCK * sizeof(NUMBER))));
typedef INTEGER NAME(ivec) __attribute__((vector_size(BLOCK * sizeof(NUMBER))));

INLINE NAME(vec) NAME(load)(const NUMBER *from, int n) {
    NAME(vec) x = {0};
    memcpy(&x, from, n * sizeof(NUMBER));
    return x;
}

INLINE NAME(vec) NAME(pick)(NAME(ivec) mask, NAME(vec) yes, NAME(vec) no) {
    return (NAME(vec))(((NAME(ivec))yes & mask) | ((NAME(ivec))no & ~mask));
}

INLINE void NAME(better)(NAME(vec) x, int code, NAME(vec) *best, NAME(ivec) *choice) {
    NAME(ivec) wins = (x > *best) | (x != x);
    *best = NAME(pick)(wins, x, *best);
    *choice = (*choice & ~wins) | (wins & code);
}

INLINE void NAME(pixel)(int n, int step, int relu, const NUMBER *row, const NUMBER *below, NUMBER *out, uint8_t *kept) {
    NAME(vec) best = NAME(load)(row, n), zero = {0};
    NAME(ivec) choice = {0};
    NAME(better)(NAME(load)(row + step, n), 1, &best, &choice);
    NAME(better)(NAME(load)(below, n), 2, &best, &choice);
    NAME(better)(NAME(load)(below + step, n), 3, &best, &choice);
    if (relu) {
        NAME(ivec) cut = best <= zero;
        best = NAME(pick)(cut, zero, best);
        choice = (choice & ~cut) | (cut & DEAD);
    }
    bytes small = __builtin_convertvector(choice, bytes);
    memcpy(out, &best, n * sizeof(NUMBER));
    memcpy(kept, &small, n);
}

INLINE void NAME(give)(int n, NAME(vec) grad, NAME(ivec) mask, NUMBER *to) {
    NAME(vec) x = (NAME(vec))((NAME(ivec))grad & mask);
    memcpy(to, &x, n * sizeof(NUMBER));
}

INLINE void NAME(pixel_back)(int n, int step, const NUMBER *grad, const uint8_t *kept, NUMBER *row, NUMBER *below) {
    bytes small = {0};
    memcpy(&small, kept, n);
    NAME(ivec) choice = __builtin_convertvector(small, NAME(ivec));
    NAME(vec) g = NAME(load)(grad, n);
    NAME(give)(n, g, choice == 0, row);
    NAME(give)(n, g, choice == 1, row + step);
    NAME(give)(n, g, choice == 2, below);
    NAME(give)(n, g, choice == 3, below + step);
}

void NAME(forward)(int B, int H, int W, int C, int relu, const NUMBER *x, NUMBER *out, uint8_t *kept) {
    for (int i = 0; i < B; i++)
        for (int y = 0; y + 1 < H; y += 2) {
            const NUMBER *row = x + ((long)i * H + y) * W * C, *below = row + (long)W * C;
            for (int column = 0; column + 1 < W; column += 2, row += 2 * C, below += 2 * C, out += C, kept += C) {
                int c = 0;
                for (; c + BLOCK <= C; c += BLOCK) NAME(pixel)(BLOCK, C, relu, row + c, below + c, out + c, kept + c);
                if (c < C) NAME(pixel)(C - c, C, relu, row + c, below + c, out + c, kept + c);
            }
        }
}

void NAME(backward)(int B, int H, int W, int C, const NUMBER *grad, const uint8_t *kept, NUMBER *dx) {
    for (int i = 0; i < B; i++) {
        for (int y = 0; y + 1 < H; y += 2) {
            NUMBER *row = dx + ((long)i * H + y) * W * C, *below = row + (long)W * C;
            for (int column = 0; column + 1 < W; column += 2, row += 2 * C, below += 2 * C, grad += C, kept += C) {
                int c = 0;
                for (; c + BLOCK <= C; c += BLOCK)
                    NAME(pixel_back)(BLOCK, C, grad + c, kept + c, row + c, below + c);
                if (c < C) NAME(pixel_back)(C - c, C, grad + c, kept + c, row + c, below + c);
            }
            if (W % 2) {
                memset(row, 0, C * sizeof(NUMBER));
                memset(below, 0, C * sizeof(NUMBER));
            }
        }
        if (H % 2) memset(dx + ((long)i * H + H - 1) * W * C, 0, (long)W * C * sizeof(NUMBER));
    }
}
