/* Which build of the C code this processor can run, and which sources it was made from: see native/build.py. */

#ifndef DIGEST
#define DIGEST ""
#endif

const char *fedgbo_digest(void) { return DIGEST; }

const char *fedgbo_compiler(void) {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

/* Whether MKL, torch's library for matrix products, leaves AVX-512 unused: it does on all processors but Intel's. */
int fedgbo_slow_mkl(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && !__builtin_cpu_is("intel");
#else
    return 0;
#endif
}

const char *fedgbo_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    int v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return v3 && v4 ? "avx512" : v3 ? "avx2" : "portable";
#else
    return "portable";
#endif
}
