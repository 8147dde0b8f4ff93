/* The clients of many rounds at once: what numpy's default generator draws without replacement, bit for bit, and sorted.

   A round's stream has a seed of 32-bit words, the last of which is the round. numpy makes a PCG64 of it (SeedSequence:
   O'Neill's seed_seq_fe128), which gives 64 bits at a time, used in two halves; a number below n is Lemire's; and
   numbers without replacement are Floyd's. What took numpy 18 microseconds a round, most of them to build objects, takes
   one. */

#include <stdint.h>

typedef unsigned __int128 wide;
typedef struct {
    wide state, step;
    uint32_t half;
    int has_half;
} stream;

static uint32_t hashed(uint32_t value, uint32_t *constant, uint32_t factor) {
    value ^= *constant;
    *constant *= factor;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mixed(uint32_t x, uint32_t y) {
    uint32_t sum = 0xca01f9ddu * x - 0x4973f715u * y;
    return sum ^ sum >> 16;
}

static uint64_t next64(stream *s) {
    s->state = s->state * (((wide)2549297995355413924u << 64) + 4865540595714422341u) + s->step;
    uint64_t both = (uint64_t)(s->state >> 64) ^ (uint64_t)s->state;
    int turn = (int)(s->state >> 122);
    return both >> turn | both << (-turn & 63);
}

static uint32_t next32(stream *s) {
    s->has_half = !s->has_half;
    if (!s->has_half) return s->half;
    uint64_t both = next64(s);
    s->half = (uint32_t)(both >> 32);
    return (uint32_t)both;
}

static stream seeded(long count, const uint32_t *words) {
    uint32_t pool[4], constant = 0x43b0d7e5u, made[8];
    for (int i = 0; i < 4; i++) pool[i] = hashed(i < count ? words[i] : 0, &constant, 0x931e8875u);
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            if (from != to) pool[to] = mixed(pool[to], hashed(pool[from], &constant, 0x931e8875u));
    for (long from = 4; from < count; from++)
        for (int to = 0; to < 4; to++) pool[to] = mixed(pool[to], hashed(words[from], &constant, 0x931e8875u));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) made[i] = hashed(pool[i % 4], &constant, 0x58f38dedu);
    uint64_t whole[4];
    for (int i = 0; i < 4; i++) whole[i] = made[2 * i] | (uint64_t)made[2 * i + 1] << 32;
    stream s = {.step = ((wide)whole[2] << 64 | whole[3]) << 1 | 1};
    s.state = s.step + ((wide)whole[0] << 64 | whole[1]);
    next64(&s);
    return s;
}

/* One of 0 ... n - 1 */
static uint32_t below(stream *s, uint32_t n) {
    if (n == 1) return 0;
    uint64_t product = (uint64_t)next32(s) * n;
    if ((uint32_t)product < n)
        for (uint32_t least = -n % n; (uint32_t)product < least;) product = (uint64_t)next32(s) * n;
    return (uint32_t)(product >> 32);
}

/* `rounds` rows of `size` of the `clients` numbers; the stream of the first is named by `count` words, and the last of
   these counts the rounds */
void fedgbo_draw(long rounds, long size, long clients, long count, uint32_t *words, int64_t *rows) {
    for (long t = 0; t < rounds; t++, words[count - 1]++, rows += size) {
        stream s = seeded(count, words);
        for (long drawn = 0; drawn < size; drawn++) {
            int64_t last = clients - size + drawn, one = below(&s, (uint32_t)last + 1);
            long at = 0;
            while (at < drawn && rows[at] < one) at++;
            if (at < drawn && rows[at] == one) at = drawn, one = last; /* larger than all before */
            for (long i = drawn; i > at; i--) rows[i] = rows[i - 1];
            rows[at] = one;
        }
    }
}
