// Text from outside: is it text, and how to show it in a message.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::archive {

bool is_utf8(std::string_view text);

// At most 80 characters; what is no printable ASCII as \xNN.
std::string printable(std::string_view text);

}  // namespace lockstep::archive
