// JSON as the objects that the unpickler makes, so that one reader serves both kinds of dump.
#pragma once

#include <lockstep/archive/objects.h>

#include <string_view>

namespace lockstep::flight {

// Equal keys and texts are one object. Throws Error with the offset.
archive::unpickling::Graph json_graph(std::string_view json);

}  // namespace lockstep::flight
