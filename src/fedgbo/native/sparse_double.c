/* sparse.c for doubles */

#define DOUBLE
#include "sparse.c"
