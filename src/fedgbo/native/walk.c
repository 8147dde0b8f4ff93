/* The order in which a client goes through its samples; core/random.py has the definition (permutation, name_of) and
   engines/batches.py the use. Lap l is the order of 0 ... n - 1 by hash: SplitMix64 of (sample ^ name of the lap). */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t hash;
    int64_t sample;
} entry;

static uint64_t mixed(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Put `order` into ascending order of hashes, which are even: about one in each of `count` = 2^bits buckets, which leaves
   little for the insertion sort. The bijection has no equal hashes. */
static void sort(entry *order, long n, entry *room, long *begin, int bits) {
    long count = 1L << bits;
    memset(begin, 0, (count + 1) * sizeof *begin);
    for (long i = 0; i < n; i++) begin[(order[i].hash >> (64 - bits)) + 1]++;
    for (long b = 0; b < count; b++) begin[b + 1] += begin[b];
    for (long i = 0; i < n; i++) room[begin[order[i].hash >> (64 - bits)]++] = order[i];
    for (long i = 0; i < n; i++) {
        long at = i;
        for (; at > 0 && order[at - 1].hash > room[i].hash; at--) order[at] = order[at - 1];
        order[at] = room[i];
    }
}

/* Fill rows with `count` samples of a client's walk in round t, from its beginning on; seed, purpose, t and client name its
   random stream. Returns 0 without samples or memory. */
long fedgbo_walk(uint64_t seed, uint64_t purpose, uint64_t t, uint64_t client, long n, long count, int64_t *rows) {
    if (n < 1) return 0; /* no walk through nothing */
    uint64_t name = mixed(mixed(mixed(mixed(seed) ^ purpose) ^ t) ^ client); /* name_of */
    int bits = 1;
    while (1L << bits < n) bits++;
    entry *order = malloc(2 * n * sizeof *order + ((1L << bits) + 1) * sizeof(long));
    if (order == NULL) return 0;
    for (long at = 0, lap = 0; at < count; lap++) {
        uint64_t own = mixed(name ^ (uint64_t)lap);
        for (long i = 0; i < n; i++) order[i] = (entry){mixed((uint64_t)i ^ own), i};
        sort(order, n, order + n, (long *)(order + 2 * n), bits);
        for (long i = 0; i < n && at < count; i++) rows[at++] = order[i].sample;
    }
    free(order);
    return 1;
}
