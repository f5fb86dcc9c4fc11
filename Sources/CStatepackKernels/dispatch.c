#include "statepack_kernels.h"
