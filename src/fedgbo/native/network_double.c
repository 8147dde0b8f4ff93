/* network.c for doubles */

#define DOUBLE
#include "network.c"
