/* The order in which a client goes through its samples; core/random.py has the definition (permutation, name_of) and
   engines/batches.py the use. Lap l is the order of 0 ... n - 1 by hash: SplitMix64 of (sample ^ name of the lap). */

#include <stdint.h>
#include <stdlib.h>

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

static int by_hash(const void *one, const void *other) {
    const entry *a = one, *b = other;
    if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
    return a->sample < b->sample ? -1 : a->sample > b->sample;
}

/* Shell's sort, which needs no function for each comparison; the bijection has no equal hashes */
#define FEW 1024

static void shell_sort(entry *order, long n) {
    static const long gaps[] = {301, 132, 57, 23, 10, 4, 1}; /* Ciura's */
    for (int g = 0; g < 7; g++)
        for (long gap = gaps[g], i = gap; i < n; i++) {
            entry next = order[i];
            long j = i;
            for (; j >= gap && order[j - gap].hash > next.hash; j -= gap) order[j] = order[j - gap];
            order[j] = next;
        }
}

/* Fill rows with `count` samples of a client's walk in round t, from its beginning on; seed, purpose, t and client name its
   random stream. Returns 0 without samples or memory. */
long fedgbo_walk(uint64_t seed, uint64_t purpose, uint64_t t, uint64_t client, long n, long count, int64_t *rows) {
    if (n < 1) return 0; /* no walk through nothing */
    uint64_t name = mixed(mixed(mixed(mixed(seed) ^ purpose) ^ t) ^ client); /* name_of */
    entry *order = malloc(n * sizeof *order);
    if (order == NULL) return 0;
    for (long at = 0, lap = 0; at < count; lap++) {
        uint64_t own = mixed(name ^ (uint64_t)lap);
        for (long i = 0; i < n; i++) order[i] = (entry){mixed((uint64_t)i ^ own), i};
        if (n < FEW)
            shell_sort(order, n);
        else
            qsort(order, n, sizeof *order, by_hash);
        for (long i = 0; i < n && at < count; i++) rows[at++] = order[i].sample;
    }
    free(order);
    return 1;
}
