// Which torch is built against, where c10d's classes have got more virtuals.
#pragma once

#include <torch/headeronly/version.h>

#define LOCKSTEP_TORCH_2_14 (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14)
#define LOCKSTEP_TORCH_2_15 (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15)
