// The file through which ranks meet, as c10d's FileStore writes it. Internal to launch.
#pragma once

#include <filesystem>

namespace lockstep::launch {

// Whether its last record is only begun: a writer was killed in the middle of it. FileStore never
// notices: whoever reads it from then on spins, with its lock held. Only for a file that nobody
// writes any more; false where there is none.
bool is_torn(const std::filesystem::path& path);

}  // namespace lockstep::launch
