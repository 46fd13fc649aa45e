// {fmt}'s fmt::format, compiled into each file: nothing is linked, and a precompiled header without it can be used.
#pragma once

#define FMT_HEADER_ONLY
#include <fmt/format.h>
