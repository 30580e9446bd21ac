// SPDX-License-Identifier: Apache-2.0
// Files that are whole or not there, whatever happens to the process or the machine meanwhile.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Writes `pieces`, one after the other, under a temporary name beside `path`, fsyncs, renames to
// `path` (which is replaced) and fsyncs the directory. Throws Error(kSystem) "can't write the
// checkpoint PATH: …"; then `path` is as before, and nothing else is left. `writer`: tells apart
// the processes, on whatever host, that write the same file at the same time.
void write_durably(const std::string& path, const std::vector<std::string_view>& pieces,
                   int writer = 0);

// What was made, renamed or removed in it is there after a power loss, too. Throws Error(kSystem)
// that begins with `what`.
void sync_directory(const std::string& path, const std::string& what);

// All of it. Throws Error(kSystem) "can't read the checkpoint PATH: …".
std::string read_whole(const std::string& path);

}  // namespace ddprun
