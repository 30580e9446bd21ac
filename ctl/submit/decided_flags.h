// SPDX-License-Identifier: Apache-2.0
// Flags of ddprun whose matter a key of the job file, or the place that it is submitted to,
// decides: slots are counted and nodes are asked for by these, so that `flags` can't say otherwise.
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::submit {

// What `flags` of a job file say of such matters at `place` ("nodes"), a line for each: which flag,
// and what to use in its place. Both texts are of --show-config, of the job's command line without
// its `flags` and with them; ddprun itself has read them, so every spelling counts.
std::vector<std::string> decided_flags(std::string_view place, std::string_view without,
                                       std::string_view with);

}  // namespace ddprun::submit
